"""No story over several plans, runs and forms tells one hospital's votes (rule R3)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from protocols.additive import AdditiveSum
from protocols.masked import MaskedSum
from protocols.rounds.bounds import ANY_SET, PlanClaim, SetBound
from protocols.rounds.verdicts import require_open_set
from tests.support.markers import more
from tests.support.plain_journal import PlainJournal
from tests.support.sum_model import (
    PRODUCT,
    Outcome,
    PlanSpec,
    Relation,
    Rules,
    Scenario,
    Search,
    Stories,
    members,
    scenarios,
)

ADDITIVE, MASKED = AdditiveSum, MaskedSum
SAME = Relation.SAME
LEAST_OF_FIVE = {1: 117_000, 2: 360_000, 3: 14_000}
ALL_OF_4, ALL_OF_5, ALL_OF_7 = 0b1111, 0b11111, 0b1111111


def safe_states(questions: Iterable[Scenario], *, stories: Stories = Stories.AGREED) -> int:
    """Search all scenarios with the product's rules; return how many states were visited."""
    states = steps = count = 0
    for scenario in questions:
        outcome = Search(scenario, stories=stories).run()
        if outcome.violation is not None:
            pytest.fail(_story(scenario, stories))
        count, states, steps = count + 1, states + outcome.states, steps + outcome.steps
    print(f"{count} scenarios, {states} states, {steps} steps")
    return states


def _story(scenario: Scenario, stories: Stories) -> str:
    violation = Search(scenario, stories=stories, by_name=True).run().violation
    assert violation is not None
    return "\n".join((str(scenario), *violation.trace, violation.promise))


def broken(scenario: Scenario, rules: Rules, **limits: object) -> Outcome:
    """Search a scenario that the product survives, with a rule taken out; it must break."""
    outcome = Search(scenario, rules=rules, **limits).run()  # type: ignore[arg-type]
    assert outcome.violation is not None
    return outcome


def tells_votes(scenario: Scenario, rules: Rules, **limits: object) -> bool:
    """Tell whether one hospital's exact votes are known once a rule is taken out.

    Nobody's are with all rules.
    """
    if not limits:  # else both searches would be long, and the tests of all scenarios hold these
        assert Search(scenario, exact=True).run().violation is None
    violation = broken(scenario, rules, exact=True, **limits).violation
    return violation is not None and violation.lone.bit_count() == 1


# All rules ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hospitals", "least"), [(4, 760), more(5, 5_000), more(6, 21_000)], ids=["4", "5", "6"]
)
def test_no_story_of_two_plans_tells_one_hospital_s_votes(hospitals: int, least: int) -> None:
    one, two = scenarios(hospitals, 1), scenarios(hospitals, 2)
    assert safe_states(itertools.chain(one, two)) >= least


@pytest.mark.slow
@pytest.mark.parametrize(("liars", "least"), [(3, 2_490), (4, 220)])
def test_no_story_of_two_plans_of_six_hospitals_that_most_lie_in_tells_one_hospital_s_votes(
    liars: int, least: int
) -> None:
    chosen = (scenario for scenario in scenarios(6, 2) if scenario.liars == liars)
    assert safe_states(chosen) >= least


@pytest.mark.exhaustive
def test_no_story_of_three_plans_of_four_hospitals_that_two_lie_in_tells_one_hospital_s_votes() -> (
    None
):
    chosen = (scenario for scenario in scenarios(4, 3) if scenario.liars == 2)
    assert safe_states(chosen) >= 4_900


@pytest.mark.slow
@pytest.mark.parametrize(("hospitals", "plans", "least"), [more(4, 2, 13_000), (5, 1, 18_000)])
def test_sets_proposed_to_all_at_once_open_the_same_sums_as_any_story(
    hospitals: int, plans: int, least: int
) -> None:
    """Each party is told any story of its own; where there is one plan, with all losses."""
    states = 0
    for scenario in scenarios(hospitals, plans):
        if plans == 1 and not scenario.liars:
            continue
        agreed = Search(scenario).run()
        each = Search(scenario, stories=Stories.EACH, with_losses=plans == 1).run()
        assert agreed.violation is each.violation is None
        assert agreed.opened == each.opened, str(scenario)
        states += each.states
    print(f"{states} states")
    assert states >= least


@pytest.mark.exhaustive
def test_no_story_of_two_masked_plans_told_to_each_party_alone_tells_votes() -> None:
    scenario = Scenario(5, 2, (PlanSpec(MASKED, ALL_OF_5),) * 2, (SAME,))
    outcome = Search(scenario, stories=Stories.EACH).run()
    assert outcome.violation is None
    assert outcome.opened == Search(scenario).run().opened
    assert outcome.states >= 46_000


