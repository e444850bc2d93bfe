"""Attacks on one hospital's exact votes that span runs, forms, federations and restarts.

Each attack once read one honest hospital's exact votes, or more than was promised. Here it is
played against hospitals' real nodes, with default policies and with all runs in one federation or
each in its own. Nothing may be learned.

For each rule, a companion takes out that rule alone. Then the same attack must succeed: this shows
that the attack is real and that this rule stops it.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from sqlalchemy import func, select

from party.storage import Journal
from party.storage.site_schema import SiteRow
from protocols import wire
from protocols.errors import HistoryError, KeyConfirmationError
from protocols.masked import MaskedSum
from protocols.messages import (
    Certificate,
    Closing,
    HeadBundle,
    MaskedVector,
    Plan,
    Reveal,
    SetProposal,
    Settlement,
    SetupClosing,
    ShareBundle,
    VerdictMacs,
)
from protocols.rounds import RunNote
from protocols.rounds.opening import at_coordinator as opening
from protocols.rounds.round_journal import MOST_UNSERVED
from protocols.values import encode_value
from tests.support.hostile import (
    Patch,
    Places,
    Run,
    TakenOut,
    World,
    with_void_as_proof,
    without_any_bound,
    without_bound_in_verdicts,
    without_bound_on_seats,
    without_bound_on_sets,
    without_one_verdict,
    without_proof_of_closing,
    without_proof_of_opening,
    without_refusers_bound,
)
from tests.support.markers import more, sampled

# Attacks have much in common: each is tried in one setting, another in another one.
pytestmark = sampled("make")

QUERIES_CODE = "PF-317"
VERDICT_CODE = "PF-247"
CERTIFICATE_CODE = "PF-246"
UNEXPECTED_CODE = "PF-225"
CONFLICT_CODE = "PF-223"
TOO_FEW_CODE = "PF-241"

Make = Callable[..., World]

BOTH = [
    pytest.param(1, id="one federation"),
    pytest.param(2, id="two federations"),
]
"""How many federations hospitals are in: with 2, another coordinator calls the second run."""

companions = pytest.mark.parametrize(
    "make", [BOTH[0], more(2, id="two federations")], indirect=True
)
"""Without a rule an attack succeeds anywhere: one setting shows it."""


@pytest.fixture(params=BOTH)
def make(request: pytest.FixtureRequest) -> Make:
    """Make worlds in one setting."""
    return partial(World, federations=request.param)


def later_run(world: World, places: Places, form: str, **fields: Any) -> Run:
    """Set up a later run: in the other federation, where there are two."""
    return Run(world, places, form, federation=len(world.coordinators) - 1, **fields).set_up()


def all_codes(refused: dict[int, list[str]]) -> set[str]:
    """The codes of some answers."""
    return {code for codes in refused.values() for code in codes}


def assert_refused(refused: dict[int, list[str]], by: Places, code: str) -> None:
    """Exactly these hospitals refuse, each with this one code."""
    assert refused == {place: [code] for place in by}


# 1: an additive batch, asked again ----------------------------------------------------------------

VICTIM = 0
HEARD = ["alive", "after a restart"]
"""How hospitals hear of a settlement."""


def refused_additive_run(make: Make, hospitals: int, *, heard: str = "alive", more: int = 0) -> Run:
    """An additive batch that the attacker opens, and that a liar signs it never sent for."""
    world = make(hospitals + more, liars={hospitals - 1})
    run = Run(world, range(hospitals), "additive", colluders=1).set_up()
    assert run.ask(range(world.queries)) == {}
    assert [parties for parties, _ in run.loot.sums()] == [frozenset(run.honest)]
    if heard == "after a restart":
        for place in world.honest:
            world.restart(place)
    assert run.void(refused_by=run.liars) == {}
    return run


@pytest.mark.parametrize("make", BOTH, indirect=True)
@pytest.mark.parametrize(
    ("hospitals", "heard", "keeps_liar"),
    [
        pytest.param(5, "alive", True, id="5, alive, liar in U"),
        pytest.param(5, "after a restart", False, id="5, after a restart, liar not in U"),
        pytest.param(6, "after a restart", True, id="6, after a restart, liar in U"),
        pytest.param(6, "alive", False, id="6, alive, liar not in U"),
        more(5, "alive", False, id="5, alive, liar not in U"),
        more(5, "after a restart", True, id="5, after a restart, liar in U"),
        more(6, "alive", True, id="6, alive, liar in U"),
        more(6, "after a restart", False, id="6, after a restart, liar not in U"),
    ],
)
def test_a_masked_retry_of_an_additive_batch_opens_the_same_hospitals_or_nothing(
    make: Make, hospitals: int, heard: str, keeps_liar: bool
) -> None:
    first = refused_additive_run(make, hospitals, heard=heard)
    world = first.world
    retry = later_run(world, first.places, "masked", colluders=1)
    assert retry.ask(first.indices) == {}
    whole = frozenset(first.honest)
    for size in range(retry.threshold, hospitals + 1):
        for survivors in combinations(first.places, size):
            if not whole <= set(survivors):
                members = whole & set(survivors)
                assert_refused(retry.open(survivors), members, VERDICT_CODE)
                assert retry.count_verdicts(survivors) < retry.threshold
    assert list(retry.loot.sums()) == []

    survivors = first.places if keeps_liar else first.honest
    assert retry.open(survivors) == {}
    assert [parties for parties, _ in retry.loot.sums()] == [whole]
    world.assert_nothing_is_read()


SEATED = {
    "without the victim": (1, 2, 3, 4, 5),
    "without another": (0, 1, 2, 3, 5),
    "a new one for the victim": (1, 2, 3, 4, 5, 6),
    "two new ones": (0, 1, 2, 5, 6, 7),
    "two new ones for the victim": (1, 2, 3, 4, 5, 6, 7),
    "all and a new one": (0, 1, 2, 3, 4, 5, 6),
    "a new one for the liar": (0, 1, 2, 3, 4, 6),
}
"""Hospitals of a retry, of which 0 to 5 had the first batch."""


@pytest.mark.parametrize("make", BOTH, indirect=True)
@pytest.mark.parametrize(
    ("form", "places"),
    [
        pytest.param(form, places, id=f"{form}, {name}")
        # In the masked form new ones may sit there: no set with them opens, below.
        for form, names in (("additive", list(SEATED)), ("masked", list(SEATED)[:5]))
        for name, places in ((name, SEATED[name]) for name in names)
    ],
)
def test_a_retry_without_a_hospital_or_with_a_new_one_is_refused(
    make: Make, form: str, places: tuple[int, ...]
) -> None:
    first = refused_additive_run(make, 6, more=2)
    retry = later_run(first.world, places, form, colluders=1)
    refused = retry.ask(first.indices)
    assert_refused(refused, set(places) & set(first.honest), QUERIES_CODE)
    first.world.assert_nothing_is_read()


def test_a_masked_retry_among_more_hospitals_opens_no_new_one(make: Make) -> None:
    first = refused_additive_run(make, 6, more=1)
    world = first.world
    retry = later_run(world, range(7), "masked", colluders=1)
    assert retry.ask(first.indices) == {}
    for size in range(retry.threshold, 8):
        for survivors in combinations(range(7), size):
            if not set(first.honest) <= set(survivors) <= set(first.places):
                retry.open(survivors)
                assert list(retry.loot.sums()) == []
    assert retry.open(first.honest) == {}
    world.assert_nothing_is_read()


MASKED_ENDS = ["no word", "void", "refused", "opened", "forged closing", "closed"]
"""What hospitals hear of a masked batch. The attacker opens it, unless it is closed."""


def ended_masked_run(make: Make, hospitals: int, end: str) -> Run:
    """A masked batch that opens without the victim, and of which hospitals hear something."""
    world = make(hospitals, liars={hospitals - 1})
    run = Run(world, range(hospitals), "masked", colluders=1).set_up()
    assert run.ask(range(world.queries)) == {}
    rest = [place for place in run.places if place != VICTIM]
    if end == "closed":
        certificate = run.close()
        assert certificate
        assert all_codes(run.open(rest)) <= {UNEXPECTED_CODE, CONFLICT_CODE}
        assert run.void(certificate=certificate) == {}
        return run
    assert run.open(rest) == {}
    assert [parties for parties, _ in run.loot.sums()] == [frozenset(run.honest) - {VICTIM}]
    match end:
        case "void":
            assert run.void() == {}
        case "refused":
            assert run.void(refused_by=run.liars) == {}
        case "opened":
            assert run.void(certificate=run.certificate(rest)) == {}
        case "forged closing":
            run.propose((), to=[VICTIM])
            forged = run.certificate((), spoiled=[1, 2])
            assert_refused(run.void(certificate=forged), run.honest, CERTIFICATE_CODE)
    return run


@pytest.mark.parametrize("make", BOTH, indirect=True)
@pytest.mark.parametrize("form", ["additive", "masked"])
@pytest.mark.parametrize("end", MASKED_ENDS)
def test_a_masked_batch_that_may_have_opened_is_never_asked_again(
    make: Make, end: str, form: str
) -> None:
    first = ended_masked_run(make, 6, end)
    world = first.world
    for places in (first.places, first.places[1:]):
        retry = later_run(world, places, form, colluders=1)
        refused = retry.ask(first.indices)
        if end != "closed":
            assert_refused(refused, retry.honest, QUERIES_CODE)
            continue
        # Nothing opened, and nothing ever will: any set may.
        assert refused == {}
        if form == "masked":
            assert retry.open(places) == {}
        assert [parties for parties, _ in retry.loot.sums()] == [frozenset(retry.honest)]
        assert list(first.loot.sums()) == []
        break
    world.assert_nothing_is_read()


@companions
@pytest.mark.parametrize(
    "take_out",
    [
        without_refusers_bound,
        without_bound_on_sets,
        without_any_bound,
        without_bound_in_verdicts,
    ],
)
def test_without_its_rule_a_masked_retry_reads_the_victim(
    make: Make, monkeypatch: Patch, take_out: TakenOut
) -> None:
    take_out(monkeypatch)
    first = refused_additive_run(make, 5)
    retry = later_run(first.world, first.places, "masked", colluders=1)
    assert retry.ask(first.indices) == {}
    assert retry.open(first.places[1:]) == {}
    assert first.world.is_read(VICTIM)


@companions
def test_without_its_rule_an_additive_retry_reads_the_victim(
    make: Make, monkeypatch: Patch
) -> None:
    without_bound_on_seats(monkeypatch)
    first = refused_additive_run(make, 6)
    retry = later_run(first.world, first.places[1:], "additive", colluders=1)
    assert retry.ask(first.indices) == {}
    assert first.world.is_read(VICTIM)


@companions
@pytest.mark.parametrize("form", ["additive", "masked"])
@pytest.mark.parametrize(
    ("take_out", "end"),
    [
        (with_void_as_proof, "void"),
        (with_void_as_proof, "refused"),
        (without_any_bound, "opened"),
        (without_any_bound, "no word"),
    ],
)
def test_without_its_rule_a_retry_of_a_masked_batch_reads_the_victim(
    make: Make, monkeypatch: Patch, take_out: TakenOut, end: str, form: str
) -> None:
    take_out(monkeypatch)
    first = ended_masked_run(make, 6, end)
    retry = later_run(first.world, first.places, form, colluders=1)
    assert retry.ask(first.indices) == {}
    if form == "masked":
        assert retry.open(retry.places) == {}
    assert first.world.is_read(VICTIM)


# 2: a masked batch, told as open to some and as closed to others ----------------------------------

STORIES = ["a set of some", "a set of all, then closed", "closed, then a set of all"]


def two_stories(make: Make, hospitals: int, story: str) -> Run:
    """A masked batch with all colluders that its run promises, and two stories about its end."""
    colluders = MaskedSum.most_colluders(hospitals)
    world = make(
        hospitals, liars=range(colluders), policy={"least_checked_peers": 2, "least_parties": 3}
    )
    run = Run(world, range(hospitals), "masked").set_up()
    assert run.colluders == colluders
    assert run.ask(range(world.queries)) == {}
    told, untold = halves(run)
    match story:
        case "a set of some":
            survivors = [*run.liars, *told]
            assert len(survivors) == run.threshold
            assert run.close(to=untold) == b""
            assert run.open(survivors) == {}
            assert [parties for parties, _ in run.loot.sums()] == [frozenset(told)]
        case "a set of all, then closed":
            assert run.open(run.places) == {}
            assert [parties for parties, _ in run.loot.sums()] == [frozenset(run.honest)]
        case "closed, then a set of all":
            assert run.close()
            assert_refused(run.open(run.places), run.honest, UNEXPECTED_CODE)
            for place in run.honest:
                world.restart(place)
            assert all_codes(run.propose(run.places, to=run.honest)) == {"PF-242"}
            assert list(run.loot.sums()) == []
    return run


def halves(run: Run) -> tuple[list[int], list[int]]:
    """The fewest honest hospitals whose verdicts open a set, and all other honest ones."""
    count = run.threshold - len(run.liars)
    return run.honest[:count], run.honest[count:]


def ask_for_closing(run: Run, how: str) -> dict[int, list[str]]:
    """Ask all honest hospitals to close the plan, whatever they agreed to before."""
    if how == "after a restart":
        for place in run.honest:
            run.world.restart(place)
    return run.propose((), to=run.honest)


@pytest.mark.parametrize("make", BOTH, indirect=True)
@pytest.mark.parametrize("form", ["additive", "masked"])
@pytest.mark.parametrize("hospitals", [5, 7, more(10)])
def test_who_is_told_closed_while_others_open_a_set_serves_no_second_sum(
    make: Make, hospitals: int, form: str
) -> None:
    first = two_stories(make, hospitals, "a set of some")
    world = first.world
    told, untold = halves(first)
    # A false proof ends the run at a hospital: it hears nothing more of it.
    for certificate, code in (
        (first.certificate((), spoiled=told), CERTIFICATE_CODE),
        (first.certificate(()), UNEXPECTED_CODE),
        (b"", UNEXPECTED_CODE),
    ):
        assert_refused(first.void(to=untold[:1], certificate=certificate), untold[:1], code)
    if len(untold) > 1:
        short = first.certificate(())
        assert_refused(first.void(to=untold[1:2], certificate=short), untold[1:2], CERTIFICATE_CODE)
    assert first.void(to=untold[2:]) == {}
    first.void(to=told, certificate=first.certificate([*first.liars, *told]))
    groups = {
        tuple(sorted([*untold, *first.liars])),
        tuple(sorted([*untold, *first.liars, *told[1:]])),
        first.places,
    }
    for places in groups:
        if len(places) >= (5 if form == "masked" else 3):
            second = later_run(world, places, form, colluders=1)
            assert_refused(second.ask(first.indices), second.honest, QUERIES_CODE)
    world.assert_nothing_is_read()


def test_who_hears_the_certificate_of_a_set_serves_no_second_sum(make: Make) -> None:
    first = two_stories(make, 7, "a set of some")
    told, untold = halves(first)
    proof = first.certificate([*first.liars, *told])
    assert first.void(certificate=proof) == {}
    for places in (first.places, sorted([*first.liars, *told]), sorted([*first.liars, *untold])):
        second = later_run(first.world, places, "additive", colluders=1)
        assert_refused(second.ask(first.indices), second.honest, QUERIES_CODE)
    first.world.assert_nothing_is_read()


@pytest.mark.parametrize("make", BOTH, indirect=True)
@pytest.mark.parametrize("form", ["additive", "masked"])
@pytest.mark.parametrize("how", HEARD)
def test_who_agreed_to_a_set_never_closes_the_plan(make: Make, form: str, how: str) -> None:
    first = two_stories(make, 7, "a set of all, then closed")
    code = UNEXPECTED_CODE if how == "alive" else VERDICT_CODE
    assert_refused(ask_for_closing(first, how), first.honest, code)
    forged = first.certificate((), spoiled=first.honest)
    assert all_codes(first.void(certificate=forged)) == {CERTIFICATE_CODE}
    rest = [place for place in first.places if place != first.honest[0]]
    second = later_run(first.world, rest, form, colluders=1)
    assert_refused(second.ask(first.indices), second.honest, QUERIES_CODE)
    first.world.assert_nothing_is_read()


def test_who_closed_a_plan_never_agrees_to_a_set_of_it(make: Make) -> None:
    first = two_stories(make, 7, "closed, then a set of all")
    assert first.void(certificate=first.certificate(())) == {}
    second = later_run(first.world, first.places[1:], "additive", colluders=1)
    assert second.ask(first.indices) == {}
    assert list(first.loot.sums()) == []
    first.world.assert_nothing_is_read()


@companions
@pytest.mark.parametrize("form", ["additive", "masked"])
@pytest.mark.parametrize(
    "take_out", [without_one_verdict, without_proof_of_closing, with_void_as_proof]
)
def test_without_its_rule_two_stories_read_the_victim(
    make: Make, monkeypatch: Patch, take_out: TakenOut, form: str
) -> None:
    take_out(monkeypatch)
    first = two_stories(make, 7, "a set of all, then closed")
    victim = first.honest[0]
    ask_for_closing(first, "after a restart")
    spoiled = [] if take_out is without_one_verdict else first.honest
    assert first.void(certificate=first.certificate((), spoiled=spoiled)) == {}
    rest = [place for place in first.places if place != victim]
    second = later_run(first.world, rest, form, colluders=1)
    assert second.ask(first.indices) == {}
    if form == "masked":
        assert second.open(rest) == {}
    assert first.world.is_read(victim)


# 3: other questions, to which teachers say the same ----------------------------------------------


def asked_twice(make: Make, form: str, **terms: Any) -> World:
    """Ask all hospitals, then all but the victim, questions that teachers answer alike."""
    world = make(6, queries=40)
    for places, first in ((range(6), 0), (range(1, 6), world.queries)):
        run = later_run(world, places, form, colluders=1, **terms)
        indices = range(first, first + world.queries)
        assert run.ask(indices) == {}
        if form == "masked":
            assert run.open(run.places) == {}
    return world


@pytest.mark.parametrize("form", ["additive", "masked"])
def test_who_chooses_questions_and_holds_exact_sums_reads_a_hospital(make: Make, form: str) -> None:
    """No rule about questions stops it, nor needs it a liar: you trust the coordinator in this."""
    assert asked_twice(make, form).is_read(VICTIM)


@pytest.mark.parametrize("form", ["additive", "masked"])
def test_where_hospitals_add_the_noise_that_reads_no_more_than_the_noise_leaves(
    make: Make, form: str
) -> None:
    sigma = 20.0
    world = asked_twice(make, form, noise_place="parties", sigma2=sigma)
    read = world.votes_read(VICTIM)
    errors = np.array([read[one] - world.truth(VICTIM, one) for one in range(world.queries)])
    # Two independent noises; 120 numbers are so quiet less than once in a million.
    assert np.mean(errors**2) > 0.5 * 2 * sigma**2
    assert not (errors == 0).all(axis=1).any()


# 4: blame that would fall on one honest hospital --------------------------------------------------


def certified_run(world: World) -> Run:
    """A masked batch of five hospitals, all of whom agreed to open all."""
    run = Run(world, range(5), "masked").set_up()
    run.plan(range(world.queries))
    for place in run.places:
        answer = run.tell(place, run.coordinator.open_plan.frame)
        for frame in answer.frames:
            run.coordinator.receive(frame, peer=run.fingerprint(place))
    for seat, frame in run.coordinator.batch.propose().items():
        place = run.coordinator.seats.index(seat)
        for answer in run.tell(place, frame).frames:
            run.coordinator.receive(answer, peer=seat)
    return run


def lie_of_disclosure(run: Run, liar: int, dealer: int, lie: Callable[[bytes], bytes]) -> None:
    """The liar's own reveal, signed, with something else for what the dealer sent it."""
    frames = run.coordinator.batch.certify()[run.fingerprint(liar)]
    reveal = wire.expect(wire.decode(run.tell(liar, *frames).frames[0]), Reveal)
    shown = list(reveal.disclosures)
    shown[dealer] = lie(shown[dealer])
    signed = wire.sign(replace(reveal, disclosures=tuple(shown)), run.key_of(liar)).frame
    run.coordinator.receive(signed, peer=run.fingerprint(liar))


