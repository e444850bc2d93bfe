"""A written transcript against everybody who would rather that it said something else."""

from __future__ import annotations

import ast
import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocols import transcript_verifier
from protocols.identity import SigningIdentity
from protocols.masked import MaskedSum
from protocols.messages import Verdict
from protocols.rounds import CoordinatorRound
from protocols.transcript import HeadsRecord, Transcript, transcript_lines
from protocols.transcript_verifier import EXIT_BROKEN, EXIT_GOOD, main, verify_transcript
from tests.support.markers import sampled
from tests.support.rounds import MemoryRun, ready_run

Lines = list[str]


def batch(run: MemoryRun, number: int) -> None:
    run.sum([np.arange(3)] * len(run.parties), batch=number)
    run.settle(result=b"labels")


def closed_run(batches: int = 2, parties: int = 3) -> MemoryRun:
    run = ready_run(parties)
    for number in range(batches):
        batch(run, number)
    run.close()
    return run


def written(coordinator: CoordinatorRound) -> Lines:
    return [json.dumps(line, sort_keys=True) for line in coordinator.closing.signed_transcript()]


def text_of(lines: Lines) -> str:
    return "".join(f"{line}\n" for line in lines)


def first_bad_line(lines: Lines) -> int | None:
    return verify_transcript(text_of(lines)).line


RUN = closed_run()
LINES = written(RUN.coordinator)
KINDS = ["identities", "run record", "setup", "heads", *["plan", "settlement"] * 2, "heads"]


def test_a_whole_transcript_is_good() -> None:
    verdict = verify_transcript(text_of(LINES))
    coordinator = RUN.coordinator
    assert verdict.is_good
    assert [json.loads(line)["kind"] for line in LINES] == KINDS
    assert verdict.entries == len(coordinator.transcript.entries) == 6
    assert verdict.run_id == coordinator.run_id.hex()
    assert verdict.head == coordinator.transcript.head.hex()
    assert verdict.coordinator == RUN.coordinator_identity.fingerprint.hex()
    assert verdict.parties == tuple(seat.hex() for seat in coordinator.seats)


@sampled("parties", cases=2)
@pytest.mark.parametrize(("parties", "needed"), [(3, 3), (4, 3), (5, 3), (6, 4), (30, 16)])
def test_a_transcript_with_all_heads_needs_more_than_half_to_lie_for_another(
    parties: int, needed: int
) -> None:
    """Another good transcript needs no more heads than that, all of them of liars."""
    verdict = verify_transcript(text_of(written(closed_run(0, parties).coordinator)))
    assert len(verdict.heads_compared) == parties
    assert verdict.liars_needed == needed


@pytest.mark.slow
@sampled("batches", "parties")
@pytest.mark.parametrize("batches", [0, 1, 5])
@pytest.mark.parametrize("parties", [30, 3])
def test_transcripts_of_many_shapes_are_good(batches: int, parties: int) -> None:
    assert verify_transcript(text_of(written(closed_run(batches, parties).coordinator))).is_good


def test_a_void_batch_is_in_the_transcript_and_good() -> None:
    run = ready_run(3)
    plan = run.open_plan(4)
    for fp, party in run.parties.items():
        run.to_party("plan", fp, plan)
        party.refuse("PF-301")
    run.settle(released=False)
    batch(run, 1)
    run.close()
    assert first_bad_line(written(run.coordinator)) is None


def test_a_transcript_holds_hashes_signatures_and_keys_only() -> None:
    run = MemoryRun(3)
    run.set_up(terms=b"marker of terms")
    run.sum([np.full(3, 1_234_567_891)] * 3)
    run.settle(result=b"marker of a result")
    run.close()
    text = text_of(written(run.coordinator))
    for needle in (b"marker", b"labels"):
        assert needle.decode() not in text
        assert needle.hex() not in text
    assert str(1_234_567_891) not in text
    words = {
        word
        for line in text.splitlines()
        for word in json.dumps(json.loads(line)).replace('"', " ").split()
        if word.isalnum() and len(word) not in (64, 128) and not word.isdigit()
    }
    assert words == {
        "kind", "identities", "version", "coordinator", "parties", "signature", "run", "record",
        "digest", "head", "signatures", "sender", "setup", "heads", "stage", "epoch", "plan",
        "settlement", "closing",
    }  # fmt: skip


