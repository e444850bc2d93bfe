"""Attacks that a reviewer found, each against hospitals' real nodes; none may succeed any more.

They are played as in `test_attacks_across_runs`. For each rule, a companion takes out
that rule alone. Then the same attack must succeed.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from party.decision import guard as guard_module
from party.decision.agreed_run import AgreedRun
from party.decision.guard import Guard
from party.errors import Reason, RefusalError
from party.site.own_table import add
from party.site.party_task import PartyTask, tasks_of
from party.site.policy import Policy
from party.site.site import Site
from party.site.tasks import party_task
from party.site.training import folder_of, ready_teachers, teachers_digest
from party.storage import Journal, PartyDatabase
from pate_fed.terms import NO_TASK
from pate_fed.votes import TeacherWeights
from protocols import transcript_verifier, wire
from protocols.errors import HistoryError, RefusedError
from protocols.messages import (
    Closing,
    HeadBundle,
    HeadStatement,
    MaskedVector,
    Plan,
    ShareBundle,
    Verdict,
)
from protocols.rounds import (
    PartyState,
    PlanClaim,
    RoundJournal,
    RunNote,
    SetBound,
    lost_runs,
    settlement,
    verdicts,
)
from protocols.rounds.batch import at_party
from protocols.rounds.round_journal import MOST_UNSERVED
from protocols.rounds.setup import at_party as setup
from protocols.transcript import EntrySignature, HeadsRecord, transcript_lines
from protocols.transcript_verifier import render_check, verify_transcript
from protocols.values import encode_value
from tests.support.hospital_site import LABEL, PATIENT, make_site, public_task, write_own_table
from tests.support.hostile import (
    CLASSES,
    TEACHERS,
    WEIGHTS,
    Loot,
    Patch,
    Places,
    Run,
    TakenOut,
    World,
)
from tests.support.markers import sampled

ANY_RUN = {"came_here": True}
PARTIES_CODE = "PF-310"
QUERIES_CODE = "PF-317"
FORM_CODE = "PF-312"
VERDICT_CODE = "PF-247"
UNEXPECTED_CODE = "PF-225"
TOO_FEW_CODE = "PF-241"
VICTIM = 0
OLD, NEW = b"old teachers".ljust(32), b"new teachers".ljust(32)
"""Digests of a hospital's teachers, before and after it trained new ones."""


def assert_refused(refused: dict[int, list[str]], by: Places, code: str) -> None:
    """Exactly these hospitals refuse, each with this one code."""
    assert refused == {place: [code] for place in by}


def set_rules(world: World, place: int, **policy: Any) -> None:
    """Let one hospital's owner change rules of its policy."""
    for node in world.hospitals[place].nodes:
        guard = replace(node._guard, policy=replace(node._guard.policy, **policy))
        node.adopt(guard=guard, known_peers=world._pins, tasks=node._tasks)


def set_task(world: World, place: int, **changed: Any) -> None:
    """Change what one hospital keeps of its task; it holds from the next run."""
    for node in world.hospitals[place].nodes:
        tasks = tasks_of(*(replace(task, **changed) for task in node._tasks.values()))
        node.adopt(guard=node._guard, known_peers=world._pins, tasks=tasks)


class Anything(bytes):
    """Equal to whatever it is compared with: it takes out a rule that compares."""

    __hash__ = bytes.__hash__

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False


# 1: another federation's coordinator, and the plans of a run that is not its own ------------------


def without_owner_of_run(patch: Patch) -> None:
    """A run of any coordinator counts as this one's."""
    find = Journal.run

    def found(self: Journal, run_id: bytes) -> RunNote | None:
        note = find(self, run_id)
        return None if note is None else replace(note, coordinator=Anything())

    patch.setattr(Journal, "run", found)


def without_run_of_settlement(patch: Patch) -> None:
    """A settlement is about any plan that it names."""
    note = settlement.note_settled
    for module in (at_party, lost_runs):
        patch.setattr(
            module, "note_settled", lambda *args, **fields: note(*args, **{**fields, **ANY_RUN})
        )


def without_run_of_verdict(patch: Patch) -> None:
    """A verdict is asked in whatever run."""
    sign = verdicts.sign_verdict

    def sign_anyway(
        verdict: Verdict, *, run_id: bytes, journal: RoundJournal, **fields: Any
    ) -> bytes:
        asked_in = journal.run_of(verdict.plan_digest) or run_id
        return sign(verdict, run_id=asked_in, journal=journal, **fields)

    for end in (verdicts, lost_runs):
        patch.setattr(end, "sign_verdict", sign_anyway)


def open_batch(form: str, *, federations: int = 2) -> Run:
    """A batch of an honest coordinator that every hospital sent for. The last one is a liar."""
    world = World(5, liars={4}, federations=federations)
    run = Run(world, range(5), form, colluders=1).set_up()
    assert run.ask(range(world.queries)) == {}
    return run