@pytest.mark.exhaustive
@pytest.mark.parametrize("liars", [1, 2])
def test_no_story_of_both_forms_told_to_each_party_alone_tells_votes(liars: int) -> None:
    plans = PlanSpec(ADDITIVE, ALL_OF_5), PlanSpec(MASKED, ALL_OF_5)
    scenario = Scenario(5, liars, plans, (SAME,))
    outcome = Search(scenario, stories=Stories.EACH).run()
    assert outcome.violation is None
    assert outcome.opened == Search(scenario).run().opened
    assert outcome.states >= {1: 230_000, 2: 36_000}[liars]


@pytest.mark.exhaustive
def test_no_story_of_two_plans_of_seven_hospitals_tells_one_hospital_s_votes() -> None:
    assert safe_states(scenarios(7, 2)) >= 71_000


@pytest.mark.exhaustive
def test_no_story_of_any_three_plans_of_four_hospitals_tells_one_hospital_s_votes() -> None:
    assert safe_states(scenarios(4, 3)) >= 75_000


@pytest.mark.exhaustive
@pytest.mark.parametrize("liars", [1, 2, 3])
def test_no_story_of_three_plans_of_five_hospitals_tells_one_hospital_s_votes(liars: int) -> None:
    """All where two or three lie; where one does, those with two masked plans."""
    chosen = (
        scenario
        for scenario in scenarios(5, 3)
        if scenario.liars == liars
        and (liars > 1 or sum(plan.is_masked for plan in scenario.plans) > 1)
    )
    assert safe_states(chosen) >= LEAST_OF_FIVE[liars]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("hospitals", "liars", "masked", "least"),
    [
        (6, 3, 0, 510_000),
        (6, 3, 3, 26_000),
        (6, 4, 0, 33_000),
        (7, 4, 3, 72_000),
        (7, 5, 0, 69_000),
    ],
)
def test_no_story_of_three_plans_that_most_lie_in_tells_one_hospital_s_votes(
    hospitals: int, liars: int, masked: int, least: int
) -> None:
    """All plans of one form, so many of them masked."""
    chosen = (
        scenario
        for scenario in scenarios(hospitals, 3)
        if scenario.liars == liars and sum(plan.is_masked for plan in scenario.plans) == masked
    )
    assert safe_states(chosen) >= least


# One rule taken out -------------------------------------------------------------------------------


def _any_set(survivors: Sequence[bytes], *, bound: SetBound, **facts: object) -> None:
    """Check a proposed set without the bound of the journal."""
    require_open_set(survivors, bound=ANY_SET, **facts)  # type: ignore[arg-type]


def _as_a_member(survivors: Sequence[bytes], *, me: bytes, **facts: object) -> None:
    """Check a proposed set as one of its members would."""
    require_open_set(survivors, me=survivors[0], **facts)  # type: ignore[arg-type]


def _by_the_last_plan(journal: PlainJournal, queries: Sequence[bytes]) -> SetBound:
    """Refuse what the product refuses, and bind by the last plan alone."""
    journal.queries.bound_on(queries)
    claims = journal.queries.claims_of(queries)
    last = [journal.claim_on(plan) for plan in sorted(journal.queries.plans)]
    bounds = [claim.openable for claim in last if claim is not None and claim in claims]
    return bounds[-1] or ANY_SET if bounds else ANY_SET


def _room_in_additive_runs_alone(
    bound: SetBound, seats: Sequence[bytes], *, threshold: int
) -> bool:
    """Serve every masked plan."""
    return threshold < len(seats) or bound.leaves_room(seats, threshold=threshold)


def _of_any_run(journal: PlainJournal, plan_digest: bytes, run_id: bytes, claim: PlanClaim) -> None:
    """Take a settlement's proof, whichever run's parties signed it."""
    journal.resolve(plan_digest, claim)


def _never_dropped(refusers: Sequence[bytes], *, seats: Sequence[bytes]) -> PlanClaim:
    """Let refusals free an additive plan for any set."""
    return replace(PlanClaim.abandoned_by(refusers, seats=seats), openable=ANY_SET)


SHOWN_AT_ONCE = Rules(shows_shares=lambda is_certified: True)
VOID_FREES = replace(SHOWN_AT_ONCE, void_frees=lambda has_judged: not has_judged)

SEVEN_THEN_FOUR = Scenario(
    7, 2, (PlanSpec(MASKED, ALL_OF_7), PlanSpec(ADDITIVE, 0b1111000)), (SAME,)
)
"""Two of seven lie; a smaller run of two honest parties and the liars follows."""


def test_a1_an_abandoned_additive_plan_asked_again_in_masked_without_its_bound_tells_votes() -> (
    None
):
    plans = PlanSpec(ADDITIVE, ALL_OF_5), PlanSpec(MASKED, ALL_OF_5)
    rules = Rules(require_open_set=_any_set)
    assert tells_votes(Scenario(5, 1, plans, (SAME,)), rules)