# Who only has the file -------------------------------------------------------------------------


@pytest.mark.slow
def test_every_changed_byte_is_found_and_its_line_named() -> None:
    text = text_of(LINES)
    places = range(0, len(text), 7)
    assert len(places) > 700
    for place in places:
        changed = text[:place] + chr(ord(text[place]) ^ 1) + text[place + 1 :]
        assert verify_transcript(changed).line == text.count("\n", 0, place) + 1, place


def test_every_line_end_is_needed() -> None:
    text = text_of(LINES)
    for place in (place for place, letter in enumerate(text) if letter == "\n"):
        line = text.count("\n", 0, place) + 1
        for other in ("", " ", "\r\n", "\n\n"):
            found = verify_transcript(text[:place] + other + text[place + 1 :]).line
            assert found == line + (other == "\n\n")


@pytest.mark.parametrize("kept", range(len(LINES)))
def test_a_transcript_cut_after_a_line_names_what_is_missing(kept: int) -> None:
    verdict = verify_transcript(text_of(LINES[:kept]))
    assert verdict.line == kept + 1
    assert ("heads" in verdict.must, verdict.got) == (True, "")


def test_any_two_lines_that_change_places_are_found() -> None:
    for one in range(len(LINES)):
        for other in range(one + 1, len(LINES)):
            swapped = LINES.copy()
            swapped[one], swapped[other] = swapped[other], swapped[one]
            assert first_bad_line(swapped) == one + 1


def test_any_line_that_is_dropped_or_comes_twice_is_found() -> None:
    for place in range(len(LINES)):
        assert first_bad_line(LINES[:place] + LINES[place + 1 :]) == place + 1
        assert first_bad_line(LINES[: place + 1] + LINES[place:]) == place + 2


def test_lines_of_another_run_of_the_same_people_do_not_fit() -> None:
    """The same coordinator, the same parties: every signature is by the right person."""
    run = closed_run()
    lines = written(run.coordinator)
    run.new_run()
    run.set_up()
    batch(run, 0)
    batch(run, 1)
    run.close()
    other_lines = written(run.coordinator)
    assert first_bad_line(other_lines) is None
    assert other_lines[0] == lines[0]
    for place in range(1, len(lines)):
        mixed = [*lines[:place], other_lines[place], *lines[place + 1 :]]
        assert first_bad_line(mixed) in (place + 1, place + 2)
        assert first_bad_line([*lines[:place], *other_lines[place:]]) == (
            None if place == 1 else place + 1
        )


@pytest.mark.parametrize("place", range(4, 8))
def test_who_reckons_the_heads_anew_cannot_sign_them(place: int) -> None:
    """An outsider edits an entry and makes the chain whole again."""
    rows = [json.loads(line) for line in LINES]
    rows[place]["digest"] = "ab" * 32
    rows[place]["signatures"][0]["digest"] = "ab" * 32
    chain = Transcript()
    for row in rows:
        if "digest" in row:
            chain = chain.append(row["kind"], bytes.fromhex(row["digest"]))
            row["head"] = chain.head.hex()
    rows[-1]["head"] = chain.head.hex()
    assert first_bad_line([json.dumps(row, sort_keys=True) for row in rows]) == place + 1


def test_an_outsiders_own_run_has_other_fingerprints() -> None:
    forged = text_of(written(closed_run().coordinator))
    parties = [seat.hex() for seat in RUN.coordinator.seats]
    mine = RUN.coordinator_identity.fingerprint.hex()
    assert verify_transcript(forged).is_good  # nothing in the file says whose it must be
    assert verify_transcript(forged, coordinator=mine).line == 1
    assert verify_transcript(forged, parties=parties).line == 1
    assert verify_transcript(text_of(LINES), coordinator=mine, parties=parties).is_good
    assert verify_transcript(text_of(LINES), parties=parties[:2]).line == 1


# The coordinator itself ------------------------------------------------------------------------


def heads_of(coordinator: CoordinatorRound) -> tuple[HeadsRecord, ...]:
    assert coordinator.history is not None
    return coordinator.history.heads


