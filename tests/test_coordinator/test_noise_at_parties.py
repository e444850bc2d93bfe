"""`simulate --noise parties`: repeatable, priced in both views, and refused where it cannot be."""

from __future__ import annotations

import io
import json
import math
import re
import secrets
import tomllib
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import log_ndtr

from coordinator.simulation.chance import Chance
from coordinator.simulation.simulated_hospitals import HospitalsBlueprint
from party.decision.node import PartyNode
from pate_fed.accounting import (
    DistributedGaussianMaxEvent,
    distributed_labels_cost,
    rows_cost,
)
from pate_fed.charges import noise_of
from pate_fed.data import Dataset, DataSource
from pate_fed.errors import BudgetExhaustedError, InvalidParameterError, InvalidSettingError
from pate_fed.planning import DEFAULTS, RunSettings, resolve
from pate_fed.planning import terms_of as settled_terms
from pate_fed.planning.budgets import budget_share
from pate_fed.prices import charged_price, public_price
from pate_fed.terms import RunTerms
from protocols.forms import FORMS
from protocols.suites import DEFAULT_SUITE
from tests.support.command import Command, exit_code_of, labels_in, pate_fed, write_table
from tests.support.markers import more
from tests.support.rules import run_settings
from tests.support.small_records import blobs

__all__ = ["pate_fed"]  # a fixture

DELTA = 1e-5


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_table(tmp_path / "table.csv", rows=240)


