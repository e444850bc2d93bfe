"""The page of the wire format says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from party import file_journal
from protocols import envelope, pair_keys
from protocols.messages import MESSAGE_TYPES
from protocols.transcript_verifier import FOLLOWERS
from protocols.wire import MAX_PACKET_FRAMES
from tests.support.wire_format_tables import PAGE, tables, written_tables

ROOT = Path(__file__).parents[1]
TEXT = PAGE.read_text(encoding="utf-8")
SOURCES = [*(ROOT / "protocols").rglob("*.py"), *(ROOT / "party").rglob("*.py")]


def section(title: str) -> str:
    return TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_the_tables_of_messages_are_those_of_the_code() -> None:
    # Where this fails: python -m tests.support.wire_format_tables
    assert written_tables(TEXT) == tables()
    for kind in MESSAGE_TYPES.values():
        assert f"### {kind.TYPE} {kind.__name__}\n" in TEXT


def test_every_domain_of_the_code_is_on_the_page_and_no_other() -> None:
    listed = set(re.findall(r"^\| `(pate-fed/1/[^`]+)` \|", section("Domains"), re.MULTILINE))
    coded = set()
    for source in SOURCES:
        text = source.read_text(encoding="utf-8")
        coded |= set(re.findall(r'b"(pate-fed/1/[^"]*\\0)"', text))
        # The verifier, which stands alone, puts its domains together.
        coded |= {
            f"pate-fed/1/{name}" for name in re.findall(r'_DOMAIN \+ b"([a-z ]+\\0)"', text)
            if source.name == "transcript_verifier.py"
        }  # fmt: skip
    assert listed == coded
    assert len(listed) == 11


@pytest.mark.parametrize("label", ["root", "ratchet", "stream", "confirm", "envelope"])
def test_labels_of_keys_are_those_of_the_code(label: str) -> None:
    source = Path(pair_keys.__file__).read_text(encoding="utf-8")
    assert f'b"{label}\\0"' in source
    assert f"`{label}\\0`" in section("Keys of a pair")


def test_no_other_label_of_a_key_is_in_the_code() -> None:
    source = Path(pair_keys.__file__).read_text(encoding="utf-8")
    labels = set(re.findall(r'b"([a-z]+)\\0"', source))
    assert labels == {"root", "ratchet", "stream", "confirm", "envelope"}


@pytest.mark.parametrize("suite", sorted(envelope.SUITES))
def test_sizes_of_suites_are_those_of_the_code(suite: str) -> None:
    (row,) = re.findall(rf"^\| `{suite}` \|.*$", section("Sealed envelopes"), re.MULTILINE)
    numbers = [int(cell) for cell in row.strip("| ").split("|")[-3:]]
    sealed = envelope.sealed_bytes(suite, 32)
    assert numbers == [envelope.sealing_key_bytes(suite), sealed - 48, sealed]


def test_kinds_of_a_transcript_are_those_of_the_code() -> None:
    listed = set(re.findall(r"^\| `([a-z ]+)` \| of ", section("Transcripts"), re.MULTILINE))
    assert listed == {kind for kind in FOLLOWERS if kind and "heads" not in kind} - {"identities"}


def test_bodies_of_a_journal_are_those_of_the_code() -> None:
    source = Path(file_journal.__file__).read_text(encoding="utf-8")
    listed = re.findall(r'^\| `\["([a-z]+)"', section("A party's journal"), re.MULTILINE)
    assert listed == re.findall(r'case \["([a-z]+)"', source)
    assert f"{file_journal.MAX_RECORD_BYTES:,} bytes" in section("A party's journal")


def test_bounds_on_the_page_are_those_of_the_code() -> None:
    assert f"at most {MAX_PACKET_FRAMES} byte strings" in section("Frames")


def test_every_vector_of_a_format_is_named_on_the_page() -> None:
    formats = {"wire_frames", "packets", "envelopes", "pair_keys", "keystream", "masked_vectors"}
    formats |= {"transcript", "written_transcripts", "journals"}
    assert set(re.findall(r"`([a-z_]+)\.json`", TEXT)) == formats
    assert all((ROOT / "tests" / "vectors" / f"{name}.json").is_file() for name in formats)