def rewritten(change: Callable[[Transcript, list[HeadsRecord]], Transcript]) -> Lines:
    """What the coordinator, with its key, can write of another history."""
    coordinator = RUN.coordinator
    heads = list(heads_of(coordinator))
    chain = change(coordinator.transcript, heads)
    fresh = Transcript()
    for entry in chain.entries:
        fresh = fresh.append(entry.kind, entry.digest, entry.signatures)
    last = HeadsRecord("closing", len(fresh.entries), heads[-1].epoch, heads[-1].signed)
    rows = transcript_lines(
        fresh,
        [heads[0], last],
        parties=[coordinator.parties[seat] for seat in coordinator.seats],
        coordinator=RUN.coordinator_identity,
    )
    return [json.dumps(row, sort_keys=True) for row in rows]


def test_a_coordinator_that_rewrites_nothing_is_good() -> None:
    assert rewritten(lambda chain, _: chain) == LINES


@pytest.mark.parametrize(
    ("change", "line"),
    [
        pytest.param(lambda c, _: Transcript((*c.entries[:2], *c.entries[4:])), 7, id="drops"),
        pytest.param(
            lambda c, _: Transcript((*c.entries[:2], *c.entries[4:], *c.entries[2:4])),
            9,
            id="moves",
        ),
        pytest.param(lambda c, _: Transcript((*c.entries, *c.entries[2:4])), 11, id="adds"),
        pytest.param(
            lambda c, _: Transcript((c.entries[0], *c.entries[2:])), 3, id="forgets the setup"
        ),
    ],
)
def test_a_coordinator_that_tells_another_history_lacks_the_parties_signatures(
    change: Callable[[Transcript, list[HeadsRecord]], Transcript], line: int
) -> None:
    assert first_bad_line(rewritten(change)) == line


@pytest.mark.parametrize("place", range(6))
def test_a_signature_of_something_else_does_not_make_an_entry(place: int) -> None:
    """The coordinator writes another digest above true signatures."""

    def change(chain: Transcript, heads: list[HeadsRecord]) -> Transcript:
        entry = dataclasses.replace(chain.entries[place], digest=bytes(range(32)))
        return Transcript((*chain.entries[:place], entry, *chain.entries[place + 1 :]))

    verdict = verify_transcript(text_of(rewritten(change)))
    assert verdict.line == (place + 2 if place < 2 else place + 3)
    assert verdict.must.startswith("an entry ")


@pytest.mark.parametrize(
    "order",
    [
        pytest.param((1, 0, 2), id="another order"),
        pytest.param((0, 0, 1), id="one twice"),
        pytest.param((), id="none"),
    ],
)
def test_parties_stand_once_each_in_their_order(order: tuple[int, ...]) -> None:
    coordinator = RUN.coordinator
    keys = [coordinator.parties[seat] for seat in coordinator.seats]
    rows = transcript_lines(
        coordinator.transcript,
        heads_of(coordinator),
        parties=[keys[place] for place in order],
        coordinator=RUN.coordinator_identity,
    )
    verdict = verify_transcript(text_of([json.dumps(row, sort_keys=True) for row in rows]))
    assert verdict.line == 1
    assert verdict.must.startswith("parties ")


@pytest.mark.parametrize("forged", [(3,), (8,), (3, 8)], ids=["setup", "closing", "both"])
def test_an_entry_that_calls_itself_the_parties_heads_is_broken(forged: tuple[int, ...]) -> None:
    """The coordinator signs lines of its own in the place of those that all parties sign."""
    names = {3: "heads setup", 8: "heads closing"}
    me, rows, chain = RUN.coordinator_identity, [json.loads(line) for line in LINES], Transcript()
    for place in forged:
        purpose, digest = names[place], bytes(range(32))
        signature = me.sign(purpose=purpose, digest=digest)
        signed = {
            "sender": me.fingerprint.hex(),
            "digest": digest.hex(),
            "signature": signature.hex(),
        }
        rows[place] = {"kind": purpose, "digest": digest.hex(), "signatures": [signed]}
    for row in rows:
        if "digest" in row:
            chain = chain.append(row["kind"], bytes.fromhex(row["digest"]))
            row["head"] = chain.head.hex()
            row["head_signature"] = me.sign(purpose="transcript head", digest=chain.head).hex()
    verdict = verify_transcript(text_of([json.dumps(row, sort_keys=True) for row in rows]))
    assert verdict.line == forged[0] + 1
    assert verdict.heads_compared == ()


