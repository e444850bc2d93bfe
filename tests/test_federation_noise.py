"""Whole runs with noise at the parties: no exact sum exists, and each opened row is paid for."""

from __future__ import annotations

import dataclasses
import logging
import math
import secrets
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from coordinator.errors import CoordinatorError, PartyRefusedError, VoidBatchError
from coordinator.runs.labeling import deciding
from party.decision.guard import Guard
from party.decision.node import PartyNode
from party.errors import Reason, RefusalError
from pate_fed.accounting import (
    DistributedGaussianMaxEvent,
    GaussianMaxEvent,
    Outcomes,
    PrivacyLedger,
    distributed_row_rdp,
    event_charged_rdp,
    event_label_rdp,
    event_rdp,
    label_rdp,
)
from pate_fed.accounting.conversion import epsilon_at_order
from pate_fed.charges import RunLedger, charge_of, noise_of
from pate_fed.errors import InvalidParameterError
from pate_fed.mechanisms import DistributedNoise, RandomBytes, keyed_stream
from pate_fed.opened_sums import open_noisy_sum
from pate_fed.releases import NoisyRelease, Outcome
from pate_fed.terms import BatchTerms
from pate_fed.votes import NoiseShare, NoisyHistogram, TeacherWeights
from protocols import wire
from protocols.messages import RunRecord
from protocols.rounds import PartyState
from protocols.values import decode_value, encode_value
from tests.support.charged import charged_epsilon
from tests.support.federation import (
    CLASSES,
    ORDER,
    SIGMA,
    TEACHERS,
    Federation,
    expected_class,
    kinds,
    messages,
    ready_federation,
    refusal_of,
    voting,
    wrapped,
)
from tests.support.marker import MARKED_TEACHERS, MARKERS, findings, held_in_memory, marked_votes
from tests.support.markers import more, sampled
from tests.support.rules import changed_record, with_other

AT_PARTIES = {"noise_place": "parties"}
CULPRIT = 1


def built(parties: int = 4, *, terms: dict[str, Any] | None = None, **changed: Any) -> Federation:
    return Federation(parties=parties, terms={**AT_PARTIES, **(terms or {})}, **changed)


def ready(parties: int = 4, **changed: Any) -> Federation:
    federation = built(parties, **changed)
    federation.run.set_up()
    return federation


def stream(place: int) -> RandomBytes:
    return keyed_stream(bytes([place] * 32), tag="noise of a test")


def votes_of(indices: Collection[int], *, parties: int, teachers: int = TEACHERS) -> NDArray[Any]:
    """The clean sum of parties whose teachers are unanimous."""
    rows = np.zeros((len(indices), CLASSES), dtype=np.int64)
    rows[np.arange(len(indices)), [expected_class(index) for index in indices]] = parties * teachers
    return rows


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[NoisyHistogram]:
    """Every noisy sum that the coordinator opens."""
    found: list[NoisyHistogram] = []

    def watching(*arguments: Any, **named: Any) -> NoisyHistogram:
        found.append(open_noisy_sum(*arguments, **named))
        return found[-1]

    monkeypatch.setattr(deciding, "open_noisy_sum", watching)
    return found


# The sum --------------------------------------------------------------------------------------


@sampled()
@pytest.mark.parametrize(
    ("form", "lost"),
    [
        pytest.param("additive", [], id="additive"),
        pytest.param("masked", [], id="masked"),
        pytest.param("masked", [2], id="masked, one lost"),
    ],
)
def test_what_opens_is_votes_and_the_noise_of_those_who_sent(
    form: str, lost: list[int], opened: list[NoisyHistogram]
) -> None:
    parties, indices = 5, (5, 0, 7)
    federation = ready(
        parties, form=form, noises={place: stream(place) for place in range(parties)}
    )
    federation.lose(*lost)
    release = federation.ask(*indices)
    senders = [place for place in range(parties) if place not in lost]
    noise = noise_of(federation.run.terms)
    shares = [
        noise.draw(len(indices), CLASSES, random_bytes=stream(place)).counts for place in senders
    ]
    clean = votes_of(indices, parties=len(senders))
    [noisy] = opened
    assert np.array_equal(noisy.counts - clean, sum(shares))
    assert np.abs(noisy.counts - clean).max() > 0
    assert noisy.sigma == noise.sum_sigma(len(senders))
    assert release.labels.tolist() == noisy.counts.argmax(axis=1).tolist()
    assert release.answered == len(indices)
    federation.lose()
    federation.run.close()


