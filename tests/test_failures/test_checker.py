"""The checker of all failure tests can fail: each thing that a failure may not do is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from coordinator.runs.queue import RunState
from pate_fed.accounting import EntryState
from pate_fed.releases import NoisyRelease
from protocols import wire
from protocols.identity import SigningIdentity
from protocols.messages import MaskedVector, Plan, Reveal, Settlement, ShareBundle, Verdict
from protocols.values import decode_value, encode_value
from tests.support.federation import messages
from tests.support.invariants import Fault, Seen, messages_in, violations
from tests.support.process_federation import process_federation

pytestmark = pytest.mark.slow

ANYBODY = SigningIdentity.generate()
"""The checker looks at what was said, not at who signed it."""


@pytest.fixture(scope="module", params=["additive", "masked"])
def sound(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """A run that nothing happened to."""
    with process_federation(tmp_path_factory.mktemp("sound"), request.param) as federation:
        federation.make_task("first", seed=1)
        federation.ask("first")
        federation.start_hospitals()
        federation.work()
        seen = federation.look()
        federation.require_true_labels(seen)
    return seen


def with_hospital(seen: Seen, **changes: Any) -> Seen:
    first, *others = seen.hospitals
    return replace(seen, hospitals=(replace(first, **changes), *others))


def with_run(seen: Seen, **changes: Any) -> Seen:
    """A run that is otherwise, and shown as it is."""
    [seen_run] = seen.runs
    run = replace(seen_run.run, **changes)
    why = f": {run.reason}" if run.reason else ""
    shown = f"{run.name} {run.state.value}{why}\n"
    return with_seen_run(seen, run=run, shown=shown, table=seen.runs[0].table | run.as_table())


def with_seen_run(seen: Seen, **changes: Any) -> Seen:
    [run] = seen.runs
    return replace(seen, runs=(replace(run, **changes),))


def with_entries(seen: Seen, change: Callable[[list[Any]], list[Any]]) -> Seen:
    ledger = seen.hospitals[0].ledger
    # A ledger refuses to hold a name twice: a broken one would not.
    changed = replace(ledger, entries=())
    object.__setattr__(changed, "entries", tuple(change(list(ledger.entries))))
    return with_hospital(seen, ledger=changed)


def heard(seen: Seen, kind: type) -> Any:
    """The first message of a kind that the first hospital heard or said."""
    for exchange in seen.hospitals[0].exchanges:
        for packet in filter(None, exchange):
            for message in messages(packet):
                if isinstance(message, kind):
                    return message
    raise AssertionError(kind)


def told(seen: Seen, message: Any, *, is_sent: bool = False) -> Seen:
    packet = wire.pack([wire.sign(message, ANYBODY).frame])
    exchange = (b"", packet) if is_sent else (packet, b"")
    return with_hospital(seen, exchanges=(*seen.hospitals[0].exchanges, exchange))


# What a broken federation would show ----------------------------------------------------------


def a_charge_is_gone(seen: Seen) -> Seen:
    return with_entries(seen, lambda entries: entries[1:])


def a_charge_is_given_back(seen: Seen) -> Seen:
    given_back = {"state": EntryState.CANCELLED, "spent": None, "release_digest": None}
    return with_entries(seen, lambda entries: [replace(entries[0], **given_back), *entries[1:]])


def a_charge_is_smaller(seen: Seen) -> Seen:
    ledger = seen.hospitals[0].ledger
    less = replace(ledger.entries[0].spent, sigma=2 * ledger.entries[0].spent.sigma)
    return with_entries(
        seen, lambda entries: [replace(entries[0], reserved=less, spent=less), *entries[1:]]
    )


def a_charge_stands_twice(seen: Seen) -> Seen:
    return with_entries(seen, lambda entries: [*entries, entries[0]])


def a_charge_is_for_nothing(seen: Seen) -> Seen:
    return with_entries(
        seen, lambda entries: [*entries, replace(entries[0], entry_id=bytes(32).hex())]
    )


def a_run_says_that_it_cost_less(seen: Seen) -> Seen:
    progress = seen.runs[0].run.progress
    return with_run(seen, progress=replace(progress, share=0.9 * progress.share))


def a_run_says_that_it_cost_more(seen: Seen) -> Seen:
    progress = seen.runs[0].run.progress
    return with_run(seen, progress=replace(progress, share=1.1 * progress.share))


def a_release_is_in_no_ledger(seen: Seen) -> Seen:
    return replace(seen, runs=(replace(seen.runs[0], batches=seen.runs[0].batches[1:]),))


def a_plan_has_two_vectors(seen: Seen) -> Seen:
    vector = heard(seen, MaskedVector)
    return told(seen, replace(vector, body=bytes(len(vector.body))), is_sent=True)


def a_plan_has_two_verdicts(seen: Seen) -> Seen:
    plan = wire.digest_of(heard(seen, Plan))
    for survivors in ((b"a" * 32, b"b" * 32), ()):
        seen = told(seen, Verdict(plan, survivors), is_sent=True)
    return seen


def a_plan_is_voted_on_twice(seen: Seen) -> Seen:
    voted = seen.hospitals[0].voted
    return with_hospital(seen, voted=(*voted, voted[0]))


def a_plan_is_settled_twice(seen: Seen) -> Seen:
    settlement = heard(seen, Settlement)
    release = NoisyRelease.from_record(decode_value(settlement.result))
    other = NoisyRelease(1 - release.labels, release.outcomes)
    return told(seen, replace(settlement, result=encode_value(other.as_record())))


def a_query_is_released_for_two_plans(seen: Seen) -> Seen:
    plan, settlement = heard(seen, Plan), heard(seen, Settlement)
    again = replace(plan, epoch=plan.epoch + 100)
    seen = told(seen, again)
    return told(seen, replace(settlement, plan_digest=wire.digest_of(again)))


def a_query_is_opened_for_two_plans(seen: Seen) -> Seen:
    """All that it takes to open two sums of a query has left, though one was never released."""
    plan = heard(seen, Plan)
    again = replace(plan, epoch=plan.epoch + 100)
    seen = told(seen, again)
    hospitals = []
    for one in seen.hospitals:
        said: list[tuple[bytes, bytes]] = []
        for received, sent in one.exchanges:
            if sent and {MaskedVector, Reveal} & set(map(type, messages(sent))):
                said.append((_moved(received, again), _moved(sent, again)))
        hospitals.append(replace(one, exchanges=(*one.exchanges, *said)))
    return replace(seen, hospitals=tuple(hospitals))


def _moved(packet: bytes, plan: Plan) -> bytes:
    """The same messages, for another plan."""
    digest, moved = wire.digest_of(plan), []
    for message in messages(packet):
        if isinstance(message, Plan):
            moved.append(plan)
        elif isinstance(message, MaskedVector | ShareBundle):
            moved.append(replace(message, plan_digest=digest))
        elif isinstance(message, Reveal):
            moved.append(message)
    return wire.pack(
        [
            wire.sign(message, ANYBODY).frame if message.PURPOSE else wire.contain(message)
            for message in moved
        ]
    )


def a_label_is_another(seen: Seen) -> Seen:
    [run] = seen.runs
    assert run.labels is not None
    first, *_ = run.labels
    return replace(seen, runs=(replace(run, labels={**run.labels, first: 1 - run.labels[first]}),))


def a_label_is_missing(seen: Seen) -> Seen:
    [run] = seen.runs
    assert run.labels is not None
    return replace(seen, runs=(replace(run, labels=dict(list(run.labels.items())[1:])),))


def a_transcript_is_changed(seen: Seen) -> Seen:
    [run] = seen.runs
    lines = run.transcript.splitlines(keepends=True)
    return replace(seen, runs=(replace(run, transcript="".join([*lines[:3], *lines[4:]])),))


def a_journal_is_from_yesterday(seen: Seen) -> Seen:
    exchanges = seen.hospitals[0].exchanges
    first = next(
        one
        for one in exchanges
        if any(hasattr(said, "journal_counter") for said in messages_in(one[1]))
    )
    return with_hospital(seen, exchanges=(*exchanges, first))


def a_run_hangs(seen: Seen) -> Seen:
    return with_run(seen, state=RunState.RUNNING)


def a_run_fails_without_a_word(seen: Seen) -> Seen:
    return with_run(seen, state=RunState.FAILED)


def a_run_is_done_in_part_without_a_word(seen: Seen) -> Seen:
    progress = seen.runs[0].run.progress
    return with_run(seen, progress=replace(progress, queries=progress.queries + 1))


def a_reason_is_kept_to_the_queue(seen: Seen) -> Seen:
    run = replace(
        seen.runs[0].run, state=RunState.FAILED, reason="PF-412: a hospital must be there"
    )
    return with_seen_run(seen, run=run, table=seen.runs[0].table | run.as_table())


def a_reason_is_shown_to_people_alone(seen: Seen) -> Seen:
    table = seen.runs[0].table
    failed = with_run(seen, state=RunState.FAILED, reason="PF-412: a hospital must be there")
    return with_seen_run(failed, table=table)


BROKEN = [
    (a_charge_is_gone, Fault.LOST),
    (a_charge_is_given_back, Fault.LOST),
    (a_charge_is_smaller, Fault.LOST),
    (a_charge_stands_twice, Fault.DOUBLED),
    (a_charge_is_for_nothing, Fault.DOUBLED),
    (a_run_says_that_it_cost_less, Fault.LOST),
    (a_run_says_that_it_cost_more, Fault.DOUBLED),
    (a_release_is_in_no_ledger, Fault.LOST),
    (a_plan_has_two_vectors, Fault.AGAIN),
    (a_plan_has_two_verdicts, Fault.AGAIN),
    (a_plan_is_voted_on_twice, Fault.AGAIN),
    (a_plan_is_settled_twice, Fault.AGAIN),
    (a_query_is_released_for_two_plans, Fault.AGAIN),
    (a_query_is_opened_for_two_plans, Fault.AGAIN),
    (a_label_is_another, Fault.LABELS),
    (a_label_is_missing, Fault.LABELS),
    (a_transcript_is_changed, Fault.STORY),
    (a_journal_is_from_yesterday, Fault.BACK),
    (a_run_hangs, Fault.SILENT),
    (a_run_fails_without_a_word, Fault.SILENT),
    (a_run_is_done_in_part_without_a_word, Fault.SILENT),
    (a_reason_is_kept_to_the_queue, Fault.SILENT),
    (a_reason_is_shown_to_people_alone, Fault.SILENT),
]


def test_nothing_is_found_where_nothing_happened(sound: Seen) -> None:
    assert violations(sound) == []
    assert len(sound.runs[0].labels or ()) == 6
    assert {len(one.voted) for one in sound.hospitals} == {3}


@pytest.mark.parametrize(
    ("broken", "fault"),
    [pytest.param(broken, fault, id=broken.__name__.replace("_", " ")) for broken, fault in BROKEN],
)
def test_what_may_not_be_is_found(
    sound: Seen, broken: Callable[[Seen], Seen], fault: Fault
) -> None:
    assert fault in {each.fault for each in violations(broken(sound))}