def test_signatures_of_a_setup_count_for_the_setup_only() -> None:
    ready, closing = json.loads(LINES[3]), json.loads(LINES[8])
    closing["signatures"] = ready["signatures"]
    assert first_bad_line([*LINES[:8], json.dumps(closing, sort_keys=True)]) == 9


def test_a_run_that_not_all_parties_closed_is_told_from_one_that_they_did() -> None:
    run = ready_run(3)
    batch(run, 0)
    assert first_bad_line(written(run.coordinator)) == 7
    closing = run.coordinator.closing.close()
    for seat in run.coordinator.seats[:2]:
        run.to_coordinator("closing", seat, run.to_party("closing", seat, closing))
    verdict = verify_transcript(text_of(written(run.coordinator)))
    assert verdict.line == 7
    assert (verdict.must.split()[0], verdict.got) == ("3", "2")


# Verdicts --------------------------------------------------------------------------------------


def masked_run() -> MemoryRun:
    """A batch of all, one without a party, one that is closed, one that is void."""
    run = ready_run(5, form=MaskedSum)
    for number, absent in enumerate(([], [2])):
        run.sum([np.arange(3)] * 5, batch=number, absent=absent)
        run.settle(result=b"labels")
    for number in (2, 3):
        run.open_plan(3, batch=number)
        if number == 2:
            run.close_plan()
        run.settle(released=False)
    run.close()
    return run


MASKED = masked_run()
MASKED_LINES = written(MASKED.coordinator)
VERDICTS = [
    place for place, line in enumerate(MASKED_LINES) if json.loads(line)["kind"] == "verdict"
]
OF_ALL, OF_FOUR, CLOSED = VERDICTS
SEATS = [seat.hex() for seat in MASKED.coordinator.seats]
Row = dict[str, Any]


def test_a_transcript_with_verdicts_is_good() -> None:
    verdict = verify_transcript(text_of(MASKED_LINES))
    assert verdict.is_good
    assert verdict.entries == 2 + 3 * 3 + 2
    rows = [json.loads(MASKED_LINES[place]) for place in VERDICTS]
    assert [row["survivors"] for row in rows] == [SEATS, [*SEATS[:2], *SEATS[3:]], []]
    assert [len(row["signatures"]) for row in rows] == [4, 4, 4]


def with_row(place: int, row: Row) -> Lines:
    changed = json.dumps(row, sort_keys=True)
    return [*MASKED_LINES[:place], changed, *MASKED_LINES[place + 1 :]]


def signed_by(seat: int, digest: str) -> Row:
    """What a party would sign of a digest, as a line has it."""
    identity = MASKED.identities[MASKED.coordinator.seats[seat]]
    signature = identity.sign(purpose=Verdict.PURPOSE, digest=bytes.fromhex(digest))
    return {"sender": SEATS[seat], "digest": digest, "signature": signature.hex()}


@pytest.mark.parametrize("place", VERDICTS, ids=["all", "four", "closed"])
def test_a_signature_over_something_else_is_no_verdict(place: int) -> None:
    row = json.loads(MASKED_LINES[place])
    for digest in ("ab" * 32, json.loads(MASKED_LINES[place - 1])["digest"]):
        listed = [*row["signatures"][:3], signed_by(4, digest)]
        assert first_bad_line(with_row(place, {**row, "signatures": listed})) == place + 1


@pytest.mark.parametrize("place", VERDICTS, ids=["all", "four", "closed"])
def test_a_verdict_with_too_few_signers_is_named(place: int) -> None:
    row = json.loads(MASKED_LINES[place])
    for kept in range(4):
        verdict = verify_transcript(
            text_of(with_row(place, {**row, "signatures": row["signatures"][:kept]}))
        )
        assert (verdict.line, verdict.kind) == (place + 1, "verdict")
        assert (verdict.must.split()[0], verdict.got) == ("4", str(kept))


@pytest.mark.slow
def test_every_changed_byte_of_a_verdict_is_found() -> None:
    for number, place in enumerate(VERDICTS):  # all have one form: other bytes of each
        line = MASKED_LINES[place]
        for at in range(5 * number % 17, len(line), 17):
            changed = line[:at] + chr(ord(line[at]) ^ 1) + line[at + 1 :]
            lines = [*MASKED_LINES[:place], changed, *MASKED_LINES[place + 1 :]]
            assert first_bad_line(lines) == place + 1, at