def test_coordinator_adds_no_noise_of_its_own() -> None:
    def never(count: int) -> bytes:
        raise AssertionError(count)

    federation = ready(noise=never)
    assert federation.ask(0, 1).labels.tolist() == [0, 1]


def test_noise_is_drawn_afresh_for_every_batch(opened: list[NoisyHistogram]) -> None:
    federation = ready()
    federation.ask(0, 1, 2)
    federation.ask(3, 4, 5)
    one, other = (
        noisy.counts - votes_of(indices, parties=4)
        for noisy, indices in zip(opened, [(0, 1, 2), (3, 4, 5)], strict=True)
    )
    assert not np.array_equal(one, other)


@sampled("lost")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "colluders", "lost"),
    [
        pytest.param("additive", 1, 0, id="additive, c = 1"),
        pytest.param("additive", 3, 0, id="additive, c = 3"),
        pytest.param("masked", 2, 1, id="masked, c = 2, d = 1"),
    ],
)
def test_what_is_left_without_colluders_and_the_lost_has_the_promised_variance(
    form: str, colluders: int, lost: int, opened: list[NoisyHistogram]
) -> None:
    """6,000 entries: false alarm below 1e-6; a share too few or too many moves it by 13 sd."""
    parties, queries = 5, 2_000
    noises = {place: stream(place + 10 * colluders) for place in range(parties)}
    federation = built(
        parties,
        form=form,
        pool=queries,
        noises=noises,
        terms={
            "colluders": colluders,
            "max_asks": queries,
            "max_answers": queries,
            "budgets": (1e4,) * parties,
        },
        policy={"most_epsilon": 1e4},
        budgets=dict.fromkeys(range(parties), 1e4),
    )
    for place in range(colluders):
        federation.nodes[place]._ballots._draw_noise = lambda *_, **__: None  # type: ignore[method-assign]
    federation.run.set_up()
    federation.lose(*range(parties - lost, parties))
    federation.ask(*range(queries))
    left = opened[0].counts - votes_of(range(queries), parties=parties - lost)
    entries = left.size
    ratio = float((left**2).sum()) / SIGMA**2 / entries
    deviation = math.sqrt(2 / entries)
    assert abs(ratio - 1) < 5 * deviation
    assert abs(ratio - (parties - colluders - lost + 1) / (parties - colluders - lost)) > 10 * (
        deviation
    )


# Order and charge -----------------------------------------------------------------------------


def test_a_party_charges_then_draws_then_asks_its_teachers_then_stores_then_sends() -> None:
    federation = built()
    steps = federation.steps[0]

    def noise(count: int) -> bytes:
        if steps[-1] != "noise":
            steps.append("noise")
        return stream(0)(count)

    federation.nodes[0]._ballots._noise_bytes = noise
    federation.run.set_up()
    federation.ask(0, 1)
    assert steps == ["ledger reserved", "claim", "noise", "vote", "begin", "keep"]


@sampled()
@pytest.mark.parametrize("form", ["additive", "masked"])
def test_a_party_is_charged_the_coordinators_view_of_every_row(form: str) -> None:
    parties, colluders = 6, 1
    federation = ready(parties, form=form)
    federation.ask(0, 1, 2)
    federation.run.close()
    dropouts = {"additive": 0, "masked": 1}[form]
    shares = parties - colluders - dropouts
    for node in federation.nodes:
        [entry] = node.ledger.entries
        assert entry.charged == DistributedGaussianMaxEvent(3, SIGMA, shares, 1)
        charged = float(event_charged_rdp(entry.charged, [ORDER])[0])
        # order k^2 / sigma^2 a row: what Gaussian noise of the promised sigma costs its reader.
        assert charged == pytest.approx(3 * ORDER / SIGMA**2, rel=1e-6)
        rows = distributed_row_rdp([ORDER], sigma=SIGMA, shares=shares, weight=1)
        assert charged == pytest.approx(3 * float(rows[0]), rel=1e-12)


def test_ledgers_of_the_parties_end_as_the_coordinators() -> None:
    federation = ready()
    federation.ask(0, 1, 2)
    federation.ask(3)
    federation.run.close()
    for node in federation.nodes:
        assert [entry.charged for entry in node.ledger.entries] == [
            charge_of(federation.run.terms, entry.charged, weight=1) for entry in federation.charges
        ]