@pytest.mark.exhaustive
def test_a2_shares_shown_without_a_certificate_and_a_void_that_frees_open_two_sums() -> None:
    outcome = broken(SEVEN_THEN_FOUR, VOID_FREES, stories=Stories.EACH, most_sets=1, served=(0,))
    assert "plan 1 {3, 4}" in outcome.violation.promise  # type: ignore[union-attr]


@pytest.mark.exhaustive
def test_a2_holders_outside_of_the_set_make_it_one_hospital_s_exact_votes() -> None:
    rules = replace(VOID_FREES, require_open_set=_as_a_member)
    limits = {"stories": Stories.EACH, "most_sets": 1, "served": (0,)}
    assert tells_votes(SEVEN_THEN_FOUR, rules, **limits)


@pytest.mark.exhaustive
def test_a8_shares_shown_without_a_certificate_open_fewer_than_every_holder_agreed_to() -> None:
    scenario = Scenario(7, 2, (PlanSpec(MASKED, ALL_OF_7),))
    outcome = broken(scenario, SHOWN_AT_ONCE, stories=Stories.EACH, served=(0,), most_sets=3)
    assert "too few" in outcome.violation.promise  # type: ignore[union-attr]


def test_masked_plans_served_without_room_open_a_party_in_a_set_that_it_did_not_agree_to() -> None:
    plans = PlanSpec(MASKED, 0b110111), PlanSpec(ADDITIVE, 0b111000)
    scenario = Scenario(6, 1, plans, (SAME,))
    assert Search(scenario).run().violation is None
    broken(scenario, Rules(leaves_room=_room_in_additive_runs_alone))


def test_additive_plans_served_without_room_tell_votes() -> None:
    plans = PlanSpec(ADDITIVE, ALL_OF_4), PlanSpec(ADDITIVE, 0b1110)
    rules = Rules(leaves_room=lambda *_, **__: True)
    assert tells_votes(Scenario(4, 1, plans, (SAME,)), rules)


def test_a_bound_by_the_last_plan_alone_tells_votes() -> None:
    plans = PlanSpec(ADDITIVE, ALL_OF_4), PlanSpec(ADDITIVE, ALL_OF_4), PlanSpec(ADDITIVE, 0b1110)
    assert tells_votes(Scenario(4, 1, plans, (SAME,) * 3), Rules(bound_on=_by_the_last_plan))


def test_a_refusal_that_frees_for_any_set_tells_votes() -> None:
    plans = PlanSpec(ADDITIVE, ALL_OF_4), PlanSpec(ADDITIVE, 0b1110)
    assert tells_votes(Scenario(4, 1, plans, (SAME,)), Rules(abandoned_by=_never_dropped))


def test_a_settlement_of_another_run_that_counts_tells_votes() -> None:
    plans = PlanSpec(ADDITIVE, 0b0111), PlanSpec(ADDITIVE, 0b1110)
    assert tells_votes(Scenario(4, 1, plans, (SAME,)), Rules(resolve=_of_any_run))


def test_a_plan_closed_by_parties_of_another_run_that_counts_tells_votes() -> None:
    plans = PlanSpec(MASKED, ALL_OF_5), PlanSpec(MASKED, 0b11101)
    assert tells_votes(Scenario(5, 1, plans, (SAME,)), Rules(resolve=_of_any_run))


# The model itself ---------------------------------------------------------------------------------


def test_the_model_follows_the_product_s_rules_by_default() -> None:
    assert Rules() == PRODUCT
    assert PRODUCT.leaves_room is SetBound.leaves_room
    assert PRODUCT.require_open_set is require_open_set
    assert PRODUCT.abandoned_by == PlanClaim.abandoned_by
    assert PRODUCT.certified == PlanClaim.certified


def test_hospitals_that_change_names_are_searched_once() -> None:
    plans = PlanSpec(ADDITIVE, ALL_OF_5), PlanSpec(MASKED, ALL_OF_5)
    scenario = Scenario(5, 1, plans, (SAME,))
    once, by_name = Search(scenario).run(), Search(scenario, by_name=True).run()
    assert once.states < by_name.states / 5
    assert once.opened == by_name.opened


def test_a_masked_plan_opens_any_certified_set_and_an_additive_one_all() -> None:
    masked = Search(Scenario(5, 2, (PlanSpec(MASKED, ALL_OF_5),))).run()
    additive = Search(Scenario(5, 2, (PlanSpec(ADDITIVE, ALL_OF_5),))).run()
    assert {len(members(sums[0])) for (sums,) in masked.opened if sums} == {2, 3}
    assert [sums for (sums,) in additive.opened if sums] == [(0b111,)]
