"""The notebooks were executed, and still say what they said."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.markers import sampled
from tests.support.real_data import real_data

FOLDER = Path(__file__).parent.parent / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
NEEDS_DATA = {"reproduce-a-papers-row": "data/pate_votes/pate2018_counts/svhn_250_teachers.npy"}

every_notebook = pytest.mark.parametrize(
    "notebook", [pytest.param(path, id=path.stem) for path in NOTEBOOKS]
)


def code_cells(notebook: Path) -> list[dict[str, Any]]:
    content = json.loads(notebook.read_text("utf-8"))
    assert (content["nbformat"], content["nbformat_minor"]) == (4, 5)
    return [cell for cell in content["cells"] if cell["cell_type"] == "code"]


def said(cell: dict[str, Any]) -> str:
    return "".join("".join(one["text"]) for one in cell["outputs"])


def test_there_are_three() -> None:
    assert len(NOTEBOOKS) == 3


@every_notebook
def test_every_cell_was_executed_in_order_without_an_error(notebook: Path) -> None:
    cells = code_cells(notebook)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    for cell in cells:
        assert {one["output_type"] for one in cell["outputs"]} == {"stream"}
        assert said(cell).strip()


@sampled()
@pytest.mark.slow
@every_notebook
def test_it_says_the_same_again_but_for_last_digits(
    notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if notebook.stem in NEEDS_DATA:
        votes = real_data(NEEDS_DATA[notebook.stem])
        (tmp_path / "data").symlink_to(votes.parents[2])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in code_cells(notebook):
        heard = io.StringIO()
        with contextlib.redirect_stdout(heard):
            exec(compile("".join(cell["source"]), notebook.name, "exec"), names)  # noqa: S102
        then, now = said(cell), heard.getvalue()
        # Another machine's libraries add up in another order: numbers may differ a little.
        assert re.sub(r"\d+", "#", now) == re.sub(r"\d+", "#", then)
        for old, new in zip(*(re.findall(r"\d+\.\d+", text) for text in (then, now)), strict=True):
            assert float(new) == pytest.approx(float(old), abs=0.05)