def take_plan(run: Run) -> Loot:
    """Let the other coordinator sign the plan that the liar told it, and ask for all y's."""
    stolen = Loot(run)
    [liar] = run.liars
    stolen.take_answer(liar, run.answers[liar])
    plan = wire.decode(run.plan_frame).message
    run.speak_as(1)
    for place in run.honest:
        answer = run.tell(place, run.sign(plan))
        if any(isinstance(message, MaskedVector | ShareBundle) for message in answer.messages):
            stolen.take_answer(place, answer)
    run.speak_as(0)
    return stolen


def counters(run: Run) -> list[int]:
    """How often each honest hospital wrote into its journal."""
    return [run.world.hospitals[place].journal.counter for place in run.honest]


def own_run(first: Run, *, federation: int = 1, form: str = "masked") -> Run:
    """A run of the other coordinator with the same hospitals, which then names the first's plan."""
    other = Run(first.world, first.places, form, colluders=1, federation=federation).set_up()
    other.plan_digest, other.words = first.plan_digest, first.words
    return other


HEARD = ["alive", "after a restart", "with a run of its own"]


@sampled()
@pytest.mark.parametrize("form", ["additive", "masked"])
@pytest.mark.parametrize("heard", HEARD)
def test_another_coordinator_takes_no_y(form: str, heard: str) -> None:
    run = open_batch(form)
    if heard == "after a restart":
        for place in run.honest:
            run.world.restart(place)
    if heard == "with a run of its own":
        own_run(run)
    before = counters(run)
    stolen = take_plan(run)
    assert list(stolen.vectors) == run.liars
    assert list(stolen.sums()) == []
    assert counters(run) == before


@sampled()
@pytest.mark.parametrize("heard", HEARD[:2])
def test_without_its_rule_another_coordinator_reads_an_exact_sum(
    monkeypatch: Patch, heard: str
) -> None:
    without_owner_of_run(monkeypatch)
    run = open_batch("additive")
    if heard == "after a restart":
        for place in run.honest:
            run.world.restart(place)
    [(parties, rows)] = take_plan(run).sums()
    assert parties == set(run.honest)
    votes = [[run.world.truth(place, index) for index in run.indices] for place in parties]
    assert np.array_equal(rows, np.sum(votes, axis=0))


def void_by_other(run: Run, *, by_own_run: bool, federation: int = 1) -> None:
    """Let the other coordinator say that the open batch is void, in the one run or the other."""
    if by_own_run:
        assert own_run(run, federation=federation).void() == {}
    else:
        run.speak_as(1)
        assert run.void() == {}
        run.speak_as(0)


@pytest.mark.parametrize("form", ["additive", "masked"])
@pytest.mark.parametrize(
    ("by_own_run", "federation"),
    [
        pytest.param(False, 1, id="as if in that run"),
        pytest.param(True, 1, id="in its own run"),
        pytest.param(True, 0, id="in another run of the same coordinator"),
    ],
)
def test_a_y_is_erased_in_its_own_run_alone(form: str, by_own_run: bool, federation: int) -> None:
    run = open_batch(form)
    void_by_other(run, by_own_run=by_own_run, federation=federation)
    for place in run.honest:
        assert run.tell(place, run.plan_frame).frames == run.answers[place].frames


@sampled()
@pytest.mark.parametrize(
    ("take_out", "by_own_run"), [(without_owner_of_run, False), (without_run_of_settlement, True)]
)
@pytest.mark.parametrize("form", ["additive", "masked"])
def test_without_its_rule_another_coordinator_has_a_y_erased(
    monkeypatch: Patch, take_out: TakenOut, by_own_run: bool, form: str
) -> None:
    take_out(monkeypatch)
    run = open_batch(form)
    void_by_other(run, by_own_run=by_own_run)
    for place in run.honest:
        assert run.tell(place, run.plan_frame).frames == ()


def close_by_other(run: Run, *, by_own_run: bool) -> dict[int, list[str]]:
    """Let the other coordinator ask to close the open plan; return the codes of its answers."""
    if by_own_run:
        return own_run(run).propose((), to=run.honest)
    run.speak_as(1)
    refused = run.propose((), to=run.honest)
    run.speak_as(0)
    return refused


@pytest.mark.parametrize(
    ("by_own_run", "code"),
    [
        pytest.param(False, UNEXPECTED_CODE, id="as if in that run"),
        pytest.param(True, VERDICT_CODE, id="in its own run"),
    ],
)
def test_another_coordinator_closes_no_open_plan(by_own_run: bool, code: str) -> None:
    run = open_batch("masked")
    assert_refused(close_by_other(run, by_own_run=by_own_run), run.honest, code)
    assert run.open(run.places) == {}
    assert [parties for parties, _ in run.loot.sums()] == [frozenset(run.honest)]


