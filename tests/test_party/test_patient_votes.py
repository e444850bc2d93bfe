"""Where records vote: a patient whose cap is used votes no more in that run, whatever happens."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from coordinator.errors import CoordinatorError, VoidBatchError
from party.decision.guard import Consent
from party.decision.own_votes import OwnVotes
from party.errors import JournalDamagedError, JournalStorageError
from party.storage import Journal, PartyDatabase
from party.storage.patient_votes import PatientVotes, forget_patient, tags_by
from party.storage.site_schema import PatientVotesRow
from pate_fed.accounting import CappedGaussianMaxEvent, EntryState
from pate_fed.nodes.database import put
from protocols import wire
from protocols.identity import SigningIdentity
from tests.support.federation import CLASSES, Federation, kinds
from tests.support.stores import journal_in_memory

PATIENTS, CAP = 3, 3
RUN, OTHER = bytes(32), bytes([1]) * 32
TERMS: dict[str, Any] = {
    **{"mechanism": "gnmax", "vote_threshold": None, "sigma2": 8.0, "patient_votes": CAP},
    **{"max_asks": 20, "max_answers": 20},
}


class Cast:
    """The votes that hospitals made, of which every patient would vote on every query."""

    def __init__(self) -> None:
        self.by: defaultdict[tuple[bytes, int], int] = defaultdict(int)

    @property
    def most(self) -> int:
        """Most votes of all patients together, of one hospital in one run."""
        return max(self.by.values(), default=0)


@pytest.fixture
def cast(monkeypatch: pytest.MonkeyPatch) -> Cast:
    seen, honest = Cast(), OwnVotes.vector

    def vector(self: OwnVotes, run: Any, batch: Any, **named: Any) -> NDArray[np.int64]:
        made = honest(self, run, batch, **named)
        rows = made.reshape(len(batch), CLASSES + 1)
        assert (rows.sum(axis=1) == PATIENTS).all()
        seen.by[run.scope.digest, run.seat] += int(rows[:, :CLASSES].sum())
        return made

    monkeypatch.setattr(OwnVotes, "vector", vector)
    return seen


def federation(*, parties: int = 3, for_life: float = 100.0, **changed: Any) -> Federation:
    terms = {**TERMS, **changed.pop("terms", {})}
    policy = {"most_epsilon": 100.0, "least_sigma2": 1.0}
    made = Federation(
        teachers=PATIENTS,
        terms=terms,
        policy={**policy, **changed.pop("policy", {})},
        budget=5.0,
        budgets=dict.fromkeys(range(parties), for_life),
        parties=parties,
        **changed,
    )
    made.run.set_up()
    return made


def ask_all(asked: Federation, *, batches: int = 5, size: int = 2, start: int = 0) -> None:
    for first in range(start, start + batches * size, size):
        asked.ask(*range(first, first + size))


def used_in(asked: Federation, place: int = 0) -> int:
    """Votes that a hospital has on record, over all runs."""
    node = asked.nodes[place]
    with node._journal._database.transaction() as connection:
        rows = connection.execute(PatientVotesRow.__table__.select()).all()
    return sum(int(np.frombuffer(row.votes, "<u4").sum()) for row in rows)


# Runs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["additive", "masked", "plain"])
def test_the_cap_holds_over_all_queries_and_batches(cast: Cast, form: str) -> None:
    parties = 5 if form == "masked" else 3
    asked = federation(form=form, parties=parties)
    ask_all(asked)

    assert list(cast.by.values()) == [PATIENTS * CAP] * parties
    assert used_in(asked) == PATIENTS * CAP


def test_the_ledger_is_charged_the_cap_and_no_more(cast: Cast) -> None:
    asked = federation()
    ask_all(asked)

    charged = [entry.charged for entry in asked.nodes[0].ledger.entries]
    assert all(isinstance(event, CappedGaussianMaxEvent) for event in charged)
    assert [getattr(event, "asks", None) for event in charged] == [2, 1, 0, 0, 0]


def test_a_hospital_that_restarts_remembers_the_votes(cast: Cast) -> None:
    asked = federation()
    ask_all(asked, batches=1)
    for place in range(3):
        asked.restart(place)
    asked.set_up_anew()
    ask_all(asked, start=2)

    assert cast.most == PATIENTS * CAP


def test_a_hospital_that_forgets_at_a_restart_is_seen(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above has teeth."""
    monkeypatch.setattr(PatientVotes, "keep", lambda *_: None)
    with pytest.raises(AssertionError):
        test_a_hospital_that_restarts_remembers_the_votes(cast)


def test_a_run_that_is_set_up_again_and_again_has_one_cap(cast: Cast) -> None:
    """Each setup has plans of other digests; the coordinator forgets what it asked."""
    asked = federation()
    for start in range(0, 12, 2):
        ask_all(asked, batches=1, start=start)
        asked.set_up_anew()

    assert cast.most == PATIENTS * CAP
    assert len(cast.by) == 3