def settled_with(federation: Federation, change: Callable[[NoisyRelease], NoisyRelease]) -> None:
    """Let the coordinator tell another outcome list than the one that it has."""
    settle = federation.run.round.batch.settle

    def telling(*, released: bool, result: bytes) -> bytes:
        release = change(NoisyRelease.from_record(decode_value(result)))
        return settle(released=released, result=encode_value(release.as_record()))

    federation.run.round.batch.settle = telling  # type: ignore[method-assign]


def with_the_last_not_asked(release: NoisyRelease) -> NoisyRelease:
    labels, outcomes = release.labels.copy(), release.outcomes.copy()
    labels[-1], outcomes[-1] = -1, Outcome.NOT_ASKED
    return NoisyRelease(labels, outcomes)


def with_the_last_refused(release: NoisyRelease) -> NoisyRelease:
    labels, outcomes = release.labels.copy(), release.outcomes.copy()
    labels[-1], outcomes[-1] = -1, Outcome.REFUSED
    return NoisyRelease(labels, outcomes)


@sampled()
@pytest.mark.parametrize("cap", [pytest.param(3, id="at a cap"), pytest.param(9, id="not at one")])
@pytest.mark.parametrize("change", [with_the_last_not_asked, with_the_last_refused])
def test_no_outcome_list_gives_anything_back(
    cap: int, change: Callable[[NoisyRelease], NoisyRelease]
) -> None:
    federation = ready(terms={"max_asks": cap, "max_answers": cap})
    settled_with(federation, change)
    federation.ask(0, 1, 2)
    with suppress(CoordinatorError):  # some lists stop the hospitals
        federation.run.close()
    for node in federation.nodes:
        [entry] = node.ledger.entries
        assert entry.charged == DistributedGaussianMaxEvent(3, SIGMA, 3, 1)


def test_what_a_release_says_changes_nothing_that_is_charged() -> None:
    """The ledger itself: all that was reserved stays, were fewer rows ever said to be answered."""
    federation = built()
    ledger = RunLedger.of(federation.run.terms, at_party=True).reserve("batch", Outcomes(5, 5))
    after = ledger.commit("batch", Outcomes(2, 2), bytes(32))
    assert after.paid_for("batch", Outcomes(2, 2)) == Outcomes(5, 2)
    assert after.own is not None
    assert after.own.entries[0].charged == Outcomes(5, 2)
    assert after.used_share() == ledger.used_share() == 0.05


def test_a_void_batch_stays_charged_in_full() -> None:
    federation = ready()
    federation.on_vectors_of(CULPRIT, lambda answer: None)
    with pytest.raises(VoidBatchError) as void:
        federation.ask(0, 1)
    assert void.value.reservation == "forfeited"
    federation.transport.on_answer = lambda node, answer: answer
    federation.ask(2)
    for place in range(4):
        charged = [entry.charged for entry in federation.nodes[place].ledger.entries]
        assert charged == [DistributedGaussianMaxEvent(rows, SIGMA, 3, 1) for rows in (2, 1)]
        assert federation.party_states(place) == ["forfeited", "reserved"]


def test_a_budget_that_the_coordinators_view_does_not_fit_refuses_though_the_publics_would() -> (
    None
):
    event, order = DistributedGaussianMaxEvent(20, SIGMA, 3, 1), 20.0
    coordinators, publics = (
        epsilon_at_order(float(view(event, [order])[0]), order, delta=1e-5)
        for view in (event_rdp, event_label_rdp)
    )
    assert publics < 0.9 * coordinators
    refused = ready(budgets={CULPRIT: 0.999 * coordinators}, orders={CULPRIT: order})
    with pytest.raises(VoidBatchError, match=Reason.BUDGET):
        refused.ask(*range(20))
    assert "vote" not in refused.steps[CULPRIT]
    enough = ready(budgets={CULPRIT: 1.001 * coordinators}, orders={CULPRIT: order})
    assert enough.ask(*range(20)).answered == 20


