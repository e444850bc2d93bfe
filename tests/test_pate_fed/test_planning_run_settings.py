"""Settings: what is left open is filled in, what contradicts itself is refused."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as trials
from hypothesis import strategies as st

from pate_fed.accounting import DistributedGaussianMaxEvent, GaussianMaxEvent
from pate_fed.accounting.costs import PrivacyUnit
from pate_fed.accounting.formal_cost import counts_cost, labels_cost
from pate_fed.data import SOURCE_NAMES, Dataset, DataSource, Records
from pate_fed.errors import BudgetExhaustedError, InvalidSettingError
from pate_fed.mechanisms import SPECS
from pate_fed.planning import DEFAULTS, RunSettings, resolve, resolve_for, terms_of
from pate_fed.planning.budgets import budget_share
from pate_fed.planning.planning_notes import unit_notes
from pate_fed.prices import charged_price
from pate_fed.rule import Caps
from pate_fed.terms import RunTerms
from protocols.errors import TooFewPartiesError
from protocols.forms import FORMS
from protocols.suites import DEFAULT_SUITE
from tests.support.markers import sampled
from tests.support.rules import run_settings

FOLDER = Path("private") / "folder"
CSV = DataSource("csv", data_file=FOLDER / "visits.csv", label_column="sick")
OPEN = {
    "labels",
    "label_cap",
    "sigma1",
    "max_answers",
    "teachers",
    "seed",
    "confidence",
    "test_delta",
    "colluders",
    "dropouts",
    "prevalence",
    "coverage",
    "patients",
    "evaluation_epsilon",
    "patient_votes",
}


def dataset(*, private: int = 400, pool: int = 120, hospitals: list[int] | None = None) -> Dataset:
    """A data set of the given sizes; `hospitals` says how many records each of them has."""
    if hospitals is not None:
        private = sum(hospitals)
    places = [f"clinic-{place}" for place, held in enumerate(hospitals or []) for _ in range(held)]
    features = np.arange(2.0 * (private + pool + 10)).reshape(-1, 2)
    labels = np.arange(len(features)) % 2
    names = tuple(f"r{row}" for row in range(len(features)))

    def part(start: int, end: int, places: tuple[str, ...] | None = None) -> Records:
        return Records(features[start:end], labels[start:end], names[start:end], places)

    return Dataset(
        "table",
        "table",
        ("no", "yes"),
        part(0, private, tuple(places) if hospitals else None),
        part(private, private + pool),
        part(private + pool, len(features)),
    )


def settings(data: DataSource = CSV, **changed: Any) -> RunSettings:
    return run_settings(data=data, suite=DEFAULT_SUITE, **changed)


def resolved_of(asked: RunSettings, data: Dataset) -> RunSettings:
    return resolve(asked, data, sums=FORMS, rng=np.random.default_rng(0))


def terms(resolved: RunSettings) -> RunTerms:
    return terms_of(resolved, name="run", classes=2, pool_digest=bytes(32), sums=FORMS)


def open_fields(resolved: RunSettings) -> set[str]:
    """Names of what is None, in the rule and the caps, too."""
    held = (resolved, resolved.rule, resolved.caps)
    return {f.name for one in held for f in fields(one) if getattr(one, f.name) is None}


class TestDefaults:
    @pytest.mark.parametrize("mechanism", ["threshold", "gnmax", "interactive-threshold"])
    @pytest.mark.parametrize("name", ["digits", "breast-cancer"])
    def test_bundled_sets_fit_their_budget(self, name: str, mechanism: str) -> None:
        resolved = resolved_of(
            settings(DataSource(name), mechanism=mechanism), dataset(private=1000)
        )
        assert (resolved.parties, resolved.teachers, resolved.unit) == (50, 1, "party")
        assert resolved.caps.max_asks is not None
        if mechanism != "gnmax":  # whose noise is no one's choice
            assert resolved.caps.max_asks == DEFAULTS[name].queries
        assert 0 < budget_share(terms(resolved)) <= 1

    def test_usual_noise_is_a_share_of_all_teachers(self) -> None:
        resolved = resolved_of(settings(parties=10, teachers=25, queries=5), dataset())
        half = resolved_of(settings(parties=5, teachers=25, queries=5), dataset())
        assert resolved.rule.vote_threshold is not None
        assert half.rule.vote_threshold is not None
        assert resolved.rule.vote_threshold == pytest.approx(2 * half.rule.vote_threshold)
        assert 0.3 * 250 < resolved.rule.vote_threshold < 250
        assert resolved.unit == "record"

    def test_the_default_is_a_threshold_where_one_was_asked_for(self) -> None:
        assert settings().rule.mechanism == "threshold"
        resolved = resolved_of(settings(sigma2=30.0, vote_threshold=20.0, queries=4), dataset())
        assert (resolved.rule.vote_threshold, resolved.rule.sigma2) == (20.0, 30.0)

    def test_nothing_is_left_open(self) -> None:
        assert open_fields(resolved_of(settings(), dataset())) <= OPEN

    def test_gnmax_has_no_threshold(self) -> None:
        resolved = resolved_of(settings(mechanism="gnmax"), dataset())
        assert open_fields(resolved) == {"vote_threshold", *OPEN}

    @pytest.mark.slow
    @trials(max_examples=6)  # each prices a whole run
    @given(
        parties=st.integers(3, 20),
        teachers=st.integers(1, 20),
        queries=st.integers(1, 120),
        sigma=st.floats(1.0, 50.0),
    )
    def test_what_was_typed_is_kept(
        self, parties: int, teachers: int, queries: int, sigma: float
    ) -> None:
        typed = settings(
            parties=parties, teachers=teachers, queries=queries, sigma2=sigma, epsilon=1e6
        )
        resolved = resolved_of(typed, dataset())
        kept = replace(resolved, rule=typed.rule, caps=typed.caps)
        for asked, found in (
            (typed, kept),
            (typed.rule, resolved.rule),
            (typed.caps, resolved.caps),
        ):
            for field in fields(asked):
                value = getattr(asked, field.name)
                assert value is None or getattr(found, field.name) == value

    def test_hospitals_of_the_data_become_parties(self) -> None:
        resolved = resolved_of(settings(), dataset(pool=20, hospitals=[100, 40, 60, 20]))
        assert (resolved.partition, resolved.parties) == ("column", 4)
        assert resolved.party_teachers == (12, 5, 7, 2)  # one for every 8 patients

    @pytest.mark.parametrize(
        ("given", "teachers", "unit"),
        [
            pytest.param({"records_per_teacher": 30}, (3, 1, 2, 1), "record", id="records"),
            pytest.param({"records_per_teacher": 200}, (1, 1, 1, 1), "party", id="one each"),
            pytest.param({"unit": "party"}, None, "party", id="a hospital as unit"),
            pytest.param({"teachers": 1, "unit": "record"}, None, "record", id="a number"),
        ],
    )
    def test_each_hospital_has_teachers_for_its_records(
        self, given: dict[str, Any], teachers: tuple[int, ...] | None, unit: str
    ) -> None:
        """A hospital of one patient leaves the others' teachers, unit and price as they are."""
        resolved = resolved_of(
            settings(**given, queries=9), dataset(pool=20, hospitals=[100, 40, 60, 20])
        )
        assert (resolved.party_teachers, resolved.unit) == (teachers, unit)
        assert resolved.teachers == (1 if teachers is None else None)
        if teachers is not None:
            joined = resolved_of(
                settings(**given, queries=9), dataset(pool=20, hospitals=[100, 40, 60, 20, 1])
            )
            assert joined.party_teachers == (*teachers, 1)
            assert (joined.unit, joined.rule.sigma2) == (unit, resolved.rule.sigma2)

    @pytest.mark.parametrize(
        ("teachers", "named", "unit"),
        [
            pytest.param((1, 1, 1), None, "party", id="one teacher each"),
            pytest.param((1, 2, 1), None, "record", id="more teachers"),
            pytest.param((1, 1, 1), "record", "record", id="named"),
        ],
    )
    def test_hospitals_of_one_teacher_each_are_protected_as_a_whole(
        self, teachers: tuple[int, ...], named: PrivacyUnit | None, unit: str
    ) -> None:
        asked = settings(unit=named, mechanism="gnmax", sigma2=40.0, queries=3, epsilon=50.0)
        found = resolve_for(asked, teachers, pool=50, classes=2, sums=FORMS)
        assert (found.unit, found.parties, found.party_teachers) == (unit, 3, teachers)

    @pytest.mark.parametrize("mechanism", ["gnmax", "threshold"])
    def test_a_small_hospital_changes_neither_unit_nor_noise_nor_price(
        self, mechanism: str
    ) -> None:
        """One of three patients among four that are there: it has one vote of many."""
        asked = settings(mechanism=mechanism, sigma2=None, queries=20, epsilon=3.0)
        large = (28, 27, 18)
        four, with_it = (
            resolve_for(asked, teachers, pool=50, classes=2, sums=FORMS)
            for teachers in ((*large, 11), (*large, 11, 1))
        )
        assert with_it.party_teachers == (*large, 11, 1)
        assert with_it.unit == four.unit == "record"
        assert with_it.most_unit_votes == four.most_unit_votes == 1
        if mechanism == "gnmax":  # a threshold is a share of all votes
            assert with_it.rule == four.rule

    def test_a_hospital_of_three_patients_changes_no_other_and_its_user_hears_so(self) -> None:
        asked = settings(mechanism="gnmax", queries=20, epsilon=3.0)
        large = [100, 40, 60]
        three, four = (
            resolved_of(asked, dataset(pool=60, hospitals=sizes)) for sizes in (large, [*large, 3])
        )
        assert three.party_teachers is not None
        assert four.party_teachers == (*three.party_teachers, 1)
        assert (four.unit, four.rule, four.caps) == (three.unit, three.rule, three.caps)
        assert "nobody else's" in unit_notes(asked, four)[0]

    def test_hospitals_can_be_ignored(self) -> None:
        resolved = resolved_of(
            settings(partition="iid", parties=5), dataset(pool=20, hospitals=[100, 40, 60])
        )
        assert (resolved.partition, resolved.parties) == ("iid", 5)

    def test_small_parties_have_a_teacher_all_the_same(self) -> None:
        resolved = resolved_of(settings(parties=12, sigma2=20.0), dataset(private=24))
        assert (resolved.all_teachers, resolved.unit) == (12, "party")


