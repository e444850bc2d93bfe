"""The search for a marker histogram in every kind of run, with parties' journals on disk.

Either form, noise at the coordinator and at the parties, a hospital lost on the way: packets, logs,
screens, files, objects, tracebacks and what they hold are searched for one hospital's votes, for
the exact sums, and for the noise that a hospital drew.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.errors import VoidBatchError
from party.storage import Journal, PartyDatabase
from pate_fed.mechanisms import DistributedNoise
from pate_fed.votes import NoiseShare
from tests.support.attacked import KINDS, PARTIES, Kind
from tests.support.command import Command, pate_fed, write_table
from tests.support.federation import Federation, kinds
from tests.support.marker import (
    MARKED_TEACHERS,
    MARKERS,
    findings,
    findings_in_files,
    held_in_memory,
    marked_votes,
    printed,
)
from tests.support.markers import sampled
from tests.test_coordinator.test_marker import (
    COUNTS,
    SIGMA,
    mark_hospitals,
    raising_with_votes,
)

__all__ = ["pate_fed"]  # a fixture

MARKED, LOST, FEW = 1, 3, 1_000
"""The marked hospital, one that is lost, and the teachers of all hospitals but the marked one."""
Row = tuple[int, ...]


def marked_federation(kind: Kind, folder: Path) -> Federation:
    """A federation with journals on disk, whose second party votes the marker histogram."""
    terms: dict[str, Any] = {"sigma2": 2 * SIGMA, "vote_threshold": 0.3 * MARKED_TEACHERS}
    federation = kind.federation(
        teachers=MARKED_TEACHERS,
        votes={MARKED: marked_votes},
        weights={place: (1,) * FEW for place in range(PARTIES) if place != MARKED},
        terms=terms,
    )
    for place, node in enumerate(federation.nodes):
        node._journal = Journal(PartyDatabase.create(folder / f"{place}.db"))
        node._round = node._new_round()
    federation.run.set_up()
    return federation


def odd(row: Iterable[Any]) -> Row:
    """Entries that are worth looking for: of five digits or more."""
    return tuple(int(number) for number in row if abs(number) >= 10_000)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Row]:
    """Rows of all noise shares that any party drew."""
    found: list[Row] = []
    draw = DistributedNoise.draw

    def noting(self: DistributedNoise, *arguments: Any, **named: Any) -> NoiseShare:
        share = draw(self, *arguments, **named)
        if len(found) < 6:  # each takes its time to be looked for
            found.extend(numbers for row in share.counts if len(numbers := odd(row)) >= 2)
        return share

    monkeypatch.setattr(DistributedNoise, "draw", noting)
    return found


def sums(parties: Iterable[int]) -> list[Row]:
    """Exact sums of these parties' votes on queries 0 and 1."""
    peers = FEW * sum(place != MARKED for place in parties)
    return [
        (peers + MARKERS[0], MARKERS[1], MARKERS[2]),
        (MARKERS[0], peers + MARKERS[1], MARKERS[2]),
    ]


def found_in(
    federation: Federation,
    folder: Path,
    rows: Sequence[Row],
    *texts: str,
    noise: Sequence[Row] = (),
    memory: bool = True,
) -> list[str]:
    """Every place that holds one of the rows, or two numbers of a row of noise.

    One number of noise is any number: of five digits it may be a port, or the end of a time.
    """
    federation.heal()  # else the search would find what the test itself looks for
    found: list[str] = []
    roots = (federation.run, federation.run.round, federation.store, *federation.nodes)
    shown = {text.encode() for text in (*texts, *printed(*roots))}
    said = b"\n\0\n".join([*federation.transport.packets, *shown])
    numbers = tuple({number for row in rows for number in row})
    if memory:
        found += held_in_memory(*roots, rows=rows)
        found += held_in_memory(*roots, rows=noise, least=2)
    for counts, least in ((numbers, 1), *((row, 2) for row in noise)):
        found += findings_in_files(folder, counts, least=least)
        found += findings(said, counts, least=least)
    return found