def test_a_hospital_takes_part_in_both_kinds_of_run_over_the_years_on_one_budget() -> None:
    """Noise at the coordinator, then at the parties, in one ledger: what each cost adds up."""
    life = PrivacyLedger.for_life(5.0, 1e-5)
    first = ready_federation(parties=4)
    first.ask(0, 1, 2)
    first.run.close()
    second = built()
    second.nodes[CULPRIT]._ledger = first.nodes[CULPRIT]._ledger
    second.run.set_up()
    second.ask(3, 4)
    second.run.close()
    labels, rows = (entry.spent for entry in second.nodes[CULPRIT].ledger.entries)
    assert labels == GaussianMaxEvent(3, SIGMA)
    assert rows == DistributedGaussianMaxEvent(2, SIGMA, 3, 1)
    parts = 3 * label_rdp([life.order], sigma=SIGMA)
    # Each opened row is charged as the coordinator sees it, in the same sum.
    rdp = float(parts[0]) + 2 * float(distributed_row_rdp([life.order], sigma=SIGMA, shares=3)[0])
    expected = epsilon_at_order(rdp, life.order, delta=1e-5)
    charged = charged_epsilon(second.nodes[CULPRIT].ledger)
    assert expected <= charged <= expected * (1 + 1e-9)


def test_rows_that_no_cap_allows_are_refused_before_anybody_votes() -> None:
    federation = ready(terms={"max_asks": 2, "max_answers": 2})
    terms = BatchTerms(federation.run.terms, (0, 1, 2))
    frame = federation.run.round.batch.plan(
        batch=0,
        words=terms.words,
        expires_at=2_000,
        terms=encode_value(terms.as_record()),
    )
    answer = federation.nodes[0].receive(wire.pack([frame]))
    assert kinds(answer) == ["Refusal"]
    assert federation.steps[0] == ["abandon"]


# The guard ------------------------------------------------------------------------------------

RUN_REFUSALS = [
    pytest.param({"sigma2": 3.9}, {"least_sigma2": 4.0}, Reason.MECHANISM, id="too little noise"),
    pytest.param(
        {},
        {"noise_places": frozenset({"coordinator"})},
        Reason.MECHANISM,
        id="noise that its owner wants from the coordinator",
    ),
    pytest.param({"budgets": (5.1,) * 4}, {}, Reason.BUDGET, id="too large an epsilon"),
]


@pytest.mark.parametrize(("terms", "policy", "reason"), RUN_REFUSALS)
def test_a_party_refuses_noise_outside_its_policy(
    terms: dict[str, Any], policy: dict[str, Any], reason: Reason
) -> None:
    federation = built(terms=terms, policy=policy)
    with pytest.raises(PartyRefusedError) as refusal:
        federation.run.set_up()
    assert refusal.value.cause == reason
    assert not any(federation.steps)


def test_a_party_refuses_noise_where_its_owner_wants_it_at_the_parties() -> None:
    federation = Federation(policy={"noise_places": frozenset({"parties"})})
    with pytest.raises(PartyRefusedError) as refusal:
        federation.run.set_up()
    assert refusal.value.cause == Reason.MECHANISM


@sampled()
@pytest.mark.parametrize(("claimed", "agrees"), [(1, False), (2, True), (3, True)])
def test_every_peer_that_nobody_checked_counts_as_a_colluder(claimed: int, agrees: bool) -> None:
    federation = built(5, terms={"colluders": claimed})
    node = federation.nodes[0]
    checked = dict(list(node._guard.checked_peers.items())[:3])
    assert node._identity.fingerprint in checked
    node._guard = dataclasses.replace(node._guard, checked_peers=checked)
    if agrees:
        federation.run.set_up()
        assert federation.ask(0).answered == 1
        return
    with pytest.raises(PartyRefusedError) as refusal:
        federation.run.set_up()
    assert (refusal.value.party, refusal.value.cause) == (federation.names[0], Reason.FORM)
    assert not any(federation.steps)


def review(terms: dict[str, Any] | None = None, **record: Any) -> None:
    """Let a party look at a run that a coordinator of ours would not even propose."""
    federation = ready(form="masked", parties=6)
    node, seats = federation.nodes[0], federation.run.round.seats
    known = node._round.record
    assert isinstance(known, RunRecord)
    fields = changed_record(federation.run.terms.as_record(), **(terms or {}))
    proposed = dataclasses.replace(known, terms=encode_value(fields), **record)
    Guard(
        policy=dataclasses.replace(node._guard.policy, forms=frozenset({"masked", "plain"})),
        weights=node._guard.weights,
        checked_peers=node._guard.checked_peers,
    ).review_run(proposed, seats=seats, me=seats[0])