def need(resolved: RunSettings, queries: int) -> float:
    """Price a run of so many queries from scratch, as a share of the budget."""
    weight = resolved.most_unit_votes
    sigma, delta = resolved.rule.sigma2 or 0.0, resolved.delta
    if resolved.rule.noise_place == "parties":  # of ten, one is a colluder
        rows = DistributedGaussianMaxEvent(queries, sigma, 9, weight)
        return counts_cost(rows, delta=delta).epsilon / resolved.epsilon
    options = 2 + SPECS[resolved.rule.mechanism].may_refuse
    labels = GaussianMaxEvent(queries, sigma, float(weight))
    return labels_cost(labels, options=options, delta=delta).epsilon / resolved.epsilon


class TestQueries:
    @sampled("epsilon")
    @pytest.mark.parametrize("noise", ["coordinator", "parties"])
    @pytest.mark.parametrize("unit", ["record", "party"])
    @pytest.mark.parametrize("mechanism", ["threshold", "gnmax", "interactive-threshold"])
    @pytest.mark.parametrize("epsilon", [2.0, 9.0])
    def test_as_many_are_asked_as_the_budget_affords(
        self, epsilon: float, mechanism: str, unit: str, noise: str
    ) -> None:
        asked = settings(
            parties=10,
            teachers=2,
            sigma2=20.0,
            epsilon=epsilon,
            mechanism=mechanism,
            unit=unit,
            noise=noise,
        )
        resolved = resolved_of(asked, dataset())
        assert resolved.caps.max_asks is not None
        assert need(resolved, resolved.caps.max_asks) <= 1
        assert resolved.caps.max_asks == 120 or need(resolved, resolved.caps.max_asks + 1) > 1

    def test_more_than_the_budget_affords_are_refused_with_the_number_that_fits(self) -> None:
        asked: dict[str, Any] = {"parties": 10, "teachers": 2, "sigma2": 20.0, "epsilon": 2.0}
        fit = resolved_of(settings(**asked), dataset()).caps.max_asks
        assert fit is not None
        assert resolved_of(settings(**asked, queries=fit), dataset()).caps.max_asks == fit
        with pytest.raises(BudgetExhaustedError, match=rf"\b{fit} quer"):
            resolved_of(settings(**asked, queries=fit + 1), dataset())

    def test_noise_fills_the_budget_of_a_table_for_all_its_queries(self) -> None:
        resolved = resolved_of(settings(mechanism="gnmax", parties=10, teachers=4), dataset())
        assert resolved.caps.max_asks == 120
        assert 0.97 < budget_share(terms(resolved)) <= 1

    @pytest.mark.slow
    def test_small_pool_bounds_them(self) -> None:
        resolved = resolved_of(settings(sigma2=1e4), dataset(pool=7))
        assert resolved.caps.max_asks == 7

    def test_more_than_the_pool_are_refused(self) -> None:
        with pytest.raises(InvalidSettingError, match=r"--queries .*7"):
            resolved_of(settings(queries=8), dataset(pool=7))

    @pytest.mark.slow
    def test_budget_below_one_query_is_refused(self) -> None:
        with pytest.raises(BudgetExhaustedError):
            resolved_of(settings(epsilon=0.001, sigma2=20.0), dataset())

    def test_caps_and_batches_are_never_above_the_queries(self) -> None:
        resolved = resolved_of(
            settings(queries=5, max_answers=50, batch_size=70, sigma2=99.0), dataset()
        )
        assert (resolved.caps.max_answers, resolved.caps.batch_size) == (5, 5)
        assert terms(resolved).caps == Caps(5, 5, 5)

    @pytest.mark.slow
    def test_hospitals_with_budgets_and_weights_of_their_own(self) -> None:
        budgets = (9.0, 3.0, *(5.0,) * 8)
        resolved = resolved_of(
            settings(
                parties=10, teachers=2, weights=(2, *(1,) * 9), party_epsilons=budgets, sigma2=12.0
            ),
            dataset(),
        )
        run = terms(resolved)
        assert resolved.votes == run.total_votes == 22
        assert run.budgets == budgets
        costs = [charged_price(run, seat).epsilon for seat in range(10)]
        assert all(cost <= budget for cost, budget in zip(costs, budgets, strict=True))
        assert costs[0] > costs[1]  # its teachers weigh more