@sampled()
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_holds_votes_sums_or_noise(
    kind: Kind,
    tmp_path: Path,
    drawn: list[Row],
    everything_logged: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    federation = marked_federation(kind, tmp_path)
    everybody = range(PARTIES)
    survivors = [place for place in everybody if place != LOST]
    rows = [MARKERS, *sums(everybody), *sums(survivors)]
    stored: list[int] = []

    def on_answer(node: int, answer: bytes) -> bytes | None:
        # While the batch is open: y's are on disk, the total is in the coordinator's memory.
        if "MaskedVector" in kinds(answer) and node == MARKED:
            stored.append(sum(path.stat().st_size for path in tmp_path.rglob("*")))
            assert found_in(federation, tmp_path, rows, noise=drawn) == []
            federation.transport.on_answer = on_answer
        # A hospital is lost before its y, where the form can do without.
        is_lost = kind.form == "masked" and node == LOST and "MaskedVector" in kinds(answer)
        return None if is_lost else answer

    federation.transport.on_answer = on_answer
    federation.ask(0, 1)
    federation.heal()
    federation.ask(3, 4)
    out, err = capfd.readouterr()
    # The last sum was opened, and the plan is not settled yet at the parties.
    assert found_in(federation, tmp_path, rows, everything_logged.text, out, err, noise=drawn) == []
    federation.run.close()
    out, err = capfd.readouterr()
    assert found_in(federation, tmp_path, rows, everything_logged.text, out, err, noise=drawn) == []
    assert stored
    assert len(list(tmp_path.rglob("*"))) >= 2 * PARTIES
    assert bool(drawn) == (kind.place == "parties")


def test_that_search_finds_votes_that_a_journal_kept(tmp_path: Path) -> None:
    federation = marked_federation(Kind("additive", "coordinator"), tmp_path)
    journal: Any = federation.nodes[MARKED]._journal
    journal.begin(run_id=bytes(32), epoch=1, plan_digest=b"p" * 32)
    journal.keep(b"p" * 32, (np.array(MARKERS, dtype="<u4").tobytes(),), expires_at=10_000)
    assert found_in(federation, tmp_path, [MARKERS], memory=False)


def chained(error: BaseException) -> Iterator[BaseException]:
    """An error and all that it came from."""
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is not None:
            yield one
            waiting += [one.__cause__, one.__context__]


def left_in_frames(error: BaseException) -> list[Any]:
    """Local variables of our own code that a dump of an error would show."""
    found: list[Any] = []
    for one in chained(error):
        step = one.__traceback__
        while step is not None:
            if "/tests/" not in step.tb_frame.f_code.co_filename:
                found += list(step.tb_frame.f_locals.values())
            step = step.tb_next
    return found


PLACES = {
    "while drawing": "party.decision.own_votes.noise_of",
    "while counting": "party.decision.own_votes.count_votes",
    "while hiding": "protocols.additive.add_streams",
}


@sampled()
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", list(PLACES))
def test_an_error_that_quotes_votes_is_a_silence(
    kind: Kind,
    place: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    everything_logged: pytest.LogCaptureFixture,
) -> None:
    if place == "while drawing" and kind.place == "coordinator":
        place = "while counting"
    federation = marked_federation(kind, tmp_path)
    target = PLACES[place]
    if place == "while hiding" and kind.form == "masked":
        target = "protocols.masked.add_streams"
    monkeypatch.setattr(target, raising_with_votes)
    with pytest.raises(VoidBatchError, match=r"\[no ") as void:
        federation.ask(0, 1)
    # A masked plan is closed: then its sum never opens.
    assert void.value.reservation == ("cancelled" if kind.form == "masked" else "forfeited")
    text = "".join(traceback.format_exception(void.value))
    assert found_in(federation, tmp_path, [MARKERS], text, everything_logged.text) == []
    assert held_in_memory(*left_in_frames(void.value)) == []


@pytest.mark.slow
@sampled()
@pytest.mark.parametrize("kind", [*KINDS[1:], KINDS[0]])
def test_an_error_where_the_sum_is_opened_keeps_no_sum(
    kind: Kind,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    everything_logged: pytest.LogCaptureFixture,
) -> None:
    federation = marked_federation(kind, tmp_path)
    federation.nodes[0].lie = np.array([2**30, 0, 0, 0, 0, 0])
    with pytest.raises(VoidBatchError, match="row") as void:
        federation.ask(0, 1)
    text = "".join(traceback.format_exception(void.value))
    spoiled = [(row[0] + 2**30, *row[1:]) for row in sums(range(PARTIES))]
    rows = [MARKERS, *sums(range(PARTIES)), *spoiled]
    assert found_in(federation, tmp_path, rows, text, everything_logged.text) == []
    for row in rows:
        assert held_in_memory(*left_in_frames(void.value), rows=[row]) == []


# The command line --------------------------------------------------------------------------------

HOSPITALS = 5
SECRETS = (*COUNTS, *(HOSPITALS * count for count in COUNTS))
NOISES = {
    "noise at the coordinator": ("--vote-threshold", 10),
    "noise at the parties": ("--noise", "parties", "--vote-threshold", 10),
}


@sampled()
@pytest.mark.slow
@pytest.mark.usefixtures("pictures")
@pytest.mark.parametrize("form", ["additive", "masked"])
@pytest.mark.parametrize("where", list(NOISES))
def test_no_file_log_or_line_of_a_run_directory_holds_a_count(
    *,
    form: str,
    where: str,
    pate_fed: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    everything_logged: pytest.LogCaptureFixture,
) -> None:
    mark_hospitals(monkeypatch, HOSPITALS)
    table, out = write_table(tmp_path / "table.csv", rows=240), tmp_path / "run"
    ended = pate_fed(
        *("simulate", "--data", "csv", "--data-file", table, "--label", "sick"),
        *("--parties", HOSPITALS, "--teachers", 4, "--queries", 3, "--sum", form),
        *("--sigma2", SIGMA, *NOISES[where], "--seed", 7, "--out", out),
    )
    assert ended.err == ""
    assert len(list(out.rglob("*"))) >= 8
    assert findings_in_files(out, SECRETS) == []
    for text in (ended.out, ended.err, everything_logged.text):
        assert findings(text.encode(), SECRETS) == []