@sampled()
@pytest.mark.parametrize(
    ("take_out", "by_own_run"), [(without_owner_of_run, False), (without_run_of_verdict, True)]
)
def test_without_its_rule_another_coordinator_closes_an_open_plan(
    monkeypatch: Patch, take_out: TakenOut, by_own_run: bool
) -> None:
    take_out(monkeypatch)
    run = open_batch("masked")
    assert close_by_other(run, by_own_run=by_own_run) == {}
    assert_refused(run.open(run.places), run.honest, VERDICT_CODE)
    assert list(run.loot.sums()) == []


def use_up_promises(run: Run) -> None:
    """Let the other coordinator close as many plans of the run as a hospital promises at most."""
    other = open_like(run, federation=1)
    for number in range(MOST_UNSERVED):
        other.plan_digest = bytes([number]) * 32
        other.propose((), to=run.honest)


def open_like(run: Run, *, federation: int) -> Run:
    """The same run in another coordinator's mouth, with its own record of what was said."""
    other = Run(run.world, run.places, run.form.name, colluders=1, federation=federation)
    other.coordinator = run.coordinator
    return other


def test_another_coordinator_uses_up_no_promises_of_a_run() -> None:
    run = Run(World(5, liars={4}, federations=2), range(5), "masked", colluders=1).set_up()
    use_up_promises(run)
    run.plan(range(run.world.queries))
    assert run.close()


def test_without_its_rule_another_coordinator_uses_up_the_promises_of_a_run(
    monkeypatch: Patch,
) -> None:
    without_owner_of_run(monkeypatch)
    run = Run(World(5, liars={4}, federations=2), range(5), "masked", colluders=1).set_up()
    use_up_promises(run)
    run.plan(range(run.world.queries))
    assert run.close() == b""


# 2: a plan that another coordinator closed before it came -----------------------------------------


def closed_before_it_came(form: str) -> Run:
    """A plan that no hospital has yet. A liar told it to the other coordinator, who closes it."""
    run = Run(World(5, liars={4}, federations=2), range(5), form, colluders=1).set_up()
    run.plan(range(run.world.queries))
    other = own_run(run)
    assert other.propose((), to=run.honest) == {}
    assert sorted(other.verdicts[()]) == run.honest
    return run


@pytest.mark.parametrize("form", ["additive", "masked"])
def test_a_plan_that_was_closed_before_it_came_costs_nothing(form: str) -> None:
    run = closed_before_it_came(form)
    world = run.world
    assert_refused(run.ask(run.indices, of=run.honest), run.honest, QUERIES_CODE)
    for place in run.honest:
        hospital = world.hospitals[place]
        assert hospital.nodes[0].ledger.entries == ()
        assert hospital.journal.queries.count() == 0
        assert hospital.journal.find(run.plan_digest) is None
    assert run.void() == {}

    # The same queries are served under the next plan, and that one is charged.
    again = run.other_plan(run.indices, like=VICTIM)
    assert again.ask(again.indices, of=run.honest) == {}
    assert sorted(again.loot.vectors) == run.honest
    for place in run.honest:
        [entry] = world.hospitals[place].nodes[0].ledger.entries
        assert entry.entry_id == again.plan_digest.hex()


@sampled()
@pytest.mark.parametrize("form", ["additive", "masked"])
def test_without_its_rule_a_closed_plan_is_charged_for_nothing(
    monkeypatch: Patch, form: str
) -> None:
    monkeypatch.setattr(AgreedRun, "require_new", lambda self, plan_digest: None)
    run = closed_before_it_came(form)
    for place in run.honest:
        answer = run.tell(place, run.plan_frame)
        assert not [each for each in answer.messages if isinstance(each, MaskedVector)]
        [entry] = run.world.hospitals[place].nodes[0].ledger.entries
        assert entry.entry_id == run.plan_digest.hex()


# 3: two good transcripts of one run ---------------------------------------------------------------


def history(run: Run, group: Sequence[int], signers: Places, *, question: int) -> str:
    """Tell some honest hospitals one end of the run; return its transcript.

    Args:
        run: The run, set up, of which nobody in the group heard more.
        group: Honest hospitals that are told this story.
        signers: Liars that sign this story's last head, whatever they signed before.
        question: What the one plan of the story asks: another one, another story.
    """
    like = next(iter([*group, *run.liars]))  # the liars' own nodes hear no story at all
    batch = run.other_plan([question], like=like)
    plan, void = batch.plan_frame, batch.sign(batch.settlement())
    for place in group:
        assert run.tell(place, plan).codes == []
        assert run.tell(place, void).codes == []
    transcript, name = run.coordinator.transcript, run.identity.fingerprint
    for kind, frame in (("plan", plan), ("settlement", void)):
        signed = wire.decode(frame)
        proof = EntrySignature(name, signed.digest, signed.signature)
        transcript = transcript.append(kind, signed.digest, (proof,))

    run_id, epoch = run.coordinator.run_id, wire.expect(wire.decode(plan), Plan).epoch
    closing = run.sign(Closing(run_id, transcript.head))
    heads = {place: run.tell(place, closing).frames[0] for place in group}
    for place in signers:
        said = HeadStatement(run_id, run.fingerprint(place), transcript.head, epoch, 1_000)
        heads[place] = wire.sign(said, run.key_of(place)).frame
    statements = {run.fingerprint(place): wire.decode(heads[place]) for place in sorted(heads)}
    said_epochs = {wire.expect(each, HeadStatement).epoch for each in statements.values()}
    assert said_epochs == {epoch}
    bundle = wire.contain(HeadBundle(run_id, tuple(heads.get(place, b"") for place in run.places)))
    for place in group:
        run.tell(place, bundle)
    assert run.coordinator.history is not None
    records = [
        *run.coordinator.history.heads,
        HeadsRecord("closing", len(transcript.entries), epoch, statements),
    ]
    parties = [run.key_of(place).public for place in run.places]
    lines = transcript_lines(transcript, records, parties=parties, coordinator=run.identity)
    return "".join(json.dumps(line, sort_keys=True) + "\n" for line in lines)