def small(table: Path, out: Path, *, parties: int = 5, seed: int | None = 7) -> list[object]:
    """Arguments of a run that takes less than a second."""
    return [
        *("simulate", "--noise", "parties", "--data", "csv", "--data-file", table),
        *("--label", "sick", "--parties", parties, "--teachers", 4, "--queries", 8),
        *("--sigma2", 6, "--epsilon", 50, "--out", out),
        *(() if seed is None else ("--seed", seed)),
    ]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a run, and what it printed."""
    folder, shown = tmp_path_factory.mktemp("ran"), io.StringIO()
    table = write_table(folder / "table.csv", rows=240)
    with redirect_stdout(shown):
        assert exit_code_of(*small(table, folder / "run")) == 0
    return folder / "run", shown.getvalue()


def read_json(run: Path, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run / name).read_text(encoding="utf-8"))
    return content


def terms_of(**changed: Any) -> RunTerms:
    return settled(settings(noise="parties", **{"mechanism": "gnmax", **changed}))


def settings(data: str = "digits", **asked: Any) -> RunSettings:
    return run_settings(data=DataSource(data), suite=DEFAULT_SUITE, **asked)


def settled(asked: RunSettings) -> RunTerms:
    records = blobs(1_200, classes=10)
    parts = np.split(np.arange(1_200), [1_000, 1_150])
    data = Dataset("blobs", "table", tuple("abcdefghij"), *(records.select(part) for part in parts))
    resolved = resolve(asked, data, sums=FORMS, rng=np.random.default_rng(0))
    return settled_terms(resolved, name="run", classes=10, pool_digest=bytes(32), sums=FORMS)


class TestRun:
    @pytest.mark.slow
    @pytest.mark.parametrize("form", ["additive", more("masked")])
    def test_same_seed_gives_the_same_labels_and_costs(
        self, pate_fed: Command, table: Path, tmp_path: Path, form: str
    ) -> None:
        runs = [tmp_path / "a", tmp_path / "b"]
        for run in runs:
            ended = pate_fed(*small(table, run), "--sum", form, "--sigma2", 30)
            assert (ended.code, ended.err) == (0, "")
        for name in ("labels.csv", "privacy.json", "run.toml"):
            assert (runs[0] / name).read_bytes() == (runs[1] / name).read_bytes()

    @pytest.mark.slow
    def test_noise_follows_from_the_seed_and_is_loud_enough_to_be_heard(
        self, pate_fed: Command, table: Path, tmp_path: Path
    ) -> None:
        """8 labels of 2 classes under noise that drowns 20 votes: 3 seeds agree once in 2^16."""
        seen = set()
        for seed in range(3):
            run = tmp_path / str(seed)
            assert pate_fed(*small(table, run, seed=seed), "--sigma2", 3000).code == 0
            seen.add(tuple(labels_in(run).values()))
        assert len(seen) > 1

    @pytest.mark.slow
    def test_without_a_seed_every_hospital_draws_from_the_operating_system(
        self, pate_fed: Command, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        opened: list[PartyNode] = []
        open_all = HospitalsBlueprint.open

        def watching(self: HospitalsBlueprint) -> list[PartyNode]:
            opened.extend(open_all(self))
            return list(opened)

        monkeypatch.setattr(HospitalsBlueprint, "open", watching)
        assert pate_fed(*small(table, tmp_path / "run", seed=None)).code == 0
        assert [node._ballots._noise_bytes for node in opened] == [secrets.token_bytes] * 5
        opened.clear()
        assert pate_fed(*small(table, tmp_path / "seeded")).code == 0
        drawn = {node._ballots._noise_bytes(16) for node in opened}
        assert len(drawn) == 5

    def test_every_hospital_has_noise_of_its_own(self) -> None:
        seeds = Chance(7).noise_seeds(["a", "b", "c"])
        assert seeds is not None
        assert len({*seeds, Chance(7).bytes_of("noise")}) == 4
        assert seeds == Chance(7).noise_seeds(["a", "b", "c"])
        assert Chance(8).noise_seeds(["a"]) != Chance(7).noise_seeds(["a"])
        assert Chance(None).noise_seeds(["a"]) is None

    @pytest.mark.slow
    def test_masked_goes_on_with_colluders_and_drop_outs_counted(
        self, pate_fed: Command, table: Path, tmp_path: Path
    ) -> None:
        run = tmp_path / "run"
        command = small(table, run, parties=10)
        assert pate_fed(*command, "--sum", "masked", "--colluders", 2).code == 0
        privacy = read_json(run, "privacy.json")
        assert privacy["mechanism"]["shares"] == 10 - 2 - 3
        with (run / "run.toml").open("rb") as file:
            mechanism = tomllib.load(file)
        assert (mechanism["noise"], mechanism["colluders"]) == ("parties", 2)


class TestPrice:
    @pytest.mark.slow
    def test_both_views_have_their_number(self, ran: tuple[Path, str]) -> None:
        run, shown = ran
        privacy = read_json(run, "privacy.json")
        event = DistributedGaussianMaxEvent(8, 6.0, 4, 1)
        rows, labels = rows_cost(event, delta=DELTA), distributed_labels_cost(event, delta=DELTA)
        views = privacy["views"]
        assert views["coordinator"]["epsilon"] == rows.epsilon
        assert views["coordinator"]["holds_for"] == rows.holds_for
        assert views["public"]["epsilon"] == labels.epsilon
        assert "holds_if" not in views["public"]  # the price of labels needs nothing
        assert labels.epsilon < 0.9 * rows.epsilon
        assert privacy["noise"]["place"] == "parties"
        assert {row["epsilon"] for row in privacy["parties"]} == {rows.epsilon}
        said = " ".join(shown.split())
        for cost in (labels, rows):
            assert f"epsilon {math.ceil(cost.epsilon * 1000) / 1000:.3f}".rstrip("0") in said
        page = (run / "report.html").read_text(encoding="utf-8")
        for cost in (labels, rows):
            assert str(cost.epsilon) in page

    def test_the_coordinators_number_is_that_of_gaussian_noise_but_for_a_hair(self) -> None:
        """Independent: the exact composition of 2 Q Gaussian counts."""
        terms = terms_of()
        cost = charged_price(terms, 0).epsilon
        mu = math.sqrt(2 * terms.caps.most.answers) / (terms.rule.sigma2 or 0.0)
        low, high = 0.0, 20.0
        for _ in range(80):
            middle = (low + high) / 2
            tail = log_ndtr(-middle / mu + mu / 2), middle + log_ndtr(-middle / mu - mu / 2)
            delta = math.exp(tail[0]) - math.exp(tail[1])
            low, high = (middle, high) if delta > DELTA else (low, middle)
        # Noise in whole votes: a kink between two of its steps of 1 / sigma^2 moves epsilon so far.
        step = (terms.rule.sigma2 or math.inf) ** -2
        assert low - step**2 < cost < low + step**2

    @pytest.mark.slow
    def test_every_row_is_charged_and_the_charges_end_at_the_whole_cost(
        self, pate_fed: Command, table: Path, tmp_path: Path
    ) -> None:
        run = tmp_path / "run"
        pate_fed(*small(table, run), "--batch-size", 3)
        privacy = read_json(run, "privacy.json")
        assert [batch["charged"] for batch in privacy["ledger"]] == [3, 3, 2]
        assert privacy["charged"] == 1.0

    @pytest.mark.slow
    def test_a_threshold_costs_readers_what_it_costs_the_coordinator_whatever_comes_out(
        self, pate_fed: Command, table: Path, tmp_path: Path
    ) -> None:
        stated = []
        for threshold in (0, 500):
            run = tmp_path / str(threshold)
            command = small(table, run)
            assert pate_fed(*command, "--vote-threshold", threshold).code == 0
            privacy, queries = read_json(run, "privacy.json"), read_json(run, "metrics.json")
            assert privacy["mechanism"]["name"] == "threshold"
            assert queries["queries"]["refused"] == (8 if threshold else 0)
            assert privacy["charged"] == 1.0
            views = privacy["views"]
            stated += [views[view]["epsilon"] for view in ("public", "coordinator")]
        assert len(set(stated)) == 1

    @pytest.mark.slow
    def test_there_is_no_per_instance_number(self, ran: tuple[Path, str]) -> None:
        run, _ = ran
        own = read_json(run, "privacy.json")["per_instance"]
        assert (own["epsilon"], own["order"], own["releasable"]) == (None, None, False)

    @pytest.mark.slow
    def test_who_is_trusted_is_said(self, ran: tuple[Path, str]) -> None:
        run, _ = ran
        privacy = read_json(run, "privacy.json")
        assert "exists nowhere" in privacy["threat_model"]
        assert any("More colluders" in text for text in privacy["unprotected"])
        page = (run / "report.html").read_text(encoding="utf-8")
        for text in (page, *privacy["unprotected"]):
            assert "holds the exact" not in text
        card = (run / "student" / "model_card.md").read_text(encoding="utf-8")
        assert "at the parties" in card

    def test_a_run_above_its_budget_is_refused_with_what_fits(self) -> None:
        with pytest.raises(BudgetExhaustedError, match=r"\d+ quer") as refusal:
            terms_of(queries=30, epsilon=2.0)
        assert refusal.value.requested > refusal.value.budget == 2.0
        found = re.search(r"at most (\d+) quer", str(refusal.value))
        assert found is not None
        most = int(found[1])
        assert budget_share(terms_of(queries=most, epsilon=2.0)) <= 1
        with pytest.raises(BudgetExhaustedError):
            terms_of(queries=most + 1, epsilon=2.0)

    @pytest.mark.parametrize("mechanism", ["threshold", "interactive-threshold"])
    @pytest.mark.parametrize("name", ["digits", "breast-cancer"])
    def test_the_default_fits_its_budget_in_the_coordinators_view(
        self, name: str, mechanism: str
    ) -> None:
        known = DEFAULTS[name]
        terms = settled(settings(name, noise="parties", mechanism=mechanism))
        assert terms.caps.most.asks <= known.queries
        assert terms.rule.sigma2 == known.at_parties[mechanism]["sigma2"]
        assert public_price(terms, 0).epsilon <= charged_price(terms, 0).epsilon <= 5.0


class TestSettings:
    @pytest.mark.slow
    def test_gnmax_is_the_mechanism_if_none_is_named(self, ran: tuple[Path, str]) -> None:
        assert read_json(ran[0], "privacy.json")["mechanism"]["name"] == "gnmax"

    @pytest.mark.parametrize(
        ("options", "told"),
        [
            pytest.param(["--mechanism", "lnmax"], "--mechanism", id="Laplace noise"),
            pytest.param(["--mechanism", "confident"], "--mechanism", id="two noises"),
            pytest.param(["--sum", "plain"], "--sum plain", id="shares in the clear"),
            pytest.param(["--colluders", 0], "--colluders", id="nobody colludes"),
            pytest.param(["--colluders", 5], "--colluders", id="everybody colludes"),
            pytest.param(
                ["--sum", "masked", "--colluders", 4], "--colluders", id="the rest may be lost"
            ),
            pytest.param(["--mechanism", "interactive"], "--mechanism", id="two noises and more"),
            pytest.param(
                ["--mechanism", "gnmax", "--vote-threshold", 9], "--vote-threshold", id="no use"
            ),
            pytest.param(["--noise", "coordinator", "--colluders", 1], "--colluders", id="no need"),
            pytest.param(["--noise", "students"], "students", id="noise elsewhere"),
        ],
    )
    def test_what_cannot_be_is_refused_before_anything_is_read(
        self, pate_fed: Command, table: Path, tmp_path: Path, options: list[object], told: str
    ) -> None:
        ended = pate_fed(*small(table, tmp_path / "run"), *options)
        assert ended.code == 2
        assert ended.error_code in ("PF-105", "PF-402")
        assert told in ended.err
        assert not (tmp_path / "run").exists()

    def test_shares_narrower_than_a_vote_are_refused_with_what_would_do(
        self, pate_fed: Command, table: Path, tmp_path: Path
    ) -> None:
        ended = pate_fed(*small(table, tmp_path / "run"), "--sigma2", 1.9)
        assert ended.code == 2
        assert re.search(r"\b2\b", ended.err)

    @pytest.mark.parametrize("form", ["additive", "masked"])
    @pytest.mark.parametrize("parties", [5, 9, 30, 100])
    def test_usual_noise_is_wide_enough_to_be_shared(self, form: str, parties: int) -> None:
        terms = terms_of(parties=parties, teachers=1, form=form, epsilon=1e3)
        assert noise_of(terms).share_sigma >= 1
        assert terms.rule.shares(parties) == parties - 1 - (terms.rule.dropouts or 0)

    def test_noise_elsewhere_is_refused_by_the_settings_themselves(self) -> None:
        with pytest.raises(InvalidSettingError):
            settings(noise="students").check(FORMS)


class TestTerms:
    def test_terms_survive_their_record(self) -> None:
        terms = terms_of(form="masked", colluders=3)
        again = RunTerms.from_record(terms.as_record())
        assert again == terms
        rule = again.rule
        assert (rule.colluders, rule.dropouts, rule.shares(50)) == (3, 16, 31)

    def test_a_mechanism_is_made_for_the_place_of_its_noise_only(self) -> None:
        at_parties = terms_of()
        coordinators = settled(settings(mechanism="gnmax"))
        assert noise_of(at_parties).sigma == at_parties.rule.sigma2
        with pytest.raises(InvalidParameterError):
            noise_of(coordinators)

    def test_no_share_of_the_noise_depends_on_the_seat(self) -> None:
        terms = terms_of()
        assert noise_of(terms).share_sigma == pytest.approx((terms.rule.sigma2 or 0) / 7, rel=1e-12)
