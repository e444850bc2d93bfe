"""A hospital's own code beside its data: pinned to its file, and in no other module's place."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pate_fed.errors import InvalidDataError, InvalidParameterError
from pate_fed.teachers import make_ensemble
from pate_fed.teachers import own_teacher as own_teacher_module
from pate_fed.teachers.own_teacher import MOST_CODE_BYTES, own_teacher, pinned
from tests.test_pate_fed.test_teachers import blobs, some

CODE = """
from sklearn.naive_bayes import GaussianNB

class Own(GaussianNB):
    pass

def teacher():
    return Own(var_smoothing={smoothing})
"""


@pytest.fixture(autouse=True)
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget what a test loaded."""
    monkeypatch.setattr(own_teacher_module, "_loaded", {})
    yield
    for name in ("lungs", "hearts"):
        sys.modules.pop(name, None)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "lungs.py"
    path.write_text(CODE.format(smoothing=1e-3))
    return path


def test_code_beside_data_is_trained_votes_and_is_kept(file: Path) -> None:
    folders = (file.parent / "elsewhere", file.parent)
    name = pinned("lungs:teacher", folders)
    assert name.startswith("lungs:teacher@")
    trained = make_ensemble(name, "table", balance="natural", folders=folders)
    trained.fit([blobs(30), blobs(30, seed=1)], classes=3, rng=np.random.default_rng(0))
    own_teacher_module._loaded.clear()  # as in another process
    del sys.modules["lungs"]
    kept = make_ensemble(name, "table", balance="natural", folders=folders)
    kept.restore(trained.dump(), classes=3)
    assert np.array_equal(kept.vote(some(100)), trained.vote(some(100)))


def test_another_file_is_refused_until_it_is_pinned_again(file: Path) -> None:
    name = pinned("lungs:teacher", [file.parent])
    file.write_text(CODE.format(smoothing=0.5))
    with pytest.raises(InvalidParameterError):
        own_teacher(name, [file.parent])
    again = pinned("lungs:teacher", [file.parent])
    assert again != name
    assert own_teacher(again, [file.parent])[0]().var_smoothing == 0.5


def test_code_beside_data_that_nobody_pinned_is_not_run(file: Path) -> None:
    mark = file.parent / "ran"
    file.write_text(f"open({str(mark)!r}, 'w').close()")
    for name in ("lungs:teacher", f"lungs:teacher@{'0' * 64}"):
        with pytest.raises(InvalidParameterError):
            own_teacher(name, [file.parent])
    assert not mark.exists()


@pytest.mark.parametrize("module", ["json", "sys", "tests", "sklearn", "this"])
def test_it_takes_no_other_modules_place(tmp_path: Path, module: str) -> None:
    (tmp_path / f"{module}.py").write_text(CODE)
    with pytest.raises(InvalidParameterError):
        pinned(f"{module}:teacher", [tmp_path])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"def teacher(: pass",
        b"raise SystemError",
        b"def teacher(one): pass",
        b"def teacher(): return 1",
        b"\xff\xfe\x00",
        b"import lungs2",
    ],
    ids=["empty", "syntax", "raises", "argument", "no estimator", "bytes", "a second file"],
)
def test_code_that_cannot_be_a_teacher_is_refused_again_and_again(
    file: Path, content: bytes
) -> None:
    file.write_bytes(content)
    (file.parent / "lungs2.py").write_text("")
    name = pinned("lungs:teacher", [file.parent])
    for _ in range(2):
        with pytest.raises((InvalidParameterError, InvalidDataError)):
            own_teacher(name, [file.parent])


def test_a_folder_a_pipe_or_a_large_file_is_refused(file: Path) -> None:
    file.unlink()
    file.mkdir()
    with pytest.raises(InvalidParameterError):
        pinned("lungs:teacher", [file.parent])
    (file.parent / "hearts.py").write_bytes(b"#" * (MOST_CODE_BYTES + 1))
    with pytest.raises(InvalidParameterError):
        pinned("hearts:teacher", [file.parent])


@pytest.mark.parametrize("name", ["auto", "../lungs:teacher", "lungs.inner:teacher", "hearts:make"])
def test_other_names_are_not_pinned(file: Path, name: str) -> None:
    assert pinned(name, [file.parent, file.parent / "none"]) == name
