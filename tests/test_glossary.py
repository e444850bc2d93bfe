"""The glossary is in order, and the architecture page draws what a batch sends."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from protocols.messages import (
    Dealing,
    MaskedVector,
    Plan,
    Reveal,
    SetProposal,
    Settlement,
    Verdict,
)

DOCS = Path(__file__).parents[1] / "docs"
ARCHITECTURE = (DOCS / "explanation" / "architecture.md").read_text(encoding="utf-8")
GLOSSARY = (DOCS / "reference" / "glossary.md").read_text(encoding="utf-8")
WORDS = re.findall(r"^- \*\*(.+?)\*\*: ", GLOSSARY, re.MULTILINE)


def section(title: str) -> str:
    return ARCHITECTURE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def arrows(block: str) -> list[tuple[str, str, str]]:
    """Messages of a sequence diagram: from, to, text."""
    return re.findall(r"^ +(\w+)->>(\w+): (.+)$", block, re.MULTILINE)


def diagram(title: str) -> list[tuple[str, str, str]]:
    return arrows(section(title).partition("```mermaid")[2].partition("```")[0])


def test_every_line_explains_a_word() -> None:
    assert len(WORDS) == len(re.findall(r"^- ", GLOSSARY, re.MULTILINE)) > 70


def test_words_are_in_order_and_come_once() -> None:
    assert sorted(set(WORDS), key=str.lower) == WORDS


@pytest.mark.parametrize(
    "word",
    [
        "noise share",
        "survivor, survivor set",
        "dealing",
        "proposal",
        "verdict",
        "certificate",
        "close a plan",
        "bound",
        "reveal",
        "abandon",
        "journal",
    ],
)
def test_words_of_the_protocol_are_explained(word: str) -> None:
    assert word in WORDS


def test_the_three_exchanges_are_drawn_in_their_order() -> None:
    drawn = diagram("A batch that stands losses")
    sent = [
        (sender, text.partition(",")[0].partition(":")[0])
        for sender, to, text in drawn
        if sender != to
    ]
    kinds = (Plan, Dealing, MaskedVector, SetProposal, Verdict, Reveal, Settlement)
    names = [*(kind.__name__ for kind in kinds), "the peers' MACs"]
    found = [(sender, name) for sender, text in sent for name in names if name in text]
    assert found == [
        ("C", "Plan"),
        ("C", "Plan"),
        ("P", "Dealing"),
        ("P", "MaskedVector"),
        ("C", "SetProposal"),
        ("P", "Verdict"),
        ("C", "the peers' MACs"),
        ("P", "Reveal"),
        ("C", "Settlement"),
        ("C", "Settlement"),
    ]


def test_a_verdict_is_drawn_in_the_journal_before_it_is_signed_and_proven_before_a_share() -> None:
    drawn = diagram("A batch that stands losses")
    (noted,) = [place for place, (_, _, text) in enumerate(drawn) if "journal: this" in text]
    (signed,) = [place for place, (_, _, text) in enumerate(drawn) if "Verdict" in text]
    (opened,) = [place for place, (_, _, text) in enumerate(drawn) if "Open columns" in text]
    (proven,) = [place for place, (_, _, text) in enumerate(drawn) if "the peers' MACs" in text]
    assert drawn[noted][:2] == drawn[opened][:2] == ("P", "P")
    assert noted < signed < proven < opened