class TestRefusals:
    @pytest.mark.parametrize("parties", [1, 2])
    def test_fewer_than_three_parties(self, parties: int) -> None:
        with pytest.raises(TooFewPartiesError):
            settings(parties=parties).check(FORMS)

    def test_fewer_than_three_hospitals(self) -> None:
        with pytest.raises(TooFewPartiesError):
            resolved_of(settings(), dataset(hospitals=[100, 100]))

    @pytest.mark.parametrize(
        "changed",
        [
            pytest.param({"sigma2": float("nan")}, id="noise no number"),
            pytest.param({"sigma1": 9.0}, id="noise of a check of its own"),
            pytest.param({"mechanism": "confident", "noise": "parties"}, id="two noises there"),
            pytest.param({"sigma2": float("inf")}, id="endless noise"),
            pytest.param({"vote_threshold": float("inf")}, id="endless threshold"),
            pytest.param({"vote_threshold": -1.0}, id="negative threshold"),
            pytest.param({"partition": "column"}, id="hospitals without a column"),
            pytest.param({"mechanism": "gnmax", "vote_threshold": 3.0}, id="threshold for GNMax"),
            pytest.param({"confidence": 0.9}, id="a confidence without a student"),
            pytest.param({"mechanism": "interactive", "confidence": 1.5}, id="confidence above 1"),
            pytest.param({"test_delta": 1e-8}, id="a test that nobody makes"),
            pytest.param(
                {"mechanism": "stable-laplace", "test_delta": 0.1}, id="a test above delta"
            ),
            pytest.param({"mechanism": "stable-gaussian", "sigma2": 3.0}, id="noise of counts"),
            pytest.param({"weights": (1, 0, 1)}, id="a weight of 0"),
            pytest.param({"weights": ()}, id="no weights"),
            pytest.param({"party_epsilons": (1.0, -1.0)}, id="a negative budget"),
            pytest.param({"party_epsilons": (float("nan"),)}, id="a budget that is no number"),
        ],
    )
    def test_numbers_out_of_range_and_contradictions(self, changed: dict[str, Any]) -> None:
        with pytest.raises(InvalidSettingError):
            settings(**changed).check(FORMS)

    @pytest.mark.parametrize(
        "changed",
        [
            pytest.param({"weights": (1, 1)}, id="two weights"),
            pytest.param({"party_epsilons": (5.0,) * 4}, id="four budgets"),
            pytest.param({"weights": (2**29,) * 3}, id="more votes than can be added"),
        ],
    )
    def test_lists_that_do_not_fit_three_hospitals(self, changed: dict[str, Any]) -> None:
        with pytest.raises(InvalidSettingError):
            resolved_of(settings(parties=3, sigma2=99.0, **changed), dataset())

    def test_images_come_from_a_file_and_have_no_label_column(self) -> None:
        images = DataSource("images", data_file=Path("images.npz"))
        settings(images).check(FORMS)
        with pytest.raises(InvalidSettingError, match="--label"):
            settings(replace(images, label_column="x")).check(FORMS)

    @pytest.mark.parametrize("name", ["digits", "breast-cancer"])
    @pytest.mark.parametrize(
        "option", ["data_dir", "data_file", "label_column", "patient_column", "hospital_column"]
    )
    def test_options_of_other_data(self, name: str, option: str) -> None:
        given_too = DataSource(name, **{option: "x"})  # type: ignore[arg-type]
        with pytest.raises(InvalidSettingError, match=r"--data|folder"):
            settings(given_too).check(FORMS)


def test_table_of_settings_names_no_folder() -> None:
    recorded = settings().as_record()
    assert str(FOLDER) not in str(recorded)
    assert (recorded.file, recorded.label, recorded.hospital) == ("visits.csv", "sick", None)


def test_every_kind_of_data_has_defaults() -> None:
    assert set(DEFAULTS) == set(SOURCE_NAMES)


def test_a_hospital_whose_patients_all_have_more_records_elsewhere_is_no_party() -> None:
    # Patient "a" has two records in A and one in B, and nobody else was ever in B.
    units = ("a", "a", "a", "c", "c", "d", "d", "e")
    homes = ("A", "A", "B", "C", "C", "D", "D", "D")
    features = np.arange(16.0).reshape(8, 2)
    labels = np.array([0, 1] * 4)
    private = Records(features, labels, units, homes)
    pool = Records(features[:4], labels[:4], ("p", "q", "r", "s"), None)
    test = Records(features[4:6], labels[4:6], ("t", "u"), None)
    data = Dataset("csv", "table", ("no", "yes"), private, pool, test)
    asked = settings(epsilon=500.0, sigma2=5.0)
    assert resolved_of(asked, data).parties == 3
