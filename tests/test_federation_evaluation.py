"""Private evaluation among hospitals: what opens, what is charged, who refuses."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from coordinator.errors import PartyRefusedError, VoidBatchError
from party.errors import Reason
from party.site.party_task import tasks_of
from pate_fed.accounting import (
    DistributedCountsEvent,
    distributed_row_rdp,
    event_charged_rdp,
    event_label_rdp,
    event_public_rdp,
)
from pate_fed.errors import InvalidParameterError, InvalidTermsError
from pate_fed.mechanisms import keyed_stream
from pate_fed.releases import NoisyRelease
from pate_fed.report.held_out_scores import held_out_scores
from pate_fed.terms import RunTerms
from protocols.messages import MaskedVector
from protocols.values import decode_value, encode_value
from tests.support.evaluated import PLACES, SCHEMA, SIGMA, Evaluated, patients, plan_of, task_of
from tests.support.federation import Federation, messages
from tests.support.marker import MARKERS, findings, held_in_memory, not_in
from tests.support.markers import sampled
from tests.support.rules import changed_record, with_other


def ready(*by: str, places: int = PLACES, **named: Any) -> Evaluated:
    federation = Evaluated(task_of(*by, places=places), **named)
    federation.run.set_up()
    return federation


def refused(federation: Federation) -> str:
    with pytest.raises(PartyRefusedError) as found:
        federation.run.set_up()
    return found.value.cause


# What opens -------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["additive", "masked"])
def test_the_opened_counts_are_those_of_all_hospitals_with_their_noise(form: str) -> None:
    policy = {"evaluation_columns": frozenset({"sex"})}
    # Keyed noise: an interval of 95 % of fresh noise would miss once in 20 times.
    noises = {place: keyed_stream(b"%d" % place, tag="evaluation") for place in range(5)}
    federation = ready(
        "sex", form=form, counts=(120, 80, 100, 90, 60), policy=policy, noises=noises
    )
    noisy, true = federation.evaluate(), federation.true_rows
    assert true.sum(axis=1).tolist() == [5 * PLACES] * 3
    sigma = SIGMA * math.sqrt(5 / (federation.run.terms.rule.shares(5) or 0))
    off = noisy - true
    assert 0 < np.abs(off).max() < 6 * sigma
    assert (off != 0).mean() > 0.8  # noise in every count, the places left free included
    plan = plan_of(federation.task, sigma=sigma)
    scores = held_out_scores(plan, plan.counts_in(noisy))
    low, high = scores.accuracy_interval
    assert low < 0.8 < high
    assert set(scores.groups) == {"by sex"}
    federation.run.close()


def test_every_hospital_is_charged_before_it_sends_and_the_charge_stays() -> None:
    federation = ready()
    federation.evaluate()
    federation.run.close()
    for place in range(3):
        [entry] = federation.nodes[place].ledger.entries
        assert entry.spent == DistributedCountsEvent(2, SIGMA, 2, 1)
        steps = federation.steps[place]
        assert steps.index("ledger reserved") < steps.index("claim") < steps.index("keep")


def test_the_price_is_that_of_noisy_rows_that_everybody_reads() -> None:
    event, orders = DistributedCountsEvent(3, SIGMA, 2, 1), [2.0, 8.0, 32.0]
    rows = 3 * distributed_row_rdp(orders, sigma=SIGMA, shares=2, weight=1)
    for curve in (event_charged_rdp, event_public_rdp, event_label_rdp):
        assert curve(event, orders) == pytest.approx(rows, rel=1e-12)
    assert (rows >= 3 * np.array(orders) / SIGMA**2).all()  # l 2 / (2 sigma^2) a row: exact noise


def test_a_party_as_unit_moves_all_its_places() -> None:
    federation = ready(terms={"unit": "party", "sigma2": 200.0}, counts=(20, 10, 15), places=20)
    federation.evaluate()
    assert federation.nodes[0].ledger.entries[0].reserved.weight == 20


@pytest.mark.parametrize("rows", ["fails", "another shape", "another sum"])
def test_patients_who_cannot_be_counted_change_no_row_sum(rows: str) -> None:
    def broken() -> Any:
        good = task_of().rows_of(SCHEMA, *patients(50))
        if rows == "fails":
            raise MemoryError
        return good[:, 1:] if rows == "another shape" else good + 1

    federation = ready(rows={1: broken})
    noisy = federation.evaluate()
    free = 3 * PLACES - 120 - 100
    assert abs(noisy[0, -1] - free) < 6 * SIGMA * math.sqrt(1.5)


def test_a_prediction_that_is_no_number_counts_as_wrong_and_as_least_certain() -> None:
    records, chances = patients(40)
    chances[:10] = np.nan
    chances[10:20] = np.inf
    plan, rows = plan_of(task_of()), task_of(places=40).rows_of(SCHEMA, records, chances)
    scores = held_out_scores(plan, plan.counts_in(rows))
    right = (chances[20:].argmax(axis=1) == records.labels[20:]).mean()
    assert scores.accuracy == pytest.approx(right / 2)
    low = scores.by_certainty[plan.groupings[1].groups[0]]
    assert low.share is not None
    assert low.share >= 0.5


# Who refuses ------------------------------------------------------------------------------------


@sampled()
@pytest.mark.parametrize(
    ("policy", "code"),
    [
        ({"most_evaluations": 0}, Reason.EVALUATION),
        ({}, Reason.EVALUATION),  # nobody agreed to the column
        ({"evaluation_columns": frozenset({"sex"}), "least_sigma2": 50}, Reason.MECHANISM),
        ({"evaluation_columns": frozenset({"sex"}), "approved_pools": frozenset()}, Reason.POOL),
        (
            {"evaluation_columns": frozenset({"sex"}), "noise_places": frozenset({"coordinator"})},
            Reason.MECHANISM,
        ),
    ],
    ids=["no evaluations", "a column", "too little noise", "not approved", "no noise here"],
)
def test_what_an_owner_does_not_allow_is_refused_before_anybody_counts(
    policy: dict[str, Any], code: Reason
) -> None:
    federation = Evaluated(task_of("sex"), policy=policy)
    assert refused(federation) == code.value
    assert not any(node.ledger.entries for node in federation.nodes)


def test_a_hospital_without_held_out_patients_refuses() -> None:
    assert refused(Evaluated(task_of(), shares={1: 0.0})) == Reason.EVALUATION.value


def test_a_hospital_that_holds_nobody_out_by_chance_answers_as_any_other() -> None:
    """Otherwise its refusal would tell no patient from one."""
    nobody, one = (ready(counts=(120, count, 100)) for count in (0, 1))
    for federation in (nobody, one):
        assert federation.evaluate().shape == (2, plan_of(task_of()).columns)


def test_a_run_must_have_the_places_for_which_patients_were_predicted() -> None:
    federation = Evaluated(task_of())
    [kept] = federation.nodes[1]._tasks.values()
    other = replace(kept, evaluation=replace(kept.evaluation, places=PLACES - 1))  # type: ignore[type-var]
    federation.nodes[1]._tasks = tasks_of(other)
    assert refused(federation) == Reason.TASK.value


def test_weighted_patients_are_refused() -> None:
    federation = Evaluated(task_of(), weights={0: (2,) * PLACES})
    assert refused(federation) in (Reason.UNIT.value, Reason.TASK.value)


def test_labels_are_not_asked_of_an_evaluation_nor_counts_of_a_pool() -> None:
    votes = Federation(terms={"noise_place": "parties", "mechanism": "tallies"})
    assert refused(votes) == Reason.TASK.value
    counts = Evaluated(task_of(), terms={"mechanism": "gnmax"})
    assert refused(counts) == Reason.TASK.value


def test_no_terms_let_the_coordinator_add_the_noise() -> None:
    terms = ready().run.terms
    at_coordinator = {"noise_place": "coordinator", "colluders": None, "dropouts": None}
    with pytest.raises(InvalidParameterError):
        with_other(terms, **at_coordinator)
    with pytest.raises(InvalidTermsError):
        RunTerms.from_record(changed_record(terms.as_record(), **at_coordinator))


def test_an_owners_cap_on_evaluations_counts_those_of_all_runs() -> None:
    federation = ready(policy={"most_evaluations": 1})
    federation.evaluate()
    federation.run.close()
    asked = federation.nodes[0]._tasks[federation.pool.digest].evaluation
    guard, ledger = federation.nodes[0]._guard, federation.nodes[0].ledger
    with pytest.raises(Exception, match=r"\b1\b") as found:
        guard.review_evaluation(asked, ledger)
    assert found.value.reason is Reason.EVALUATION  # type: ignore[attr-defined]
    guard.review_evaluation(asked, ledger, own=ledger.entries[0].entry_id)


def test_the_same_student_in_the_same_groups_is_counted_once() -> None:
    federation = ready()
    federation.evaluate()
    charged = [node.ledger.used_share() for node in federation.nodes]
    federation.forget_asked()
    federation.set_up_anew()
    federation.forget_asked()
    federation.store.save_empty(federation.store.ledger().without_entries)
    with pytest.raises(VoidBatchError) as found:
        federation.evaluate()
    assert Reason.QUERIES.value in str(found.value)
    assert [node.ledger.used_share() for node in federation.nodes] == charged


def test_students_and_groups_that_differ_in_a_bit_are_other_questions_each_charged() -> None:
    tasks = [task_of(), task_of(student=b"{ }"), task_of("sex"), task_of(edge=0.7000001)]
    pools = {one.pool.digest for one in tasks}
    digests = {digest for one in tasks for digest in one.pool.ask((0, 1)).digests}
    assert len(pools) == 4
    assert len(digests) == 8


# What a liar can do -------------------------------------------------------------------------------


def test_a_liars_counts_cannot_void_or_hide_by_their_row_sum_alone() -> None:
    federation = ready()
    federation.nodes[1].lie = np.full((2, federation.run.terms.classes), 10_000)
    with pytest.raises(VoidBatchError, match="row"):
        federation.evaluate()
    assert {one for place in range(3) for one in federation.party_states(place)} == {"reserved"}


@sampled()
@pytest.mark.parametrize(
    "change",
    [
        lambda record: {key: record[key] for key in ("labels", "outcomes")},
        lambda record: {**record, "tallies": record["tallies"][:1]},
        lambda record: {**record, "tallies": [[0.5] for _ in record["tallies"]]},
        lambda record: {**record, "tallies": "all"},
        lambda record: {**record, "labels": [0, 0]},
    ],
    ids=["no counts", "a row too few", "no whole numbers", "text", "labels too"],
)
def test_a_coordinator_that_tells_impossible_counts_gets_no_charge_back(change: Any) -> None:
    federation = ready()
    federation.evaluate()
    [settled] = federation.run.round.settled
    lie = change(decode_value(settled.settlement.result))
    federation.settle_otherwise(replace(settled.settlement, result=encode_value(lie)))
    with pytest.raises(Exception, match="PF-"):
        federation.run.close()
    assert {one for place in range(3) for one in federation.party_states(place)} <= {
        "reserved",
        "forfeited",
    }


def test_a_release_of_counts_is_read_back_as_it_was() -> None:
    release = NoisyRelease(
        np.array([-1, -1]), np.array([0, 0]), tallies=np.array([[3, -4], [2**31 - 1, 0]])
    )
    read = NoisyRelease.from_record(decode_value(encode_value(release.as_record())))
    assert read.digest == release.digest
    other = replace(release, tallies=release.tallies + 1)  # type: ignore[operator]
    assert other.digest != release.digest


def test_a_restarted_hospital_sends_what_it_sent_and_counts_nobody_again() -> None:
    counted: list[int] = []

    def rows() -> Any:
        counted.append(1)
        return task_of().rows_of(SCHEMA, *patients(80))

    federation = ready(rows={1: rows}, patience_s=60)
    sent: list[bytes] = []

    def lose_once(answer: bytes) -> bytes | None:
        sent.append(b"".join(one.body for one in messages(answer) if isinstance(one, MaskedVector)))
        if len(sent) > 1:
            return answer
        federation.restart(1)
        return None

    federation.on_vectors_of(1, lose_once)
    federation.evaluate()
    assert len(sent) == 2
    assert sent[0] == sent[1]
    assert counted == [1]
    assert federation.party_states(1) == ["reserved"]  # it has no keys: it hears of it later


# What is never said -------------------------------------------------------------------------------


def test_counts_are_in_no_message_log_or_memory(caplog: pytest.LogCaptureFixture) -> None:
    """One hospital's counts are primes that nothing else comes to, and so is the clean sum."""
    columns, places = plan_of(task_of()).columns, sum(MARKERS) + 1_299_709

    def marked() -> NDArray[np.int64]:
        rows = np.zeros((2, columns), dtype=np.int64)
        rows[:, : len(MARKERS)] = MARKERS
        rows[:, -1] = places - sum(MARKERS)
        return rows

    def nobody() -> NDArray[np.int64]:
        rows = np.zeros((2, columns), dtype=np.int64)
        rows[:, -1] = places
        return rows

    caplog.set_level(logging.DEBUG)
    noises = {place: keyed_stream(b"%d" % place, tag="hidden") for place in range(3)}
    federation = ready(rows={0: marked, 1: nobody, 2: nobody}, places=places, noises=noises)
    noisy = federation.evaluate()
    federation.run.close()
    assert abs(noisy[0, : len(MARKERS)] - MARKERS).max() < 6 * SIGMA * math.sqrt(1.5)
    roots = (federation.run, federation.store, *federation.nodes)
    hidden = not_in(noisy)
    assert hidden == MARKERS
    assert not held_in_memory(*roots, rows=[hidden])
    for said in (*federation.transport.packets, caplog.text.encode()):
        assert not findings(said, hidden)