def named_by(run: Run) -> set[tuple[int, ...]]:
    """The hospitals that the coordinator's findings name, together each."""
    seats = run.coordinator.seats
    return {tuple(map(seats.index, fault.named)) for fault in run.coordinator.batch.share_faults}


def test_an_envelope_that_the_relay_spoils_names_no_dealer_alone(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    run = certified_run(make(5))
    dealer, holder = 1, 3
    frames = run.coordinator.batch.certify()[run.fingerprint(holder)]
    bundle = wire.expect(wire.decode(frames[1]), ShareBundle)
    envelopes = list(bundle.envelopes)  # of all dealers but the holder, in order
    envelopes[dealer] = bytes([envelopes[dealer][0] ^ 1]) + envelopes[dealer][1:]
    spoiled = wire.contain(replace(bundle, envelopes=tuple(envelopes)))
    answer = run.tell(holder, frames[0], spoiled)
    assert answer.codes == []
    reveal = wire.expect(wire.decode(answer.frame_of(Reveal)), Reveal)
    assert [place for place, shown in enumerate(reveal.disclosures) if not shown] == [dealer]
    run.coordinator.receive(answer.frames[0], peer=run.fingerprint(holder))
    assert named_by(run) == {(dealer, holder)}
    # The holder's own log names the dealer beside the coordinator.
    run.void(to=[holder])
    [line] = [line for line in caplog.messages if "hash" in line]
    assert re.search(f"{run.fingerprint(dealer).hex()[:16]} or .*coordinator", line)


def test_a_disclosure_that_a_liar_empties_names_no_dealer_alone(make: Make) -> None:
    liar, dealer = 3, 1
    run = certified_run(make(5, liars={liar}))
    lie_of_disclosure(run, liar, dealer, lambda true: b"")
    assert named_by(run) == {(dealer, liar)}


def test_a_wrong_disclosure_names_the_liar_who_signed_it(make: Make) -> None:
    liar, dealer = 3, 1
    run = certified_run(make(5, liars={liar}))
    lie_of_disclosure(run, liar, dealer, lambda true: bytes([true[0] ^ 1]) + true[1:])
    assert named_by(run) == {(liar,)}


def test_a_mac_that_the_relay_spoils_names_the_peer_and_the_coordinator(make: Make) -> None:
    world = make(5)
    run = Run(world, range(5), "additive", colluders=1)
    run._exchange(dict.fromkeys(run.places, run.coordinator.setup.offer.frame))
    terms = encode_value(run.terms.as_record())
    record = run.coordinator.setup.make_record(terms=terms, colluders=1, dropouts=0)
    run._exchange(dict.fromkeys(run.places, record))
    seats = run.coordinator.seats
    run._exchange({seats.index(seat): f for seat, f in run.coordinator.setup.deliver().items()})
    closing = wire.expect(
        wire.decode(run.coordinator.setup.close()[run.fingerprint(0)]), SetupClosing
    )
    lie = run.sign(replace(closing, macs=(bytes(32), *closing.macs[1:])))
    with pytest.raises(KeyConfirmationError) as caught:
        run.node(0)._round.receive(lie, now=world.now)
    assert caught.value.peer == ""
    assert caught.value.pair == (run.fingerprint(1).hex(), "coordinator")


def test_two_histories_name_the_peer_and_the_coordinator(make: Make) -> None:
    world = make(5)
    run = Run(world, range(5), "additive", colluders=1).set_up()
    assert run.ask(range(world.queries)) == {}
    assert run.void(to=run.honest[:3]) == {}
    other = replace(run.settlement(), result=b"another story")
    for place in run.honest[3:]:
        assert run.tell(place, run.sign(other)).codes == []
    heads = []
    for place in run.honest:
        head = run.node(place).transcript_head
        closing = run.sign(Closing(run.coordinator.run_id, head))
        [frame] = run.tell(place, closing).frames
        heads.append(frame)
    bundle = wire.contain(HeadBundle(run.coordinator.run_id, tuple(heads)))
    for place in run.honest:
        first_of_the_others = 3 if place < 3 else 0
        with pytest.raises(HistoryError) as caught:
            run.node(place)._round.receive(bundle, now=world.now)
        assert caught.value.peer == ""
        assert caught.value.pair == (run.fingerprint(first_of_the_others).hex(), "coordinator")


@companions
def test_without_its_rule_an_empty_disclosure_names_the_dealer_alone(
    make: Make, monkeypatch: Patch
) -> None:
    fault = opening.ShareFault
    monkeypatch.setattr(
        opening, "ShareFault", lambda dealer, holder, named: fault(dealer, holder, (dealer,))
    )
    liar, dealer = 3, 1
    run = certified_run(make(5, liars={liar}))
    lie_of_disclosure(run, liar, dealer, lambda true: b"")
    assert named_by(run) == {(dealer,)}


# 5: messages of runs that never were --------------------------------------------------------------


def rows_of(world: World, place: int) -> int:
    """How many records a hospital's journal has."""
    journal = world.hospitals[place].journal
    with journal._database.transaction() as connection:
        return sum(
            connection.scalars(select(func.count()).select_from(table)).one()
            for table in SiteRow.metadata.sorted_tables
        )


def forged(run_id: bytes, number: int, world: World) -> list[Any]:
    """One message of each kind that a run that is over may still be sent."""
    plan_digest = number.to_bytes(32, "big")
    some = tuple(sorted(world._pins))
    plan = Plan(run_id, 1, number, bytes(32), 6, int(world.now) + 1_000, number.to_bytes(2, "big"))
    void = Settlement(run_id, plan_digest, "void", 6, (b"",) * len(some), (), b"", b"")
    return [
        plan,
        SetProposal(run_id, plan_digest, ()),
        SetProposal(run_id, plan_digest, some),
        void,
    ]


@pytest.mark.parametrize("make", BOTH, indirect=True)
@pytest.mark.parametrize(
    "is_in_a_run", [pytest.param(False, id="in no run"), pytest.param(True, id="in a run")]
)
def test_messages_of_unknown_runs_leave_no_row_and_at_most_one_refusal(
    make: Make, is_in_a_run: bool
) -> None:
    world = make(5)
    if is_in_a_run:
        Run(world, range(5), "masked").set_up()
    run = Run(world, range(5), "additive")  # only to sign and to send: it is never offered
    journal = world.hospitals[0].journal
    before = journal.counter, rows_of(world, 0)
    for number in range(1, 60):
        frames = [run.sign(each) for each in forged(bytes([number]) * 32, number, world)]
        for packet in ([frame] * 8 for frame in frames):
            assert len(run.tell(0, *packet).frames) <= 1
        assert len(run.tell(0, *frames).frames) <= 1
    assert (journal.counter, rows_of(world, 0)) == before


@pytest.mark.parametrize("make", BOTH, indirect=True)
@pytest.mark.parametrize(
    "is_restarted", [pytest.param(False, id="in the run"), pytest.param(True, id="after a restart")]
)
def test_plans_that_a_run_never_served_leave_few_rows(make: Make, is_restarted: bool) -> None:
    world = make(5)
    run = Run(world, range(5), "masked").set_up()
    if is_restarted:
        world.restart(0)
    before = rows_of(world, 0)
    for number in range(1, 3 * MOST_UNSERVED):
        for message in forged(run.coordinator.run_id, number, world):
            assert len(run.tell(0, run.sign(message)).frames) <= 1
    assert rows_of(world, 0) <= before + MOST_UNSERVED


@companions
def test_without_its_rule_messages_of_unknown_runs_fill_the_journal(
    make: Make, monkeypatch: Patch
) -> None:
    world = make(5)
    keys = tuple(hospital.identity.public.key for hospital in world.hospitals)
    ours = world.coordinators[0].fingerprint

    def known(_: object, run_id: bytes) -> RunNote:
        return RunNote(run_id=run_id, coordinator=ours, form="masked", keys=keys)

    monkeypatch.setattr(Journal, "run", known)
    run = Run(world, range(5), "additive")
    before = rows_of(world, 0)
    for number in range(1, 60):
        for message in forged(bytes([number]) * 32, number, world):
            run.tell(0, run.sign(message))
    assert rows_of(world, 0) >= before + 100


# 8 and 9: every holder is told a set of its own ---------------------------------------------------

MANY = [(7, 2), more(8, 3), more(10, 3)]
"""Hospitals and colluders among them, at most as many as the form allows."""


def own_sets(run: Run, *, seed: int = 4) -> dict[int, list[int]]:
    """For each holder a set with it in it, so that few honest hospitals open altogether.

    Each hospital that is to stay closed is left out by enough holders.
    """
    rng = random.Random(seed)  # noqa: S311 - which sets, not which keys
    need = run.threshold - len(run.liars)
    most_left_out = run.parties - run.threshold
    for size in range(1, len(run.honest) + 1):
        hidden = run.honest[size:]
        for _ in range(2_000):
            wanted = dict.fromkeys(hidden, need)
            sets = {}
            for holder in rng.sample(run.honest, len(run.honest)):
                others = [place for place in hidden if place != holder]
                others.sort(key=lambda place: (-wanted[place], rng.random()))
                left_out = others[:most_left_out]
                for place in left_out:
                    wanted[place] -= 1
                sets[holder] = [place for place in run.places if place not in left_out]
            if all(count <= 0 for count in wanted.values()):
                return sets
    raise AssertionError("no sets")


def many_stories(make: Make, hospitals: int, colluders: int, **terms: Any) -> Run:
    """A masked batch whose attacker tells every holder a set of its own, with what proof it has."""
    world = make(hospitals, liars=range(colluders), queries=terms.pop("queries", 4))
    run = Run(world, range(hospitals), "masked", colluders=colluders, **terms).set_up()
    assert run.ask(range(world.queries)) == {}
    for holder, survivors in own_sets(run).items():
        assert len(survivors) >= run.threshold
        assert run.propose(survivors, to=[holder]) == {}
        run.reveal(survivors, to=[holder], by_macs=bool(holder % 2))
    return run


def at_parties(hospitals: int, *, sigma: float = 60.0) -> dict[str, Any]:
    """Terms of a run whose parties add the noise."""
    return {
        "noise_place": "parties",
        "sigma2": sigma,
    }


@pytest.mark.parametrize(("hospitals", "colluders"), MANY)
def test_many_stories_open_nothing(make: Make, hospitals: int, colluders: int) -> None:
    run = many_stories(make, hospitals, colluders)
    for survivors in run.verdicts:
        assert run.count_verdicts(survivors) < run.threshold
    assert list(run.loot.sums()) == []


PROOFS = [
    "too few signatures",
    "a forged signature",
    "one signer twice",
    "signatures for another set",
    "too few MACs",
    "forged MACs",
    "one MAC for all",
    "MACs for another holder",
    "MACs for another set",
]


@pytest.mark.parametrize("make", BOTH, indirect=True)
@pytest.mark.parametrize("proof", PROOFS)
def test_no_share_is_shown_without_the_proof_of_its_set(make: Make, proof: str) -> None:
    world = make(7, liars={0, 1})
    run = Run(world, range(7), "masked").set_up()
    assert run.ask(range(world.queries)) == {}
    survivors, other = [0, 1, 2, 3, 4], [0, 1, 2, 5, 6]
    assert run.propose(survivors, to=[2, 3]) == {}
    assert run.propose(other, to=[5, 6]) == {}
    certificate, change = run.certificate(survivors), None
    macs = run.macs_for(survivors, holder=2)
    match proof:
        case "a forged signature":
            certificate = run.certificate(survivors, spoiled=[4])
        case "one signer twice":
            message = wire.expect(wire.decode(certificate), Certificate)
            twice = replace(
                message,
                signers=(*message.signers, message.signers[0]),
                signatures=(*message.signatures, message.signatures[0]),
            )
            certificate = wire.contain(twice)
        case "signatures for another set":
            certificate = run.certificate(other)
        case "too few MACs":
            change = replace
        case "forged MACs":

            def change(macs: VerdictMacs) -> VerdictMacs:
                return replace(macs, macs=tuple(mac or bytes(16) for mac in macs.macs))

        case "one MAC for all":

            def change(macs: VerdictMacs) -> VerdictMacs:
                return replace(macs, macs=(macs.macs[0],) * len(macs.macs))

        case "MACs for another holder":

            def change(_: VerdictMacs) -> VerdictMacs:
                return replace(macs, macs=tuple(mac or macs.macs[0] for mac in macs.macs))

        case "MACs for another set":
            others = run.macs[tuple(other)]

            def change(macs: VerdictMacs) -> VerdictMacs:
                shown = list(macs.macs)
                shown[-2:] = others[5][0], others[6][0]
                return replace(macs, macs=tuple(shown))

    refused = run.reveal(
        survivors,
        to=[2, 3],
        certificate=certificate,
        by_macs=change is not None,
        change=change or replace,
    )
    assert_refused(refused, [2, 3], CERTIFICATE_CODE)
    assert list(run.loot.sums()) == []


@pytest.mark.parametrize(("hospitals", "colluders"), MANY)
def test_every_opened_sum_has_the_noise_that_was_charged(
    make: Make, hospitals: int, colluders: int
) -> None:
    """The smallest set that the rules let open, and every story before it: no less noise."""
    terms = at_parties(hospitals)
    run = many_stories(make, hospitals, colluders, **terms)
    assert list(run.loot.sums()) == []
    fresh = Run(make(hospitals, liars=range(colluders)), range(hospitals), "masked")
    world = fresh.world
    run = Run(world, range(hospitals), "masked", colluders=colluders, **terms).set_up()
    assert run.ask(range(world.queries)) == {}
    few = run.places[: run.threshold - 1]
    assert all_codes(run.open(few)) == {TOO_FEW_CODE}
    assert run.open(run.places[: run.threshold]) == {}
    [(parties, rows)] = run.loot.sums()
    assert len(parties) >= hospitals - colluders - (hospitals - run.threshold)
    votes = sum(np.stack([world.truth(place, index) for index in run.indices]) for place in parties)
    assert not np.array_equal(rows, votes)


@companions
@pytest.mark.parametrize(("hospitals", "colluders", "opened"), [(7, 2, 2), (10, 3, 2)])
def test_without_its_rule_many_stories_open_fewer_than_promised(
    make: Make, monkeypatch: Patch, hospitals: int, colluders: int, opened: int
) -> None:
    without_proof_of_opening(monkeypatch)
    run = many_stories(make, hospitals, colluders)
    parties, rows = min(run.loot.sums(), key=lambda item: len(item[0]))
    assert len(parties) == opened < run.threshold - colluders
    truth = [sum(run.world.truth(place, index) for place in parties) for index in range(len(rows))]
    assert np.array_equal(rows, truth)


@companions
def test_without_its_rule_many_stories_open_less_noise_than_charged(
    make: Make, monkeypatch: Patch
) -> None:
    without_proof_of_opening(monkeypatch)
    sigma, hospitals, colluders, queries = 60.0, 10, 3, 200
    terms = at_parties(hospitals, sigma=sigma)
    run = many_stories(make, hospitals, colluders, queries=queries, **terms)
    parties, rows = min(run.loot.sums(), key=lambda item: len(item[0]))
    promised = hospitals - colluders - (hospitals - run.threshold)
    assert len(parties) == promised / 2
    votes = [sum(run.world.truth(place, i) for place in parties) for i in range(queries)]
    # 600 entries: their deviation is within a fifth of the true one, but once in 10^11 runs.
    assert np.std(rows - np.array(votes)) == pytest.approx(sigma * math.sqrt(1 / 2), rel=0.2)


# 10: another federation's coordinator, who is no ally of this one ---------------------------------

two_federations = pytest.mark.parametrize("make", [2], ids=["two federations"], indirect=True)


def run_of_an_honest_coordinator(make: Make, form: str) -> tuple[Run, bytes]:
    """A batch that is open, and its plan, signed by another federation's coordinator.

    A lying hospital told that one the plan. The lies in a `Run` are the other coordinator's.
    """
    world = make(5, liars={4})
    run = Run(world, range(5), form, colluders=1).set_up()
    assert run.ask(range(world.queries)) == {}
    plan = wire.decode(run.plan_frame).message
    run.speak_as(1)
    return run, run.sign(plan)


@two_federations
@pytest.mark.parametrize("form", ["additive", "masked"])
def test_another_coordinator_gets_no_y_of_a_run(make: Make, form: str) -> None:
    """With the y's of an additive batch it would have the exact sum, before any noise."""
    run, plan = run_of_an_honest_coordinator(make, form)
    for place in run.honest:
        sent = run.tell(place, plan).messages
        assert not [each for each in sent if isinstance(each, MaskedVector | ShareBundle)]


@two_federations
@pytest.mark.parametrize("form", ["additive", "masked"])
def test_another_coordinators_settlement_frees_no_query(make: Make, form: str) -> None:
    """It is not its run, be the proof good or forged: it is not even read."""
    run, _ = run_of_an_honest_coordinator(make, form)
    certificate = run.certificate((), spoiled=run.honest) if form == "masked" else b""
    refused_by = run.liars if form == "additive" else []
    assert run.void(refused_by=refused_by, certificate=certificate) == {}
    retry = later_run(run.world, run.places, "additive", colluders=1)
    assert_refused(retry.ask(run.indices), retry.honest, QUERIES_CODE)


@two_federations
def test_another_coordinator_does_not_close_the_plan_of_a_run(make: Make) -> None:
    run, _ = run_of_an_honest_coordinator(make, "masked")
    run.propose((), to=run.honest)
    assert run.verdicts == {}
    run.speak_as(0)
    assert run.open(run.places) == {}


@two_federations
@pytest.mark.parametrize("form", ["additive", "masked"])
def test_another_coordinator_does_not_have_a_y_erased(make: Make, form: str) -> None:
    run, _ = run_of_an_honest_coordinator(make, form)
    run.void()
    run.speak_as(0)
    for place in run.honest:
        assert run.tell(place, run.plan_frame).frames == run.answers[place].frames


@two_federations
def test_another_coordinator_has_no_plan_of_a_run_refused(make: Make) -> None:
    world = make(5, liars={4})
    run = Run(world, range(5), "additive", colluders=1).set_up()
    plan = wire.decode(run.plan(range(world.queries))).message
    run.speak_as(1)
    for place in run.honest:
        run.tell(place, run.sign(plan))
    run.speak_as(0)
    assert run.ask(range(world.queries)) == {}


# 11: a liar's MACs --------------------------------------------------------------------------------


def test_wrong_macs_of_one_liar_end_no_other_hospitals_run(make: Make) -> None:
    """The coordinator cannot check MACs. If too few are right it shows the certificate."""
    world = make(5, liars={4})
    run = Run(world, range(5), "masked").set_up()
    assert run.ask(range(world.queries)) == {}
    survivors = [1, 2, 3, 4]
    assert run.propose(survivors, to=[1, 2, 3]) == {}

    def spoiled(macs: VerdictMacs) -> VerdictMacs:
        return replace(macs, macs=(*macs.macs[:-1], bytes(16)))

    refused = run.reveal(survivors, to=[1, 2, 3], by_macs=True, change=spoiled)
    assert_refused(refused, [1, 2, 3], CERTIFICATE_CODE)
    assert run.reveal(survivors, to=[1, 2, 3]) == {}
    assert [parties for parties, _ in run.loot.sums()] == [frozenset({1, 2, 3})]
