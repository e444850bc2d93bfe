"""Lines that whoever trusts a program must read: few enough, and as the page shows them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.reach import PROGRAMS, House, shown

NEAR = 0.5
"""Thousand lines by which the page may lag behind, so that few changes have to renew it."""


@pytest.fixture(scope="module")
def house() -> House:
    return House.read()


@pytest.mark.parametrize("start", PROGRAMS)
def test_a_program_reaches_no_more_lines_than_it_may(house: House, start: str) -> None:
    assert house.lines_from(start) <= PROGRAMS[start][1]


def test_page_shows_about_what_the_command_prints(house: House) -> None:
    rows = re.findall(r"\| `([\w.]+)` \| ([\d.]+) \| (\d+) \|", shown())
    assert [(start, int(most) * 1000) for start, _, most in rows] == [
        (start, most) for start, (_, most) in PROGRAMS.items()
    ]
    for start, thousands, _ in rows:
        assert abs(house.lines_from(start) / 1000 - float(thousands)) <= NEAR


FILES = {
    "party/__init__.py": "from party.two import name\n",
    "party/one.py": "def late():\n    from party import name\n",
    "party/two.py": "name = 'party.three'\n",
    "party/three.py": "import party.four\n",
    "party/four.py": "database = 'party.store'\n",
    "party/five.py": "import party.one\n",
    "party/store/__init__.py": "",
    "party/store/migrations/first.py": "",
}


def test_reach_follows_late_imports_passed_names_programs_and_migrations(tmp_path: Path) -> None:
    for path, text in FILES.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    found = House.read(tmp_path)
    assert sorted(found.reach("party.one")) == [
        "party.four",
        "party.one",
        "party.store.migrations.first",
        "party.three",
        "party.two",
    ]
    assert found.lines_from("party.one") == 5