def lost(asked: Federation) -> Iterator[int]:
    """Ask batches that one hospital never hears of, set up anew after each."""
    for start in range(0, 8, 2):
        asked.lose(2)
        with suppress(VoidBatchError):
            ask_all(asked, batches=1, start=start)
        yield start
        asked.heal()
        asked.run._batches.voids = 0
        with suppress(CoordinatorError):
            asked.set_up_anew()


def test_a_batch_that_is_void_uses_votes_up(cast: Cast) -> None:
    """Cancelled, returned or forfeited: its queries are free again, the patients' votes are not."""
    asked = federation(policy={"most_returned": 1.0})
    for start in lost(asked):
        assert used_in(asked) == PATIENTS * min(CAP, start + 2)

    assert cast.most == PATIENTS * CAP
    states = {entry.state for entry in asked.nodes[0].ledger.entries}
    assert states <= {EntryState.FORFEITED, EntryState.RESERVED}


@pytest.mark.parametrize("for_life", [100.0, 2.5], ids=["a small part", "much of the budget"])
def test_queries_of_void_batches_that_are_asked_again_have_no_new_cap(
    cast: Cast, for_life: float
) -> None:
    """Nor does what they lost stop the run: no later batch costs more than the price."""
    asked = federation(terms={"max_asks": 8, "max_answers": 8}, for_life=for_life)
    last = asked.nodes[2]
    for start in (0, 2, 0, 2):
        last._guard = replace(last._guard, consent=Consent(is_paused=True))
        with pytest.raises(VoidBatchError):  # it refuses before it votes, so all is free again
            ask_all(asked, batches=1, start=start)
        last._guard = replace(last._guard, consent=Consent())
        asked.forget_asked()
        asked.forget_voids()
        asked.set_up_anew()
    ask_all(asked, batches=4)

    assert len(asked.store.releases()) == 4  # all that the run may ask, beside what was void
    charged = [entry.charged for entry in asked.nodes[0].ledger.entries]
    assert sum(getattr(event, "asks", 0) for event in charged) == CAP
    assert sorted(cast.by.values()) == [PATIENTS * CAP] * 3


def test_a_plan_that_comes_again_has_the_same_answer_and_uses_nothing(cast: Cast) -> None:
    asked = federation()
    plans: list[bytes] = []
    asked.transport.on_query = lambda node, packet: (
        plans.append(packet) or packet if node == 0 and "Plan" in kinds(packet) else packet
    )
    ask_all(asked, batches=1)
    before, used = asked.transport.answers, used_in(asked)
    [sent] = [answer for node, answer in before if node == 0 and "MaskedVector" in kinds(answer)]
    again = [asked.nodes[0].receive(plans[0]) for _ in range(2)]
    asked.restart(0)
    again.append(asked.nodes[0].receive(plans[0]))

    assert again == [sent] * 3
    assert used_in(asked) == used == PATIENTS * 2
    assert cast.by[asked.nodes[1]._agreed_run.scope.digest, asked.seat_of(0)] == used


def test_each_run_has_a_cap_of_its_own(cast: Cast) -> None:
    asked = federation()
    ask_all(asked)
    asked.terms["name"] = "second"
    asked.run = asked.another_run()
    asked.run.set_up()
    ask_all(asked, start=10)

    assert sorted(cast.by.values()) == [PATIENTS * CAP] * 6
    assert used_in(asked) == 2 * PATIENTS * CAP


def test_each_federation_has_a_cap_of_its_own(cast: Cast) -> None:
    """Their prices add up in the ledger for life, as those of two runs do."""
    one, other = federation(), federation()
    for node, sharing in zip(one.nodes, other.nodes, strict=True):
        sharing._ballots._cast = node._journal.patient_votes
    ask_all(one)
    ask_all(other)

    assert sorted(cast.by.values()) == [PATIENTS * CAP] * 6
    assert used_in(one) == 2 * PATIENTS * CAP


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param((PatientVotes, "keep"), id="the count"),
        pytest.param((Journal, "keep"), id="the hidden votes"),
    ],
)
def test_a_full_disk_uses_votes_up_once(
    cast: Cast, monkeypatch: pytest.MonkeyPatch, broken: tuple[type, str]
) -> None:
    """Nothing leaves, and the plan that comes once more is refused: nobody votes on it again."""
    asked = federation()
    kind, name = broken
    used = PATIENTS * 2 if kind is Journal else 0

    def full(*_: Any, **__: Any) -> None:
        raise JournalStorageError("the disk must have room", "none")

    def twice(node: int, packet: bytes) -> bytes:
        if node == 0 and "Plan" in kinds(packet):
            with monkeypatch.context() as patch:
                patch.setattr(kind, name, full)
                assert asked.nodes[0].receive(packet) == wire.pack([])
        return packet

    asked.transport.on_query = twice
    with pytest.raises(VoidBatchError):
        ask_all(asked, batches=1)
    assert used_in(asked) == used
    asked.heal()
    ask_all(asked, start=2)
    assert used_in(asked) == PATIENTS * CAP
    assert cast.most == PATIENTS * CAP