def verdict_of(run: Run, text: str) -> transcript_verifier.TranscriptCheck:
    """Check a transcript, all of whose fingerprints are given."""
    return verify_transcript(
        text,
        coordinator=run.identity.fingerprint.hex(),
        parties=[run.fingerprint(place).hex() for place in run.places],
    )


def least_heads(hospitals: int) -> int:
    """Fewest heads of a good transcript."""
    return max(hospitals // 2 + 1, 3)


def two_histories(form: str, hospitals: int, heads: int, liars: int) -> tuple[Run, str, str]:
    """One transcript with so many heads, and another with as many as the liars can get for it."""
    places = range(hospitals)
    world = World(hospitals, liars=places[hospitals - liars :])
    run = Run(world, places, form, colluders=1).set_up()
    told, others = run.honest[: heads - liars], run.honest[heads - liars :]
    one = history(run, told, run.liars, question=0)
    return run, one, history(run, others, run.liars, question=1)


HOSPITALS_AND_HEADS = [
    (hospitals, heads)
    for hospitals in (5, 6)
    for heads in range(least_heads(hospitals), hospitals + 1)
]


@sampled()
@pytest.mark.parametrize("form", ["additive", "masked"])
@pytest.mark.parametrize(("hospitals", "heads"), HOSPITALS_AND_HEADS)
def test_a_verdict_says_how_many_liars_another_good_transcript_needs(
    form: str, hospitals: int, heads: int
) -> None:
    needed = heads + least_heads(hospitals) - hospitals
    run, one, other = two_histories(form, hospitals, heads, needed)
    verdict, second = verdict_of(run, one), verdict_of(run, other)
    assert (verdict.is_good, second.is_good) == (True, True)
    assert verdict.run_id == second.run_id
    assert verdict.head != second.head
    assert len(verdict.heads_compared) == heads
    if form == "additive":  # masked, hospitals ask for more heads than a transcript needs
        assert {run.node(place).state for place in run.honest} == {PartyState.DONE}
    in_both = set(verdict.heads_compared) & set(second.heads_compared)
    assert in_both == {run.fingerprint(place).hex() for place in run.liars}
    assert verdict.liars_needed == len(in_both) == needed
    assert f" {needed} parties" in render_check(verdict)

    run, one, other = two_histories(form, hospitals, heads, needed - 1)
    verdict, second = verdict_of(run, one), verdict_of(run, other)
    assert verdict.is_good
    assert verdict.liars_needed == needed
    assert (second.kind, second.must.split()[0]) == ("heads closing", str(least_heads(hospitals)))


@pytest.mark.parametrize("form", ["additive", "masked"])
def test_another_transcript_with_all_heads_needs_all_parties(form: str) -> None:
    """No honest hospital signs a second head of a run, so one of them is enough to stop it."""
    world = World(5, liars={1, 2, 3, 4})
    run = Run(world, range(5), form, colluders=1).set_up()
    one = verdict_of(run, history(run, run.honest, run.liars, question=0))
    assert one.is_good
    assert len(one.heads_compared) == 5
    assert run.node(VICTIM).state is PartyState.DONE
    other = history(run, [], run.liars, question=1)
    head = bytes.fromhex(verdict_of(run, other).head)
    answer = run.tell(VICTIM, run.sign(Closing(run.coordinator.run_id, head)))
    assert not [each for each in answer.messages if isinstance(each, HeadStatement)]
    assert len(verdict_of(run, other).heads_compared) < 5


@sampled()
@pytest.mark.parametrize("form", ["additive", "masked"])
def test_without_its_rule_two_good_transcripts_need_no_liar(monkeypatch: Patch, form: str) -> None:
    """The number follows from the fewest heads: with fewer, no hospital has to sign both."""
    monkeypatch.setattr(transcript_verifier, "_least_heads", lambda parties: 2)
    run = Run(World(5), range(5), form, colluders=1).set_up()
    verdicts = [
        verdict_of(run, history(run, group, (), question=question))
        for question, group in enumerate(([0, 1], [2, 3]))
    ]
    assert all(verdict.is_good for verdict in verdicts)
    assert verdicts[0].head != verdicts[1].head
    assert not set(verdicts[0].heads_compared) & set(verdicts[1].heads_compared)
    assert [verdict.liars_needed for verdict in verdicts] == [0, 0]


# 4: fewer parties in a sum than a hospital's owner allows -----------------------------------------


def run_with_a_floor(least: int, *, form: str = "masked") -> Run:
    """A run of seven hospitals, of which 5 may open in the masked form. The victim has a floor."""
    world = World(7, liars={6})
    set_rules(world, VICTIM, least_parties=least)
    run = Run(world, range(7), form, colluders=1)
    assert run.threshold == (5 if form == "masked" else 7)
    return run


@pytest.mark.parametrize("least", [6, 7])
def test_a_run_that_may_open_fewer_than_an_owner_allows_is_refused(least: int) -> None:
    run = run_with_a_floor(least)
    with pytest.raises(RefusedError) as refusal:
        run.set_up()
    assert refusal.value.reason == PARTIES_CODE
    assert refusal.value.peer == run.fingerprint(VICTIM).hex()


@pytest.mark.parametrize(("form", "least"), [("masked", 5), ("additive", 7)])
def test_a_run_that_opens_no_fewer_than_an_owner_allows_is_served(form: str, least: int) -> None:
    run = run_with_a_floor(least, form=form).set_up()
    assert run.ask(range(run.world.queries)) == {}


def test_without_its_rule_a_sum_of_fewer_than_an_owner_allows_opens(monkeypatch: Patch) -> None:
    # The guard compares the floor with the smaller of the seats and the threshold.
    monkeypatch.setattr(guard_module, "min", max, raising=False)
    run = run_with_a_floor(7).set_up()
    assert run.ask(range(run.world.queries)) == {}
    survivors = [0, 1, 2, 3, 4, 6]
    assert_refused(run.open(survivors), [VICTIM], TOO_FEW_CODE)
    [(parties, _)] = run.loot.sums()
    assert VICTIM in parties
    assert len(parties) < len(survivors) < 7


# 5: the votes of new teachers, beside those of the old ones ---------------------------------------


def without_same_teachers(patch: Patch) -> None:
    """Whatever teachers answered an earlier plan, they count as those that are there now."""
    review = Guard.review_queries
    patch.setattr(
        Guard,
        "review_queries",
        lambda self, batch, *, teachers, **fields: review(
            self, batch, teachers=Anything(), **fields
        ),
    )


def train_again(world: World, place: int) -> NDArray[np.int64]:
    """Give a hospital new teachers and a restart; return by how much its votes changed."""
    questions = range(world.queries)
    before = np.array([world.truth(place, question) for question in questions])
    votes = np.random.default_rng(7).integers(0, CLASSES, size=(TEACHERS, world.queries))
    world.hospitals[place].votes = np.tile(votes, 2)
    world.restart(place)
    set_task(world, place, teachers=NEW)
    after = np.array([world.truth(place, question) for question in questions])
    change: NDArray[np.int64] = after - before
    return change


def answered_batch(end: str) -> Run:
    """A batch that the victim's old teachers answered, and that may be asked again."""
    world = World(6, liars={5})
    for place in world.honest:
        set_task(world, place, teachers=OLD)
    form = "additive" if end == "refused" else "masked"
    run = Run(world, range(6), form, colluders=1).set_up()
    assert run.ask(range(world.queries)) == {}
    match end:
        case "refused":
            assert run.void(refused_by=run.liars) == {}
        case "closed":
            certificate = run.close()
            assert certificate
            assert run.void(certificate=certificate) == {}
    return run


def asked_again(first: Run, form: str) -> Run:
    """A later run of the same hospitals."""
    return Run(first.world, first.places, form, colluders=1).set_up()


@sampled()
@pytest.mark.parametrize("form", ["additive", "masked"])
@pytest.mark.parametrize("end", ["refused", "closed"])
def test_new_teachers_answer_no_question_of_the_old_ones(end: str, form: str) -> None:
    first = answered_batch(end)
    assert train_again(first.world, VICTIM).any()
    again = asked_again(first, form)
    assert_refused(again.ask(first.indices), [VICTIM], QUERIES_CODE)
    if form == "masked":
        again.open(again.places[1:])
    assert not [parties for parties, _ in again.loot.sums() if VICTIM in parties]
    entries = first.world.hospitals[VICTIM].nodes[0].ledger.entries
    assert again.plan_digest.hex() not in {entry.entry_id for entry in entries}


@sampled()
@pytest.mark.parametrize("form", ["additive", "masked"])
def test_the_same_teachers_answer_again_what_may_be_asked_again(form: str) -> None:
    first = answered_batch("refused")
    first.world.restart(VICTIM)
    set_task(first.world, VICTIM, teachers=OLD)
    again = asked_again(first, form)
    assert again.ask(first.indices) == {}


def test_new_teachers_answer_what_was_asked_but_never_answered() -> None:
    world = World(6, liars={5})
    set_task(world, VICTIM, teachers=OLD)
    first = Run(world, range(6), "additive", colluders=1).set_up()
    first.plan(range(world.queries))
    train_again(world, VICTIM)
    assert first.ask(first.indices, of=[VICTIM]) == {VICTIM: ["PF-242"]}  # the run's keys are gone
    assert asked_again(first, "additive").ask(first.indices) == {}


@sampled()
@pytest.mark.parametrize("form", ["additive", "masked"])
def test_without_its_rule_new_teachers_show_how_one_hospitals_votes_changed(
    monkeypatch: Patch, form: str
) -> None:
    without_same_teachers(monkeypatch)
    first = answered_batch("refused")
    change = train_again(first.world, VICTIM)
    again = asked_again(first, form)
    assert again.ask(first.indices) == {}
    if form == "masked":
        assert again.open(again.places) == {}
    [(parties, rows)], [(later, new_rows)] = first.loot.sums(), again.loot.sums()
    assert parties == later
    assert np.array_equal(new_rows - rows, change)


PLAN = b"a plan".ljust(32)
SEATS = tuple(bytes([number]) * 32 for number in range(1, 6))


@pytest.fixture
def reopened() -> Callable[[], Journal]:
    """One journal, as a new process of the hospital finds it."""
    database = PartyDatabase.in_memory()
    return lambda: Journal(database)


QUERY = (b"a query".ljust(32),)


PROVEN = {
    "refused": PlanClaim.abandoned_by(SEATS[:1], seats=SEATS),
    "opened": PlanClaim.certified(SEATS[:4]),
    "closed": PlanClaim.certified(()),
}


@pytest.mark.parametrize("proven", list(PROVEN.values()), ids=list(PROVEN))
@pytest.mark.parametrize("survives_dropouts", [False, True], ids=["additive", "masked"])
def test_a_journal_keeps_which_teachers_answered_a_plan(
    reopened: Callable[[], Journal], survives_dropouts: bool, proven: PlanClaim
) -> None:
    sent = PlanClaim.sent(SEATS, survives_dropouts=survives_dropouts, teachers=OLD)
    assert sent.teachers == OLD
    reopened().queries.claim(QUERY, plan_digest=PLAN, claim=sent)
    assert reopened().queries.claims_of(QUERY) == [sent]
    reopened().resolve(PLAN, proven)
    assert reopened().queries.claims_of(QUERY) == [replace(proven, teachers=OLD)]


def test_two_plans_that_differ_in_their_teachers_alone_are_two_claims(
    reopened: Callable[[], Journal],
) -> None:
    for plan, teachers in ((PLAN, OLD), (SEATS[0], NEW)):
        claim = PlanClaim(SetBound.exactly(SEATS), is_free=True, teachers=teachers)
        reopened().queries.claim(QUERY, plan_digest=plan, claim=claim)
    assert {claim.teachers for claim in reopened().queries.claims_of(QUERY)} == {OLD, NEW}


class TestKeptTeachers:
    """The same rule with teachers that a hospital trained on its records and keeps."""

    @pytest.fixture
    def site(self, tmp_path: Path) -> Site:
        table = write_own_table(tmp_path / "own.csv")
        return add(make_site(tmp_path / "site"), table, label=LABEL, patient_id=PATIENT)[0]

    def trained(self, site: Site, folder: Path) -> PartyTask:
        """The task with its teachers, trained unless they are kept."""
        task = public_task(folder)
        ensemble = ready_teachers(site, task, random_bytes=secrets.token_bytes)
        return party_task(task, ensemble, teachers=teachers_digest(site, task))

    def ask(self, task: PartyTask, journal: Journal, *, plan: bytes) -> None:
        """Review three queries of a task, and note that they are answered and freed.

        Raises:
            RefusalError: they are refused.
        """
        batch = task.pool.ask((0, 1, 2))
        guard = Guard(
            policy=Policy(approved_pools=frozenset({task.pool.digest})),
            weights=TeacherWeights.equal(4),
            checked_peers={},
        )
        guard.review_queries(
            batch, queries=journal.queries, seats=SEATS, threshold=5, teachers=task.teachers
        )
        sent = PlanClaim.sent(SEATS, survives_dropouts=False, teachers=task.teachers)
        journal.queries.claim(batch.digests, plan_digest=plan, claim=sent)
        journal.resolve(plan, PlanClaim.abandoned_by(SEATS[:1], seats=SEATS))

    def test_teachers_that_are_trained_anew_are_others(
        self, site: Site, tmp_path: Path, reopened: Callable[[], Journal]
    ) -> None:
        plans = (number.to_bytes(32, "big") for number in count())
        first = self.trained(site, tmp_path)
        assert len(first.teachers) == 32
        self.ask(first, reopened(), plan=next(plans))
        kept = self.trained(Site.open(site.folder), tmp_path)
        assert kept.teachers == first.teachers
        self.ask(kept, reopened(), plan=next(plans))

        remove(folder_of(site, public_task(tmp_path)))
        new = self.trained(Site.open(site.folder), tmp_path)
        assert new.teachers != first.teachers
        assert new.digest == first.digest
        with pytest.raises(RefusalError) as refusal:
            self.ask(new, reopened(), plan=next(plans))
        assert refusal.value.reason is Reason.QUERIES

    def test_without_its_rule_teachers_that_are_trained_anew_answer_again(
        self,
        site: Site,
        tmp_path: Path,
        reopened: Callable[[], Journal],
        monkeypatch: Patch,
    ) -> None:
        without_same_teachers(monkeypatch)
        first = self.trained(site, tmp_path)
        self.ask(first, reopened(), plan=bytes(32))
        remove(folder_of(site, public_task(tmp_path)))
        new = self.trained(site, tmp_path)
        assert new.teachers != first.teachers
        self.ask(new, reopened(), plan=PLAN)


def remove(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


# 6: blame by a statement that was held back -------------------------------------------------------


def error_at_stale_statement() -> tuple[Run, HistoryError]:
    """Show hospital 0 a statement of hospital 1 that the coordinator held back for one run."""
    world = World(5)
    held = Run(world, range(5), "additive", colluders=1)
    offer = held.coordinator.setup.offer.frame
    [stale] = held.tell(1, offer).frames
    for _ in range(2):  # the second one shows all others that hospital 1's counter moved on
        Run(world, range(5), "additive", colluders=1).set_up()
    for place in (0, 2, 3, 4):
        [statement] = held.tell(place, offer).frames
        held.coordinator.receive(statement, peer=held.fingerprint(place))
    held.coordinator.receive(stale, peer=held.fingerprint(1))
    terms = encode_value(held.terms.as_record())
    record = held.coordinator.setup.make_record(terms=terms, colluders=1, dropouts=0)
    with pytest.raises(HistoryError) as caught:
        held.node(0)._round.receive(record, now=world.now)
    return held, caught.value


def test_a_statement_that_was_held_back_names_its_hospital_and_the_coordinator() -> None:
    run, error = error_at_stale_statement()
    assert error.peer == ""
    assert error.pair == (run.fingerprint(1).hex(), "coordinator")


def test_without_its_rule_a_statement_that_was_held_back_names_an_honest_hospital_alone(
    monkeypatch: Patch,
) -> None:
    monkeypatch.setattr(
        setup, "HistoryError", lambda must, *, pair: HistoryError(must, peer=pair[0])
    )
    run, error = error_at_stale_statement()
    assert error.peer == run.fingerprint(1).hex()
    assert error.pair != (run.fingerprint(1).hex(), "coordinator")


# 7: a run whose parties prove nothing about another run's plan ------------------------------------


def with_foreign_proof_of_unbegun(patch: Patch) -> None:
    """Any run proves something about a plan that was claimed and never begun."""
    note = settlement.note_settled

    def believe(
        journal: RoundJournal,
        plan: bytes,
        claim: PlanClaim | None,
        *,
        run_id: bytes,
        came_here: bool = False,
    ) -> None:
        is_unbegun = not journal.run_of(plan)
        note(journal, plan, claim, run_id=run_id, came_here=came_here or is_unbegun)

    for module in (at_party, lost_runs):
        patch.setattr(module, "note_settled", believe)


def settle_in_another_run(first: Run, *, federation: int) -> None:
    """Let liars of an additive run sign there that they never sent for the first run's plan."""
    other = own_run(first, federation=federation, form="additive")
    assert other.void(refused_by=first.liars[:1]) == {}


def claims_of(run: Run, place: int) -> list[PlanClaim]:
    """What a hospital knows about the plans that asked a batch's queries."""
    digests = run.world.pool.ask(run.indices).digests
    return run.world.hospitals[place].journal.queries.claims_of(digests)


def opened_without_victim() -> Run:
    """A masked batch that opens without the victim, and of whose end no hospital hears."""
    world = World(6, liars={4, 5}, federations=2)
    run = Run(world, range(6), "masked", colluders=1).set_up()
    assert run.ask(range(world.queries)) == {}
    assert run.open(run.places[1:]) == {}
    assert [parties for parties, _ in run.loot.sums()] == [frozenset({1, 2, 3})]
    return run


@sampled()
@pytest.mark.parametrize("form", ["additive", "masked"])
@pytest.mark.parametrize("federation", [0, 1], ids=["same coordinator", "another coordinator"])
def test_another_runs_parties_free_no_query(federation: int, form: str) -> None:
    first = opened_without_victim()
    before = [claims_of(first, place) for place in first.honest]
    settle_in_another_run(first, federation=federation)
    assert [claims_of(first, place) for place in first.honest] == before
    again = asked_again(first, form)
    assert_refused(again.ask(first.indices), again.honest, QUERIES_CODE)
    first.world.assert_nothing_is_read()


@sampled()
@pytest.mark.parametrize("federation", [0, 1], ids=["same coordinator", "another coordinator"])
def test_without_its_rule_another_runs_parties_free_what_was_opened(
    monkeypatch: Patch, federation: int
) -> None:
    without_run_of_settlement(monkeypatch)
    first = opened_without_victim()
    settle_in_another_run(first, federation=federation)
    assert asked_again(first, "additive").ask(first.indices) == {}
    assert first.world.is_read(VICTIM)


def claimed_but_never_begun() -> Run:
    """A masked batch whose queries the victim claimed; its teachers took longer than the plan."""
    world = World(6, liars={4, 5}, federations=2)
    [task] = world.hospitals[VICTIM].nodes[0]._tasks.values()
    asked_at = world.now

    def vote_slowly(batch: Any) -> NDArray[np.int64]:
        world.now += 10_000
        return task.vote(batch)

    set_task(world, VICTIM, vote=vote_slowly)
    run = Run(world, range(6), "masked", colluders=1).set_up()
    run.plan(range(world.queries))
    assert run.tell(VICTIM, run.plan_frame).frames == ()
    world.now = asked_at
    assert world.hospitals[VICTIM].journal.run_of(run.plan_digest) == b""
    assert claims_of(run, VICTIM) == [PlanClaim(None, task=NO_TASK)]
    set_task(world, VICTIM, vote=task.vote)
    return run


@pytest.mark.parametrize("federation", [0, 1], ids=["same coordinator", "another coordinator"])
def test_another_runs_parties_prove_nothing_about_a_plan_that_was_never_begun(
    federation: int,
) -> None:
    first = claimed_but_never_begun()
    settle_in_another_run(first, federation=federation)
    assert claims_of(first, VICTIM) == [PlanClaim(None, task=NO_TASK)]
    again = asked_again(first, "additive")
    assert_refused(again.ask(first.indices, of=[VICTIM]), [VICTIM], QUERIES_CODE)


@sampled()
@pytest.mark.parametrize("federation", [0, 1], ids=["same coordinator", "another coordinator"])
def test_without_its_rule_another_runs_parties_free_a_plan_that_was_never_begun(
    monkeypatch: Patch, federation: int
) -> None:
    with_foreign_proof_of_unbegun(monkeypatch)
    first = claimed_but_never_begun()
    settle_in_another_run(first, federation=federation)
    [claim] = claims_of(first, VICTIM)
    assert claim.is_free
    assert asked_again(first, "additive").ask(first.indices, of=[VICTIM]) == {}


# 8: one body with many seats ----------------------------------------------------------------------


def chain_of(world: World, places: Places) -> None:
    """Let each hospital's people know that some hospitals belong to one body."""
    bodies = {
        hospital.identity.fingerprint: "chain" if place in places else f"body {place}"
        for place, hospital in enumerate(world.hospitals)
    }
    for hospital in world.hospitals:
        for node in hospital.nodes:
            guard = Guard(policy=world.policy, weights=WEIGHTS, checked_peers=bodies)
            node.adopt(guard=guard, known_peers=world._pins, tasks=node._tasks)


@pytest.mark.parametrize(
    ("form", "seats"), [("masked", 4), ("masked", 6), ("additive", 6)], ids=str
)
def test_a_body_with_more_seats_than_the_run_withstands_is_refused(form: str, seats: int) -> None:
    """Masked among ten withstands three; the additive run is recorded for as many."""
    chain = range(10 - seats, 10)
    world = World(10)
    chain_of(world, chain)
    with pytest.raises(RefusedError) as refused:
        Run(world, range(10), form, colluders=3).set_up()
    assert refused.value.reason == FORM_CODE


def test_a_body_with_as_many_seats_as_the_run_withstands_takes_part() -> None:
    world = World(10, liars={7, 8, 9})
    chain_of(world, [7, 8, 9])
    run = Run(world, range(10), "masked").set_up()
    assert run.colluders == 3
    assert run.ask(range(world.queries)) == {}
    run.open([0, 7, 8, 9])
    assert not world.is_read(VICTIM)


@pytest.mark.slow
def test_without_its_rule_one_body_with_six_of_ten_seats_reads_a_hospital(
    monkeypatch: Patch,
) -> None:
    chain = [4, 5, 6, 7, 8, 9]
    world = World(10, liars=chain)
    monkeypatch.setattr("party.decision.guard._most_seats", lambda seats_of: 0)
    chain_of(world, chain)
    run = Run(world, range(10), "masked").set_up()
    assert run.ask(range(world.queries)) == {}
    run.open([VICTIM, *chain])
    assert world.is_read(VICTIM)