def test_the_run_that_is_changed_below_is_one_that_a_party_agrees_to() -> None:
    review()
    review({"colluders": 2, "sigma2": 30.0}, colluders=2)


@sampled()
@pytest.mark.parametrize(
    ("terms", "record", "reason"),
    [
        pytest.param({}, {"colluders": 2}, Reason.TERMS, id="fewer colluders than the run has"),
        pytest.param({"colluders": 2}, {}, Reason.TERMS, id="more colluders than the run has"),
        pytest.param({"dropouts": 0}, {}, Reason.TERMS, id="fewer drop-outs than the run has"),
        pytest.param({"colluders": 0}, {"colluders": 0}, Reason.FORM, id="nobody may collude"),
        pytest.param({"colluders": 0}, {}, Reason.TERMS, id="a share that nobody knows"),
        pytest.param({"dropouts": None}, {}, Reason.TERMS, id="no word of drop-outs"),
        pytest.param({"sigma2": 1.9}, {}, Reason.MECHANISM, id="shares narrower than a vote"),
        pytest.param({"sigma2": 1e9}, {}, Reason.TERMS, id="noise beyond all tables"),
        pytest.param(
            {"dropouts": 0},
            {"form": "plain", "threshold": 6, "dropouts": 0},
            Reason.FORM,
            id="shares in the clear",
        ),
    ],
)
def test_a_party_refuses_a_run_whose_noise_is_not_what_is_paid_for(
    terms: dict[str, Any], record: dict[str, Any], reason: Reason
) -> None:
    with pytest.raises(RefusalError) as refusal:
        review(terms, **record)
    assert refusal.value.reason is reason


@pytest.mark.slow
def test_no_sum_of_votes_and_noise_may_leave_the_ring() -> None:
    """2^30 votes fit alone, and with little noise, but not with noise of the largest tables."""
    federation = ready()
    most = with_other(
        federation.run.terms, sigma2=37_000.0, weights=(TeacherWeights.equal(2**28 - 1),) * 4
    )
    noise_of(most).require_room(most.total_votes)
    with pytest.raises(InvalidParameterError):
        noise_of(most).require_room(2**31 - 1)


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"sigma2": 10.0}, id="less noise than agreed"),
        pytest.param({"colluders": 2}, id="other colluders than agreed"),
        pytest.param({"vote_threshold": 1.0}, id="another threshold"),
    ],
)
def test_a_party_refuses_a_batch_with_other_noise_than_the_runs(changed: dict[str, Any]) -> None:
    federation = ready()
    run = with_other(federation.run.terms, **changed)
    answer = propose(federation, BatchTerms(run, (0, 1)))
    assert refusal_of(answer) == Reason.TERMS
    assert federation.steps[0] == ["abandon"]


def propose(federation: Federation, terms: BatchTerms) -> bytes:
    """Send one party a plan that the coordinator signed."""
    frame = federation.run.round.batch.plan(
        batch=0,
        words=terms.words,
        expires_at=2_000,
        terms=encode_value(terms.as_record()),
    )
    return federation.nodes[0].receive(wire.pack([frame]))


def test_noise_that_can_be_repeated_is_for_simulations_only() -> None:
    node = ready().nodes[0]
    guard = node._guard
    arguments: dict[str, Any] = {
        "identity": node._identity,
        "coordinator": node._coordinator,
        "known_peers": node._known_peers,
        "tasks": node._tasks,
        "forms": node._forms,
        "journal": node._journal,
        "ledger": node._ledger,
        "random_bytes": secrets.token_bytes,
        "clock": node._clock,
    }
    real = Guard(
        policy=dataclasses.replace(guard.policy, simulated=False),
        weights=guard.weights,
        checked_peers=guard.checked_peers,
    )
    PartyNode(guard=guard, noise_bytes=stream(0), **arguments)
    assert PartyNode(guard=real, **arguments)._ballots._noise_bytes is secrets.token_bytes
    with pytest.raises(InvalidParameterError):
        PartyNode(guard=real, noise_bytes=stream(0), **arguments)


# Row sums and lies ----------------------------------------------------------------------------


def bound_of(federation: Federation, queries: int) -> int:
    noise = noise_of(federation.run.terms)
    return noise.row_sum_bound(queries, CLASSES, senders=len(federation.nodes))


