"""The page of the wire format says what the code does."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest

from coordinator.runs.labeling import deciding
from pate_fed import public_images, public_rows, queries, releases
from pate_fed.accounting.costs import NoisePlace, PrivacyUnit
from pate_fed.mechanisms import SPECS
from pate_fed.releases import NoisyRelease, Outcome
from pate_fed.terms import BatchTerms, RunTerms
from protocols import dealing, envelope, pair_keys, shamir
from protocols.fields import VERDICT_MAC_BYTES
from protocols.masked import MaskedSum
from protocols.rounds.opening.at_party import STAGE
from protocols.rounds.verdicts import VERDICT_STAGE
from protocols.suites import SUITES
from protocols.transcript import FORMAT_VERSION
from protocols.transcript_verifier import FOLLOWERS
from protocols.wire import MAX_PACKET_FRAMES, MESSAGE_TYPES, PROTOCOL_VERSION
from tests.support.make_vectors import VECTORS
from tests.support.reference_cbor import cbor
from tests.support.vectors import read_vectors
from tests.support.wire_format_tables import PAGE, tables, written_tables

ROOT = Path(__file__).parents[1]
TEXT = PAGE.read_text(encoding="utf-8")
SOURCES = [
    path
    for package in ("protocols", "party", "coordinator/tally")
    for path in (ROOT / package).rglob("*.py")
]


def names_of(kind: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}


def section(title: str) -> str:
    return TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def prose(title: str) -> str:
    """A section on one line, for phrases that a line break may cut."""
    return " ".join(section(title).split())


def test_the_tables_of_messages_are_those_of_the_code() -> None:
    # Where this fails: python -m tests.support.wire_format_tables
    assert written_tables(TEXT) == tables()
    for kind in MESSAGE_TYPES.values():
        assert f"\n{kind.TYPE} {kind.__name__}: " in section("Messages")


def test_every_domain_of_the_code_is_on_the_page_and_no_other() -> None:
    listed = set(re.findall(r"^- `(pate-fed/1/[^`]+)`: ", section("Domains"), re.MULTILINE))
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
    assert len(listed) == 15


@pytest.mark.parametrize("label", ["root", "ratchet", "stream", "confirm", "envelope"])
def test_labels_of_keys_are_those_of_the_code(label: str) -> None:
    source = Path(pair_keys.__file__).read_text(encoding="utf-8")
    assert f'b"{label}\\0"' in source
    assert f"`{label}\\0`" in section("Keys of a pair")


def test_no_other_label_of_a_key_is_in_the_code() -> None:
    source = Path(pair_keys.__file__).read_text(encoding="utf-8")
    labels = set(re.findall(r'b"([a-z]+)\\0"', source))
    assert labels == {"root", "ratchet", "stream", "confirm", "envelope"}


@pytest.mark.parametrize("suite", SUITES)
def test_sizes_of_suites_are_those_of_the_code(suite: str) -> None:
    (row,) = re.findall(rf"^\| `{suite}` \|.*$", section("Sealed envelopes"), re.MULTILINE)
    numbers = [int(cell) for cell in row.strip("| ").split("|")[-3:]]
    parties = {"run_id": bytes(32), "sender": bytes(32), "receiver": bytes(32)}
    key = envelope.SealingKey(suite).public_bytes
    sealed = len(envelope.seal(bytes(32), key, suite=suite, **parties))
    assert numbers == [envelope.sealing_key_bytes(suite), sealed - 48, sealed]


def test_kinds_of_a_transcript_are_those_of_the_code() -> None:
    listed = set(re.findall(r"^\| `([a-z ]+)` \| of ", section("Transcripts"), re.MULTILINE))
    assert listed == {kind for kind in FOLLOWERS if kind and "heads" not in kind} - {"identities"}


def test_bounds_on_the_page_are_those_of_the_code() -> None:
    assert f"at most {MAX_PACKET_FRAMES} byte strings" in prose("Frames")


def test_versions_on_the_page_are_those_of_the_code() -> None:
    assert f"Every byte of version {PROTOCOL_VERSION}," in TEXT
    assert f"{PROTOCOL_VERSION:02x}                      version {PROTOCOL_VERSION}" in section(
        "Frames"
    )
    assert f"83 {PROTOCOL_VERSION:02x} TT" in section("Frames")
    assert f"`version` ({FORMAT_VERSION}) |" in section("Transcripts")


# Terms, results, digests ------------------------------------------------------------------------


def keys_of_table(opening: str) -> list[str]:
    """Keys in the first column of the first table after some words."""
    table = section("Terms and results").partition(opening)[2].partition("|---")[2]
    return re.findall(r"^\| `([a-z0-9_]+)` \|", table.partition("\n\n")[0], re.MULTILINE)


@pytest.mark.parametrize(
    ("opening", "keys"),
    [
        pytest.param("**Terms of a run**", names_of(RunTerms), id="run"),
        pytest.param("**Terms of a batch**", names_of(BatchTerms), id="batch"),
        # Noisy counts are for research and in no record.
        pytest.param("**Results**", names_of(NoisyRelease) - {"counts"}, id="release"),
    ],
)
def test_terms_on_the_page_are_those_of_the_code_in_the_order_of_their_bytes(
    opening: str, keys: set[str]
) -> None:
    assert keys_of_table(opening) == sorted(keys, key=cbor)


@pytest.mark.parametrize("name", SPECS)
def test_parameters_of_mechanisms_are_those_of_the_code(name: str) -> None:
    rows = re.findall(r"^\| (`.*) \| (`.*) \|$", section("Terms and results"), re.MULTILINE)
    (row,) = [row for row in rows if f"`{name}`" in row[0]]
    assert set(re.findall(r"`(\w+)`", row[1])) == set(SPECS[name].parameters)


def test_names_in_terms_are_those_of_the_code() -> None:
    text = section("Terms and results")
    for names in (SPECS, *map(get_args, (NoisePlace, PrivacyUnit))):
        for name in names:
            assert f"`{name}`" in text, name


@pytest.mark.parametrize("outcome", list(Outcome), ids=lambda outcome: outcome.name)
def test_outcomes_on_the_page_are_those_of_the_code(outcome: Outcome) -> None:
    assert f"{outcome.value} {outcome.name.lower().replace('_', ' ')}" in text_of_results()


def text_of_results() -> str:
    return section("Terms and results").partition("**Results**")[2]


def test_lines_of_digests_are_those_of_the_code() -> None:
    listed = re.findall(
        r"\| `(pate-fed [a-z ]+?)(?: R(?:,C)?)?` ", section("Digests of public data")
    )
    coded = set()
    for module in (public_images, public_rows, queries, releases, deciding):
        source = Path(str(module.__file__)).read_text(encoding="utf-8")
        coded |= set(re.findall(r'"(pate-fed [a-z ]+?) ?(?:\{[^"]*\})?\\n"', source))
    assert set(listed) == coded
    assert len(listed) == 7


# Shares ----------------------------------------------------------------------------------------


def test_sizes_of_shares_are_those_of_the_code() -> None:
    text = prose("Shares of a batch's keys")
    assert f"integers modulo {shamir.PRIME}" in text
    assert f"A share has {shamir.SHARE_BYTES} bytes" in text
    sealed = dealing.DIGEST_BYTES + envelope.TAG_BYTES
    assert f"{sealed} + {shamir.SHARE_BYTES} n bytes" in text
    assert dealing.disclosed_bytes(5, 0) == 34 + 32
    assert dealing.disclosed_bytes(5, 1) == 34 + 34 + 3 * 32


def test_macs_and_certificates_on_the_page_are_those_of_the_code() -> None:
    text, keys = prose("Verdicts and certificates"), prose("Keys of a pair")
    assert f"first {VERDICT_MAC_BYTES} bytes" in text
    assert "t = floor(2n/3) + 1" in text
    assert [MaskedSum.threshold(n) for n in (5, 10, 100)] == [2 * n // 3 + 1 for n in (5, 10, 100)]
    for stage in (STAGE, VERDICT_STAGE):
        assert f"`envelope\\0` and `{stage}` and `\\0`" in keys


def test_labels_of_a_dealing_are_those_of_the_code() -> None:
    source = Path(dealing.__file__).read_text(encoding="utf-8")
    coded = set(re.findall(r'b"([a-z]+)\\0"', source))
    assert coded == {"secret", "share", "keys", "column"}
    for label in coded:
        assert f'"{label}\\0"' in section("Shares of a batch's keys")


def test_epochs_that_may_be_skipped_are_those_of_the_code() -> None:
    assert f"{pair_keys.MAX_SKIPPED_EPOCHS} higher at most" in prose("Keys of a pair")


# Transcripts -----------------------------------------------------------------------------------


def test_the_order_of_lines_is_that_of_the_verifier() -> None:
    table = section("Transcripts").partition("| after | comes |")[2].partition("\n\n")[0]
    listed: dict[str, set[str]] = {}
    for after, comes in re.findall(r"^\| (.*) \| (.*) \|$", table, re.MULTILINE):
        for one in lines_named(after) or {""}:
            listed[one] = lines_named(comes)
    assert listed == {one: set(comes) for one, comes in FOLLOWERS.items()}


def lines_named(cell: str) -> set[str]:
    """Lines as the verifier names them: "heads setup" for `heads` of stage `setup`."""
    joined = re.sub(r"`heads` of stage `(\w+)`", r"`heads \1`", cell)
    return set(re.findall(r"`([a-z ]+)`", joined))


@pytest.mark.parametrize("kind", ["identities", "plan", "verdict", "heads"])
def test_keys_of_lines_are_those_of_a_transcript(kind: str) -> None:
    text = read_vectors("written_transcripts")["good"]["masked"]
    rows = [json.loads(line) for line in text.splitlines()]
    written = next(row for row in rows if row["kind"] == kind)
    table = section("Transcripts").partition("| line | keys |")[2].partition("\n\n")[0]
    (cell,) = re.findall(rf"^\| [^|]*`{kind}`[^|]* \| (.*) \|$", table, re.MULTILINE)
    inner = set(written["signatures"][0]) if "signatures" in written else set()
    assert set(re.findall(r"`([a-z_]+)`", cell)) == set(written) | inner


# Vectors ---------------------------------------------------------------------------------------


def test_every_vector_of_a_format_is_named_on_the_page() -> None:
    formats = {*VECTORS, "envelopes"}
    listed = re.findall(r"^\| `([a-z_]+)\.json` \|", section("Test vectors"), re.MULTILINE)
    assert set(listed) == formats
    assert len(listed) == len(formats)
    assert set(re.findall(r"`([a-z_]+)\.json`", TEXT)) == formats
    assert all((ROOT / "tests" / "vectors" / f"{name}.json").is_file() for name in formats)


@pytest.mark.parametrize("name", [*VECTORS, "envelopes"])
def test_a_file_has_spoiled_vectors_where_the_page_says_so(name: str) -> None:
    (row,) = re.findall(rf"^\| `{name}\.json` \|.*$", section("Test vectors"), re.MULTILINE)
    said = len(row.strip("| ").split("|")) == 3
    assert said is ("spoiled" in json.dumps(read_vectors(name)))
