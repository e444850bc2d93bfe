from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocols.transcript import EMPTY_HEAD, Transcript
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