# The store --------------------------------------------------------------------------------------


def opened(path: Path) -> tuple[PartyDatabase, PatientVotes]:
    database = PartyDatabase.at(path) if path.exists() else PartyDatabase.create(path)
    return database, Journal(database).patient_votes


def tags(*patients: str, scope: bytes = RUN) -> list[bytes]:
    tag_of = tags_by(SigningIdentity.from_private_bytes(bytes(32)))
    return [tag_of(scope, one) for one in patients]


def test_votes_are_on_disk_and_never_fall(tmp_path: Path) -> None:
    database, votes = opened(tmp_path / "party.db")
    votes.keep(RUN, tags("a", "b"), np.array([2, 1]))
    database.close()
    database, votes = opened(tmp_path / "party.db")
    votes.keep(RUN, tags("b", "a"), np.array([3, 1]))

    assert votes.used(RUN, tags("a", "b"), most=5).tolist() == [2, 3]
    assert votes.used(OTHER, tags("a", "b"), most=5).tolist() == [0, 0]
    database.close()


def test_one_who_was_not_there_at_the_first_batch_has_no_vote_left() -> None:
    votes = journal_in_memory().patient_votes
    votes.keep(RUN, tags("a"), np.array([0]))

    assert votes.used(RUN, tags("new", "a"), most=5).tolist() == [5, 0]
    votes.keep(RUN, tags("new", "a"), np.array([5, 1]))
    assert votes.used(RUN, tags("new", "a"), most=5).tolist() == [5, 1]


def test_one_who_leaves_and_comes_back_has_no_vote_left() -> None:
    journal = journal_in_memory()
    votes, tag_of = journal.patient_votes, tags_by(SigningIdentity.from_private_bytes(bytes(32)))
    for scope in (RUN, OTHER):
        votes.keep(scope, tags("a", "b", scope=scope), np.array([1, 2]))
    with journal._database.transaction() as connection:
        forget_patient(connection, "a", tag_of=tag_of)
        rows = connection.execute(PatientVotesRow.__table__.select()).all()

    assert {len(row.tags) for row in rows} == {32}
    for scope in (RUN, OTHER):
        both = tags("a", "b", scope=scope)
        assert votes.used(scope, both, most=5).tolist() == [5, 2]
    with journal._database.transaction() as connection:
        forget_patient(connection, "b", tag_of=tag_of)
    assert votes.used(RUN, tags("a", "b"), most=5).tolist() == [5, 5]


def test_a_tag_tells_nothing_without_the_key_of_the_identity(tmp_path: Path) -> None:
    """Whoever has the database cannot try ids, nor find the same patient in two runs."""
    database, votes = opened(tmp_path / "party.db")
    identity = SigningIdentity.generate()
    tag_of = tags_by(identity)
    made = [tag_of(scope, "patient-4711") for scope in (RUN, OTHER)]
    assert made[0] != made[1] != tags_by(SigningIdentity.generate())(OTHER, "patient-4711")
    for scope, tag in zip((RUN, OTHER), made, strict=True):
        votes.keep(scope, [tag], np.array([1]))
    database.close()
    stored = b"".join(one.read_bytes() for one in tmp_path.iterdir() if one.is_file())
    assert made[0] in stored
    assert identity.private_bytes not in stored
    plain = (b"patient-4711", RUN + b"patient-4711")
    tries: list[Callable[[bytes], Any]] = [hashlib.sha256, hashlib.blake2b]
    for text in plain:
        assert text not in stored
        assert all(make(text).digest() not in stored for make in tries)


@pytest.mark.parametrize("used", [[0, 0], [4, 1]])
def test_how_much_is_written_tells_no_vote(used: list[int]) -> None:
    journal = journal_in_memory()
    before = journal.counter
    journal.patient_votes.keep(RUN, tags("a", "b"), np.array(used))
    journal.patient_votes.keep(RUN, tags("a", "b"), np.array(used))
    with journal._database.transaction() as connection:
        [row] = connection.execute(PatientVotesRow.__table__.select()).all()

    assert (len(row.tags), len(row.votes), journal.counter - before) == (64, 8, 2)


def test_a_damaged_count_is_no_count() -> None:
    journal = journal_in_memory()
    with journal._database.transaction() as connection:
        put(connection, PatientVotesRow, {"scope": RUN, "tags": bytes(64), "votes": bytes(4)})
    with pytest.raises(JournalDamagedError):
        journal.patient_votes.used(RUN, tags("a"), most=2)
