"""README and documentation show the numbers that their commands print.

`docs/numbers.json` keeps them; `make numbers` renews it and all pages (`benchmarks/numbers.py`).
"""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

from benchmarks.numbers import (
    SOURCES,
    differences,
    kept_numbers,
    kept_records,
    measured,
    numbers_in,
    pages,
    places,
    renewed,
)
from tests.support.command import exit_code_of
from tests.support.pictures import TERMINAL

CHEAP = [name for name, source in SOURCES.items() if source.is_cheap]
FIRST_RUN = "docs/tutorial/first-run.md"
WHOLE = ("README.md", FIRST_RUN, "docs/how-to/bring-your-data.md")
"""Pages whose every epsilon is a command's."""

TERMINAL_TEXT = re.compile(r"<[^>]*>|&#160;")


def test_every_page_shows_the_numbers_of_the_file() -> None:
    """Where it fails: `make numbers`, or name the phrase anew in `benchmarks/numbers.py`."""
    assert differences(pages(), kept_numbers()) == []


def test_the_file_has_every_number_with_its_command_and_its_day() -> None:
    records = kept_records()
    assert [*records] == [*SOURCES]
    for name, source in SOURCES.items():
        assert records[name]["command"] == f"pate-fed {source.command}"
        assert records[name]["numbers"].keys() == source.finds.keys()
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", records[name]["renewed"]["on"])
        shown = {number for _, phrase in source.shows for number in re.findall(r"{(\w+)}", phrase)}
        assert shown == source.finds.keys(), name


@pytest.mark.parametrize("page", WHOLE)
def test_every_epsilon_of_a_page_is_named(page: str) -> None:
    text = pages()[page]
    named = {
        begin
        for source in SOURCES.values()
        for shown, phrase in source.shows
        if shown == page
        for _, begin, _ in places(text, phrase)
    }
    found = {one.start() for one in re.finditer(r"(?<![\w.])\d+\.\d{3}(?![\d.])", text)}
    assert [text[at - 40 : at + 10] for at in sorted(found - named)] == []


def test_a_number_that_was_typed_otherwise_is_found_and_renewed() -> None:
    texts, kept = pages(), kept_numbers()
    epsilon = kept["gnmax"]["epsilon"]
    wrong = {**texts, FIRST_RUN: texts[FIRST_RUN].replace(epsilon, "9.999")}
    assert differences(wrong, kept) == [f"{FIRST_RUN}: gnmax.epsilon is {epsilon}, not 9.999"]
    assert renewed(wrong, kept) == texts
    longer = {**kept, "gnmax": {**kept["gnmax"], "epsilon": "12.345", "student": "7.5"}}
    assert differences(renewed(texts, longer), longer) == []


def test_a_page_that_was_reworded_is_found() -> None:
    texts = pages()
    with pytest.raises(LookupError, match="query"):
        differences(
            {**texts, FIRST_RUN: texts[FIRST_RUN].replace("Answers every", "")}, kept_numbers()
        )


def test_the_readmes_picture_shows_the_first_run() -> None:
    shown = " ".join(TERMINAL_TEXT.sub(" ", TERMINAL.read_text("utf-8")).split())
    shown = html.unescape(shown).replace("\N{NO-BREAK SPACE}", " ")
    assert (
        numbers_in(" ".join(shown.split()), {}, SOURCES["first-run"]) == kept_numbers()["first-run"]
    )


def test_a_phrase_is_found_across_lines_of_a_comment() -> None:
    page = "# a budget of epsilon\n# 5 pays for 182\n#   queries, 1,118.5 of them"
    found = places(page, "epsilon 5 pays for {queries} queries, {answers} of them")
    assert [(name, page[begin:end]) for name, begin, end in found] == [
        ("queries", "182"),
        ("answers", "1,118.5"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", CHEAP)
def test_a_command_prints_the_numbers_of_the_file(
    name: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where it fails: `make numbers` writes the new ones into file and pages."""

    def here(words: list[str], folder: Path) -> str:
        monkeypatch.chdir(folder)
        capsys.readouterr()
        assert exit_code_of(*words) in (0, 3)
        return capsys.readouterr().out

    # Figures of the report cost as much as the run, and have no number of these.
    monkeypatch.setattr("coordinator.runs.results.render_report", lambda *_, **__: "")
    assert measured(SOURCES[name], here) == kept_numbers()[name]
