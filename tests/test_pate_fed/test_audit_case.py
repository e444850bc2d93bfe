"""An audit's findings, and its command: what attackers learn with and without defenses."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from pate_fed.audit import Target, asks_for_error, leak_error, votes_of_agreement
from pate_fed.audit.audit_case import (
    AuditCase,
    asks_within,
    find,
    made_up_rows,
    price,
    render,
    spread_rows,
)
from pate_fed.audit.win_chances import Noise
from pate_fed.errors import InvalidParameterError, RunDirectoryError
from pate_fed.mechanisms import GaussianMax
from pate_fed.report import read_run, render_report, replace_report
from tests.support.command import Command, pate_fed
from tests.support.sample_run import (
    metrics_of,
    privacy_of,
    sample_metrics,
    sample_privacy,
    write_sample,
)

__all__ = ["pate_fed"]  # a fixture

ROW = np.array([120, 80, 50])


class TestExposure:
    def test_more_answers_tell_more_and_the_number_for_an_error_reaches_it(self) -> None:
        target, rng = Target(Noise(40.0)), np.random.default_rng(1)
        few, many = (
            leak_error(ROW, target, asks=asks, repeats=20, rng=rng) for asks in (10, 2_000)
        )
        assert many < 0.05 < few
        needed = asks_for_error(ROW, target, error=0.05, rng=rng)
        assert needed is not None
        # The number is good to about ten percent of asks, the error then to about a third.
        found = leak_error(ROW, target, asks=needed, repeats=100, rng=rng)
        assert found == pytest.approx(0.05, rel=1 / 3)

    def test_what_no_attacker_reaches_is_said(self) -> None:
        target, rng = Target(Noise(40.0)), np.random.default_rng(1)
        assert asks_for_error(ROW, target, error=0.001, rng=rng, most=64) is None

    def test_a_budget_pays_for_what_its_price_says(self) -> None:
        rule = GaussianMax(40.0)
        paid = asks_within(rule, epsilon=2.0, delta=1e-5)
        assert price(rule, paid, delta=1e-5) <= 2.0 < price(rule, paid + 1, delta=1e-5)
        assert asks_within(GaussianMax(0.1), epsilon=1e-3, delta=1e-5) == 0

    def test_rows_are_spread_from_close_to_clear(self) -> None:
        rows = np.array([[top, 250 - top] for top in range(125, 250)])
        found = spread_rows(rows, most=5)
        assert found[:, 0].tolist() == [125, 156, 187, 218, 249]
        assert spread_rows(rows[:5]) is not None

    @pytest.mark.parametrize("share", [0.4, 0.6, 0.95, 1.0])
    @pytest.mark.parametrize("classes", [2, 3, 10])
    def test_made_up_rows_have_all_votes(self, share: float, classes: int) -> None:
        row = votes_of_agreement(share, teachers=250, classes=classes)
        assert row.sum() == 250
        assert (row >= 0).all()
        assert row[0] == round(share * 250)

    @pytest.mark.parametrize(
        "parameters",
        [
            pytest.param({"name": "immutable", "sigma2": 1.0}, id="another mechanism"),
            pytest.param({"name": "gnmax", "sigma2": None}, id="no noise"),
            pytest.param({"name": "gnmax", "sigma2": 0.0}, id="sigma 0"),
            pytest.param({"name": "confident", "sigma2": 1.0, "sigma1": 1.0}, id="no threshold"),
            pytest.param({"name": "threshold", "sigma2": 1.0}, id="no threshold on its noise"),
        ],
    )
    def test_what_an_audit_cannot_simulate_is_refused(self, parameters: dict[str, object]) -> None:
        with pytest.raises(InvalidParameterError):
            Target.of(parameters)

    def test_findings_name_every_way(self) -> None:
        case = AuditCase(ROW[np.newaxis], Target(Noise(40.0)), 500, repeats=3)
        found = find(case, np.random.default_rng(2))
        assert [way.asks for way in found.ways] == [1, 500]
        errors = [way.mean_error for way in found.ways]
        assert errors[0] > errors[1]
        text = render(found)
        assert "one answer" in text
        assert "repetition" in text

    @pytest.mark.parametrize("kept", [{"asks": 0}, {"asks": 10**7}, {"error": 0.0}, {"error": 1.0}])
    def test_means_out_of_range_are_refused(self, kept: dict[str, float]) -> None:
        with pytest.raises(InvalidParameterError):
            AuditCase(ROW[np.newaxis], Target(Noise(1.0)), **{"asks": 1, **kept})  # type: ignore[arg-type]


class TestMadeUpRows:
    def test_are_those_of_the_run(self) -> None:
        privacy = privacy_of(sample_privacy())
        rows = made_up_rows(privacy, metrics_of(sample_metrics()), ())
        assert rows.shape[1] == 10
        assert (rows.sum(axis=1) == sum(party.votes for party in privacy.parties)).all()

    def test_a_run_without_two_classes_is_refused(self) -> None:
        metrics = metrics_of({**sample_metrics(), "per_class": {}})
        privacy = privacy_of(sample_privacy())
        with pytest.raises(RunDirectoryError):
            made_up_rows(privacy, metrics, ("one", "", "one"))


@pytest.fixture(scope="module")
def votes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("votes") / "votes.npy"
    np.save(path, ROW[np.newaxis])
    return path


@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("labels") / "labels.npy"
    noise = np.random.default_rng(3).normal(0, 40, (4_000, 3))
    np.save(path, (ROW + noise).argmax(axis=1))
    return path


GNMAX = ("--mechanism", "gnmax", "--sigma2", 40)


class TestCommand:
    def test_votes_are_attacked_and_priced(self, pate_fed: Command, votes: Path) -> None:
        ended = pate_fed("audit", votes, *GNMAX, "--epsilon", 2, "--format", "json")
        assert ended.code == 0
        last = ended.json["ways"][-1]
        assert last["epsilon"] <= 2
        assert ended.json["median"] > 11

    def test_findings_and_their_plot_are_written(
        self, pate_fed: Command, votes: Path, tmp_path: Path
    ) -> None:
        out = tmp_path / "audit"
        ended = pate_fed("audit", votes, *GNMAX, "--answers", 200, "--out", out)
        assert ended.code == 0, ended.err
        found = json.loads((out / "audit.json").read_text("utf-8"))
        assert [one["asks"] for one in found["curve"]] == [1, 10, 100, 200]
        root = ElementTree.fromstring((out / "audit.svg").read_text("utf-8"))  # noqa: S314 - ours
        assert root.tag.endswith("svg")
        again = pate_fed("audit", votes, *GNMAX, "--out", out)
        assert again.error_code == "PF-402"

    def test_released_labels_are_turned_into_votes(self, pate_fed: Command, labels: Path) -> None:
        asked = ("--labels", labels, "--teachers", 250, "--classes", 3, *GNMAX)
        found = pate_fed("audit", *asked, "--format", "json").json
        assert np.abs(np.array(found["votes"]) - ROW).max() < 6
        assert "+-" in pate_fed("audit", *asked).out

    @pytest.mark.parametrize(
        ("given", "code", "end"),
        [
            pytest.param(("--classes", 2, *GNMAX), "PF-108", 5, id="labels beyond the classes"),
            pytest.param(
                ("--classes", 5_000, *GNMAX), "PF-108", 5, id="fewer answers than classes"
            ),
            pytest.param(
                ("--classes", 3, "--mechanism", "gnmax", "--sigma2", 0), "PF-101", 2, id="sigma 0"
            ),
            pytest.param(("--classes", 1, *GNMAX), "PF-108", 5, id="one class"),
        ],
    )
    def test_bad_answers_are_a_coded_error(
        self, pate_fed: Command, labels: Path, given: tuple[object, ...], code: str, end: int
    ) -> None:
        ended = pate_fed("audit", "--labels", labels, "--teachers", 250, *given)
        assert (ended.error_code, ended.code) == (code, end)

    def test_a_canary_refutes_an_argmax_that_noise_cannot_change(self, pate_fed: Command) -> None:
        asked = ("--canary", 4_000, "--sigma2", 3, "--delta", 1e-3, "--mechanism")
        for name, refuted in (("gnmax", False), ("lnmax", False), ("immutable", True)):
            found = pate_fed("audit", *asked, name, "--format", "json").json
            assert found["refuted"] is refuted, found
        assert "is refuted" in pate_fed("audit", *asked, "immutable").out

    @pytest.mark.parametrize(
        ("given", "code"),
        [
            pytest.param(("--canary", 10), "PF-101", id="too few trials"),
            pytest.param(("--canary", 1000, "--teachers", 0), "PF-101", id="no teachers"),
            pytest.param(("--canary", 10**7), "PF-402", id="too many trials"),
            pytest.param(("--canary", 1000, "--answers", 0), "PF-402", id="no queries"),
            pytest.param(("--canary", 1000, "--classes", 3), "PF-402", id="classes"),
        ],
    )
    def test_a_canary_out_of_range_is_a_coded_error(
        self, pate_fed: Command, given: tuple[object, ...], code: str
    ) -> None:
        assert pate_fed("audit", *given, *GNMAX).error_code == code

    @pytest.mark.parametrize(
        "given",
        [
            pytest.param((), id="nothing to audit"),
            pytest.param(("votes.npy", "--teachers", 3), id="teachers without labels"),
            pytest.param(("--labels", "labels.npy"), id="labels alone"),
            pytest.param(("--run", "run", "--sigma2", 3), id="noise beside a run"),
        ],
    )
    def test_options_that_contradict_each_other_are_refused(
        self, pate_fed: Command, given: tuple[object, ...]
    ) -> None:
        assert pate_fed("audit", *given).error_code == "PF-402"

    def test_a_run_without_its_transcript_is_refused(
        self, pate_fed: Command, tmp_path: Path
    ) -> None:
        write_sample(tmp_path / "run")
        ended = pate_fed("audit", "--run", tmp_path / "run")
        assert (ended.error_code, ended.code) == ("PF-414", 5)

    def test_a_run_that_is_not_there_is_refused(self, pate_fed: Command, tmp_path: Path) -> None:
        ended = pate_fed("audit", "--run", tmp_path / "none")
        assert (ended.error_code, ended.code) == ("PF-140", 5)

    @pytest.mark.slow
    def test_a_runs_report_shows_its_audit(self, pate_fed: Command, tmp_path: Path) -> None:
        run = tmp_path / "run"
        metrics = sample_metrics()
        # Every label was drawn earlier: then there is no transcript to check.
        metrics["queries"]["from_store"] = metrics["queries"]["asked"]
        write_sample(run, metrics=metrics)
        replace_report(run, "a page without an audit")
        ended = pate_fed("audit", "--run", run, "--answers", 20)
        assert ended.code == 0, ended.err
        kept = json.loads((run / "audit.json").read_text("utf-8"))
        page = (run / "report.html").read_text("utf-8")
        assert "Vote leak" in page
        assert f"{kept['median']:,}" in page
        assert page.count("<svg") == 1 + render_report(
            dataclasses.replace(read_run(run), audit=None)
        ).count("<svg")
        # A later `report` shows it too, and nobody's change of it goes unseen by its shape.
        assert pate_fed("report", run).code == 0
        assert "Vote leak" in (run / "report.html").read_text("utf-8")
        kept["curve"] = [{"asks": 0, "errors": [0.1]}]
        (run / "audit.json").write_text(json.dumps(kept), "utf-8")
        for command in (("report", run), ("audit", "--run", run)):
            ended = pate_fed(*command)
            assert (ended.error_code, ended.code) == ("PF-140", 5)

    @pytest.mark.slow
    def test_an_audit_of_real_votes_is_not_kept_in_the_run(
        self, pate_fed: Command, votes: Path, tmp_path: Path
    ) -> None:
        run = tmp_path / "run"
        metrics = sample_metrics()
        metrics["queries"]["from_store"] = metrics["queries"]["asked"]
        write_sample(run, metrics=metrics)
        assert pate_fed("audit", votes, "--run", run, "--answers", 20).code == 0
        assert not (run / "audit.json").exists()

    @pytest.mark.slow
    def test_a_run_is_audited_and_a_changed_one_refused(
        self, pate_fed: Command, tmp_path: Path
    ) -> None:
        run = tmp_path / "run"
        assert pate_fed("simulate", "--data", "digits", "--seed", 1, "--out", run).code == 0
        found = pate_fed("audit", "--run", run, "--format", "json").json
        assert found["ways"][-1]["asks"] > 11
        changed = tmp_path / "changed"
        shutil.copytree(run, changed)
        file = changed / "privacy.json"
        file.write_text(file.read_text("utf-8").replace('"sigma2": ', '"sigma2": 1'), "utf-8")
        ended = pate_fed("audit", "--run", changed)
        assert (ended.error_code, ended.code) == ("PF-418", 5)
