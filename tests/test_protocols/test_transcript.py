from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.errors import BadSignatureError
from protocols.identity import SigningIdentity
from protocols.transcript import EMPTY_HEAD, Transcript, altered_file, seal_files, verify_seal
from tests.support.vectors import read_vectors

VECTORS = read_vectors("transcript")
_entry = st.tuples(
    st.sampled_from(["plan", "setup", "settlement"]), st.binary(min_size=32, max_size=32)
)
_entries = st.lists(_entry, max_size=6)


def chain(entries: list[tuple[str, bytes]]) -> Transcript:
    transcript = Transcript()
    for kind, digest in entries:
        transcript = transcript.append(kind, digest)
    return transcript


def test_heads_are_known() -> None:
    assert Transcript().head.hex() == EMPTY_HEAD.hex() == VECTORS["empty_head"]
    transcript = Transcript()
    for entry in VECTORS["entries"]:
        transcript = transcript.append(entry["kind"], bytes.fromhex(entry["digest"]))
        assert transcript.head.hex() == entry["head"]


@given(_entries, _entries)
def test_heads_agree_for_equal_histories_only(
    one: list[tuple[str, bytes]], other: list[tuple[str, bytes]]
) -> None:
    assert (chain(one).head == chain(other).head) == (one == other)


def test_appending_leaves_the_older_transcript_alone() -> None:
    old = chain([("plan", bytes(32))])
    head = old.head
    old.append("plan", bytes(32))
    assert (old.head, len(old.entries)) == (head, 1)


# The seal of a run's files: whose it is, of which run, and which file differs ------------------


COORDINATOR = SigningIdentity.generate()
HEAD = b"h" * 32
FILES = {"labels.csv": "aa", "metrics.json": "bb"}
SEAL = seal_files(FILES, head=HEAD, coordinator=COORDINATOR)


def differing(digests: Mapping[str, str], *, head: bytes = HEAD) -> str:
    transcript = f"{{}}\n{json.dumps({'head': head.hex()})}\n"
    return altered_file(
        json.dumps(SEAL), transcript=transcript, digests=digests, coordinator=COORDINATOR.public
    )


@pytest.mark.parametrize(
    "changed",
    [{"head": bytes(32).hex()}, {"files": {**FILES, "labels.csv": "cc"}}, {"files": {}}],
    ids=["another run", "another file", "no file"],
)
def test_a_changed_seal_is_not_the_coordinators(changed: dict[str, Any]) -> None:
    verify_seal(SEAL, coordinator=COORDINATOR.public)
    with pytest.raises(BadSignatureError):
        verify_seal({**SEAL, **changed}, coordinator=COORDINATOR.public)


def test_a_seal_is_of_one_identity() -> None:
    with pytest.raises(BadSignatureError):
        verify_seal(SEAL, coordinator=SigningIdentity.generate().public)


def test_the_first_file_that_differs_or_is_gone_is_named() -> None:
    assert differing(FILES) == ""
    assert differing({**FILES, "more.txt": "dd"}) == ""
    assert differing({**FILES, "metrics.json": "cc"}) == "metrics.json"
    assert differing({}) == "labels.csv"


def test_a_seal_of_another_run_is_refused() -> None:
    with pytest.raises(BadSignatureError, match="run"):
        differing(FILES, head=bytes(32))