# What is not a transcript ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "", "{}", "[]", "null", "1", '"plan"', "{", "\x00", "NaN", '{"kind": NaN}', "[" * 100_000,
        '{"kind": []}', '{"kind": {"kind": 1}}', '{"kind": "heads", "stage": []}',
        '{"kind": "heads", "stage": 1}', '{"kind": "\\ud800"}', "9" * 10_000, '{"kind": 1e999}',
    ],
    ids=lambda line: line[:20] or "empty",
)  # fmt: skip
@pytest.mark.parametrize("place", [0, 1, 4, len(LINES)])
def test_a_line_of_something_else_is_broken(line: str, place: int) -> None:
    lines = [*LINES[:place], line, *LINES[place:]]
    verdict = verify_transcript(text_of(lines))
    assert verdict.line == place + 1
    assert verdict.kind in ("", "identities", "run record")


@sampled()
@pytest.mark.parametrize("place", range(len(LINES)))
def test_a_field_of_another_type_is_broken(place: int) -> None:
    odd: list[Any] = [None, True, 1, -1, 1.5, 2**70, "", "zz", "AB" * 32, [], {}, [[]], [None]]

    def spoiled(value: Any) -> Any:
        """Every way to put an odd value into one place of a value."""
        yield from (other for other in odd if other != value)
        if isinstance(value, dict):
            for key, item in value.items():
                yield {name: held for name, held in value.items() if name != key}
                yield from ({**value, key: other} for other in spoiled(item))
        if isinstance(value, list):
            yield from ([other, *value[1:]] for other in spoiled(value[0]))

    row, tried = json.loads(LINES[place]), 0
    for other in spoiled(row):
        line = json.dumps(other, sort_keys=True)
        if line != LINES[place]:
            tried += 1
            assert first_bad_line([*LINES[:place], line, *LINES[place + 1 :]]) == place + 1, line
    assert tried > 60


# Alone -----------------------------------------------------------------------------------------


def test_the_verifier_imports_the_standard_library_and_cryptography_only() -> None:
    source = Path(transcript_verifier.__file__).read_text(encoding="utf-8")
    roots = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            roots |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level
            roots.add((node.module or "").split(".")[0])
    assert roots - set(sys.stdlib_module_names) == {"cryptography"}


@pytest.mark.parametrize("whole", [True, False])
def test_a_copy_of_the_verifier_runs_on_its_own(tmp_path: Path, whole: bool) -> None:
    copy, file = tmp_path / "check.py", tmp_path / "transcript.jsonl"
    shutil.copyfile(transcript_verifier.__file__, copy)
    file.write_text(text_of(LINES if whole else LINES[:-1]))
    ended = subprocess.run(
        [sys.executable, "-I", copy, file],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stderr == ""
    assert ended.returncode == (EXIT_GOOD if whole else EXIT_BROKEN)
    assert ended.stdout.startswith("good: 6 entries" if whole else "broken: line 9")


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "transcript.jsonl"
    file.write_bytes(b"\xff\xfe\n")
    assert main([str(file)]) == EXIT_BROKEN
    assert capsys.readouterr().out.startswith("broken: line 1: ")
    file.write_text(text_of(LINES))
    stranger = SigningIdentity.generate().fingerprint.hex()
    assert main([str(file), "--coordinator", stranger]) == EXIT_BROKEN
    assert "line 1 (identities)" in capsys.readouterr().out
    assert main([str(file)]) == EXIT_GOOD
    assert " 3 parties\n" in capsys.readouterr().out
    with pytest.raises(SystemExit) as end:
        main([str(tmp_path / "none")])
    assert end.value.code == 2


def test_a_file_of_any_size_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "transcript.jsonl"
    file.write_text(text_of(LINES))
    monkeypatch.setattr(transcript_verifier, "MAX_BYTES", 100)
    with pytest.raises(SystemExit):
        main([str(file)])
    assert "at most 100 bytes" in capsys.readouterr().err


def test_parties_and_coordinator_hold_the_same_chain_as_the_file() -> None:
    head = verify_transcript(text_of(LINES)).head
    assert {party.transcript.head.hex() for party in RUN.parties.values()} == {head}