@pytest.mark.parametrize("sign", [1, -1])
def test_noise_that_is_far_too_large_voids_the_batch_and_blames_nobody(sign: int) -> None:
    federation = ready()
    lie = np.zeros((2, CLASSES), dtype=np.int64)
    lie[1, 2] = sign * 2 * bound_of(federation, 2)
    federation.nodes[CULPRIT].lie = lie
    with pytest.raises(VoidBatchError, match="row") as void:
        federation.ask(0, 1)
    assert void.value.reservation == "forfeited"
    assert not any(name in str(void.value) for name in federation.names)
    federation.nodes[CULPRIT].lie = None
    assert federation.ask(2).answered == 1
    assert [federation.party_states(place)[0] for place in range(4)] == ["forfeited"] * 4


@pytest.mark.slow
@pytest.mark.parametrize("batches", [4, more(40)])
def test_honest_batches_are_not_void(batches: int) -> None:
    """Batches of 600 rows: the bound is for one alarm in 10^9 batches."""
    queries = 600
    most = batches * queries
    federation = ready(
        pool_inputs=np.random.default_rng(1).standard_normal((most, 8)),  # none near another
        terms={"max_asks": most, "max_answers": most, "budgets": (1e4,) * 4},
        policy={"most_epsilon": 1e4, "most_queries": most},
        budgets=dict.fromkeys(range(4), 1e4),
    )
    for start in range(0, most, queries):
        assert federation.ask(*range(start, start + queries)).answered == queries
    # Not for want of tightness: it is less than 7.5 standard deviations of a row's noise.
    noise = noise_of(federation.run.terms)
    assert bound_of(federation, queries) < 7.5 * noise.sum_sigma(4) * math.sqrt(CLASSES)


def test_a_lie_within_the_noise_is_not_caught() -> None:
    """A limit that is stated: the row sums catch accidents, not liars."""
    federation = ready()
    lie = np.zeros((1, CLASSES), dtype=np.int64)
    lie[0, 1] = bound_of(federation, 1) // 8
    federation.nodes[CULPRIT].lie = lie
    assert federation.ask(0).answered == 1


@sampled("size")
@pytest.mark.parametrize("size", [1, more(180), 2**20, 2**31 - 201, 2**31 - 200, more(2**31 - 1)])
def test_nothing_that_anybody_sees_beside_labels_depends_on_a_lie_that_keeps_row_sums(
    size: int,
) -> None:
    """Void or not, charges, sizes, exchanges: the same whatever honest hospitals voted.

    Without a threshold: "no answer" is a label, too, and each has a size.
    """
    seen = set()
    for row in ([TEACHERS, 0, 0], [0, TEACHERS, 0], [TEACHERS - 1, 1, 0], [0, 0, TEACHERS]):
        noises = {place: stream(place) for place in range(4)}
        federation = ready(
            votes={0: voting(np.array(row))}, noises=noises, terms={"mechanism": "gnmax"}
        )
        federation.nodes[CULPRIT].lie = wrapped(np.array([[size, -size, 0], [0, -size, size]]))
        release = federation.ask(0, 1)
        federation.run.close()
        seen.add(
            (
                release.answered,
                tuple(len(packet) for packet in federation.transport.packets),
                tuple(federation.events),
                tuple(tuple(steps) for steps in federation.steps),
                tuple(entry.charged for entry in federation.charges),
                federation.run.is_over,
            )
        )
    assert len(seen) == 1


# Marker ---------------------------------------------------------------------------------------

WIDE = 50_000.0
"""So wide that most of a share's entries are numbers that nothing else comes to."""


def odd(row: Iterable[Any]) -> tuple[int, ...]:
    """Entries of a row that are worth looking for: of five digits or more."""
    return tuple(int(number) for number in row if abs(number) >= 10_000)


