"""The lock, `requirements.txt`: a hospital installs these files, and no others."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.lock import INDEX, LOCK, entries
from pate_fed.nodes import unlocked_libraries

ROOT = Path(__file__).parents[1]
TEXT = LOCK.read_text("utf-8")
LOCKED = {name: version for name, version, _ in entries(TEXT)}


def test_every_library_has_one_version_and_hashes() -> None:
    """pip then refuses any other file; a range or a file without a hash would be neither."""
    for name, _, lines in entries(TEXT):
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", lines), name
        assert "@" not in lines
    rest = TEXT
    for _, _, lines in entries(TEXT):
        rest = rest.replace(lines, "")
    assert [line for line in rest.splitlines() if not line.startswith("#")] == [
        f"--extra-index-url {INDEX}"
    ]


def test_it_holds_what_pyproject_asks_for() -> None:
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    for line in asked:
        wanted = Requirement(line)
        versions = [
            version for name, version, _ in entries(TEXT) if name == canonicalize_name(wanted.name)
        ]
        assert versions, wanted.name
        assert all(wanted.specifier.contains(one) for one in versions), wanted.name


def test_it_holds_what_all_of_these_need() -> None:
    """With its dependencies' dependencies, as the packages that are installed here name them."""
    waiting, seen = [("pate-fed", frozenset[str]())], set[tuple[str, frozenset[str]]]()
    while waiting:
        name, extras = one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        try:
            needed = requires(name) or []
        except PackageNotFoundError:
            pytest.fail(f"{name} is not installed here: run `make test`")
        for text in needed:
            wanted = Requirement(text)
            marker = wanted.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in {"", *extras}):
                needs = canonicalize_name(wanted.name)
                assert needs in LOCKED, f"{needs}, for {name}: `make lock`"
                waiting.append((needs, frozenset(wanted.extras)))
    assert len(seen) > 50


def test_torch_comes_without_support_for_graphics_cards() -> None:
    assert LOCKED["torch"].endswith("+cpu")
    assert not [name for name in LOCKED if name.startswith(("nvidia", "cuda", "triton"))]


def test_other_versions_are_named() -> None:
    assert unlocked_libraries(LOCKED.__getitem__) in ((), *(((name,)) for name in LOCKED))
    assert "scipy" in unlocked_libraries(lambda name: "0.1" if name == "scipy" else LOCKED[name])

    def absent(name: str) -> str:
        raise PackageNotFoundError(name)

    assert unlocked_libraries(absent) == ()