@pytest.mark.slow
def test_neither_a_clean_sum_nor_votes_nor_noise_is_held_sent_or_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    federation = ready(
        3,
        teachers=MARKED_TEACHERS,
        votes={CULPRIT: marked_votes},
        terms={"sigma2": WIDE},
        noises={place: stream(place) for place in range(3)},
    )
    drawn: list[tuple[int, ...]] = []
    draw = DistributedNoise.draw

    def noting(self: DistributedNoise, *arguments: Any, **named: Any) -> NoiseShare:
        share = draw(self, *arguments, **named)
        drawn.extend(numbers for row in share.counts if len(numbers := odd(row)) >= 2)
        return share

    monkeypatch.setattr(DistributedNoise, "draw", noting)
    found: list[str] = []
    clean = {
        (2 * MARKED_TEACHERS + MARKERS[0], MARKERS[1], MARKERS[2]),
        (MARKERS[0], 2 * MARKED_TEACHERS + MARKERS[1], MARKERS[2]),
    }

    def look() -> None:
        roots = (federation.run, federation.run.round, federation.store, *federation.nodes)
        found.extend(held_in_memory(*roots, rows=(MARKERS, *clean, *drawn)))

    def opening(words: NDArray[np.int64], **named: Any) -> NoisyHistogram:
        look()
        assert not any(set(row) <= set(words.tolist()) for row in (MARKERS, *clean, *drawn))
        return open_noisy_sum(words, **named)

    monkeypatch.setattr(deciding, "open_noisy_sum", opening)
    federation.ask(0, 1)
    look()
    federation.ask(3, 4)
    federation.ask(5, 6, 7, 8)
    federation.run.close()
    look()
    assert len(drawn) > 8  # of 24 rows
    assert found == []
    for numbers in (MARKERS, *clean, *drawn):
        least = 2 if numbers in drawn else 1  # one number of noise may be any
        for said in (*federation.transport.packets, caplog.text.encode()):
            assert findings(said, numbers, least=least) == []


@pytest.mark.slow
def test_that_search_finds_a_share_that_was_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    federation = ready(terms={"sigma2": WIDE}, noises={0: stream(0)})
    node, draw = federation.nodes[0], DistributedNoise.draw
    rows: list[tuple[int, ...]] = []

    def keeping(self: DistributedNoise, *arguments: Any, **named: Any) -> NoiseShare:
        node._kept = draw(self, *arguments, **named)  # type: ignore[attr-defined]
        rows.append(odd(node._kept.counts.ravel()))  # type: ignore[attr-defined]
        return node._kept  # type: ignore[attr-defined, no-any-return]

    monkeypatch.setattr(DistributedNoise, "draw", keeping)
    federation.ask(0, 1, 2, 3)
    assert rows[-1]
    assert held_in_memory(node, rows=rows[-1:])


@sampled("batches")
@pytest.mark.parametrize("batches", [2, 3])
def test_a_hospital_that_misses_several_batches_in_a_row_goes_on(batches: int) -> None:
    federation = ready(5, form="masked")
    federation.ask(0, 4)
    federation.lose(1)
    for batch in range(batches):
        federation.ask(6 + 2 * batch, 7 + 2 * batch)
    federation.lose()
    assert federation.ask(18).answered == 1
    federation.run.close()
    assert {node.state for node in federation.nodes} == {PartyState.DONE}
    assert len({node.transcript_head for node in federation.nodes}) == 1
    assert {node._agreed_run.account.ledger.left for node in federation.nodes} == {
        federation.run.left
    }
    charged = [entry.charged for entry in federation.nodes[1].ledger.entries]
    assert charged == [DistributedGaussianMaxEvent(asks, SIGMA, 3, 1) for asks in (2, 1)]


def test_a_failure_behind_the_teachers_is_silent_however_often_the_plan_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A refusal, or a second vote, would tell something of the votes (rule R12)."""
    federation = ready()
    node, plans = federation.nodes[0], []

    def failing(*_: Any, **__: Any) -> Any:
        raise ValueError("it depends on the votes")

    def on_query(place: int, packet: bytes) -> bytes:
        if place == 0 and "Plan" in kinds(packet):
            plans.append(packet)
        return packet

    monkeypatch.setattr(node._ballots, "vector", failing)
    federation.transport.on_query = on_query
    with pytest.raises(VoidBatchError):
        federation.ask(0, 1)
    answers = [answer for place, answer in federation.transport.answers if place == 0]
    assert messages(answers[-1]) == []
    [plan] = plans
    assert messages(node.receive(plan)) == []
    assert federation.steps[0].count("vote") == 0


def test_there_is_no_per_instance_number() -> None:
    federation = ready()
    federation.ask(0, 1)
    assert federation.run.per_instance_cost is None
    assert federation.run._decider._meter is None
