"""Deployed runs of mechanisms that need more than votes: a student in between, a part of delta.

Worker and hospitals are those of a deployment, in this process.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from coordinator.runs import worker
from coordinator.runs.queue import RunState
from coordinator.runs.stages import BatchStage
from pate_fed.accounting import EntryState
from protocols.messages import Plan
from protocols.values import decode_value
from tests.support.deployed import CLASSES, NAMES, true_class
from tests.support.invariants import messages_in
from tests.support.markers import more, sampled
from tests.support.worked import QUERIES, KilledError, Worked, die_at

FIVE = (*NAMES, "East", "Mid")


def made(folder: Path, form: str) -> Worked:
    return Worked(folder, names=FIVE if form == "masked" else NAMES)


def table(federation: Worked, name: str) -> dict[str, Any]:
    folder = federation.coordinator.home.results("first")
    found: dict[str, Any] = json.loads((folder / name).read_text())
    return found


def require_voted_once(federation: Worked) -> None:
    """Each plan was voted on once."""
    for one in federation.hospitals.values():
        assert set(one.asked) == set(federation.request().queries)
        assert set(Counter(one.voted).values()) == {1}


class TestInteractive:
    """The teachers are of one mind: a student that has learned it leaves them nothing to say."""

    SETTINGS: ClassVar[dict[str, Any]] = {
        "mechanism": "interactive-threshold",
        # All 30 votes agree: noise of 2 to 2.5 votes hides that in one of a billion questions.
        "vote_threshold": 15.0,
        "sigma2": 2.0,
        "confidence": 0.6,
        "batch_size": 4,
        "epsilon": 900.0,
    }

    def digests(self, federation: Worked) -> list[list[bytes]]:
        """Each hospital's digests of predictions, batch by batch; its plan may come twice."""
        found = []
        for one in federation.hospitals.values():
            of_batch: dict[int, bytes] = {}
            for packet, _ in one.exchanges:
                for message in messages_in(packet):
                    if isinstance(message, Plan):
                        terms: Any = decode_value(message.terms)
                        digest = terms["predictions_digest"]
                        assert of_batch.setdefault(message.batch, digest) == digest
            found.append([of_batch[batch] for batch in sorted(of_batch)])
        return found

    def require_sound(self, federation: Worked) -> None:
        truth = true_class(federation.task.inputs)
        released = federation.labels()
        assert set(released) == set(federation.request().queries)
        answered = {place: label for place, label in released.items() if label}
        assert answered == {place: CLASSES[truth[place]] for place in answered}
        queries = table(federation, "metrics.json")["queries"]
        # Both classes are in the first batch, so the student speaks from the second on.
        assert queries["answered"] >= 4
        assert 0 < queries["reinforced"] <= QUERIES - queries["answered"]
        require_voted_once(federation)
        for first, *others in self.digests(federation):
            assert first == b""
            assert [len(digest) for digest in others] == [32, 32]
            assert others[0] != others[1]
        states = federation.charges()
        assert states == [[EntryState.COMMITTED] * 3] * len(federation.hospitals)

    @sampled()
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("form", "noise"),
        [
            pytest.param("additive", "parties", id="additive, noise at the parties"),
            pytest.param("masked", "coordinator", id="masked, noise at the coordinator"),
            more("masked", "parties", id="masked, noise at the parties"),
        ],
    )
    def test_a_student_learns_between_the_batches(
        self, tmp_path: Path, form: str, noise: str
    ) -> None:
        federation = made(tmp_path, form)
        federation.ask(form=form, noise=noise, **self.SETTINGS)
        run = federation.work()
        assert (run.state, run.progress.void) == (RunState.DONE, 0), run.reason
        # One sum a batch, whoever adds the noise; and a question before it whether all are ready.
        exchanges = table(federation, "metrics.json")["exchanges"]
        assert exchanges["per_batch"] == {"additive": 2, "masked": 4}[form]
        self.require_sound(federation)
        assert table(federation, "privacy.json")["mechanism"]["confidence"] == 0.6
        report = federation.coordinator.home.results("first") / "report.html"
        assert "Interactive Threshold-GNMax" in report.read_text(encoding="utf-8")
        federation.coordinator.close()

    @pytest.mark.slow
    @sampled()
    @pytest.mark.parametrize(
        ("form", "stage"),
        [
            pytest.param("additive", BatchStage.PLANNED, id="planned"),
            pytest.param("masked", BatchStage.DECIDED, id="decided, masked"),
            more("additive", BatchStage.ANSWERED, id="answered"),
            more("additive", BatchStage.STORED, id="stored"),
        ],
    )
    def test_a_restart_decides_an_asked_batch_with_the_same_predictions(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, stage: BatchStage
    ) -> None:
        federation = made(tmp_path, form)
        federation.ask(form=form, **self.SETTINGS)
        asked: list[tuple[int, ...]] = []
        predict = worker.predictions_for

        def predictions_for(batch: tuple[int, ...], **known: Any) -> Any:
            """A student of another life is of another mind."""
            asked.append(batch)
            found = predict(batch, **known)
            return None if found is None else np.roll(found, len(asked) > 2, axis=1)

        monkeypatch.setattr(worker, "predictions_for", predictions_for)
        federation.on_stage = die_at(stage, passes=2)
        with pytest.raises(KilledError):
            federation.work()
        before = self.digests(federation)
        federation.on_stage = lambda passed: None
        run = federation.work()
        assert (run.state, run.progress.void) == (RunState.DONE, 0), run.reason
        self.require_sound(federation)
        after = self.digests(federation)
        assert all(old == new[: len(old)] for old, new in zip(before, after, strict=True))
        assert len(asked) == len(set(asked)) == 3
        federation.coordinator.close()

    @pytest.mark.slow
    def test_answers_of_an_earlier_run_teach_the_student_of_the_first_batch(
        self, tmp_path: Path
    ) -> None:
        federation = made(tmp_path, "additive")
        federation.ask("before")
        federation.work("before")
        for one in federation.hospitals.values():
            one.exchanges.clear()
        federation.ask(select="all", **{**self.SETTINGS, "queries": 30})
        run = federation.work()
        assert run.state is RunState.DONE, run.reason
        assert run.progress.from_store > 0
        for digests in self.digests(federation):
            assert {len(digest) for digest in digests} == {32}
        assert table(federation, "metrics.json")["queries"]["reinforced"] > 0
        federation.coordinator.close()

    def test_a_hospital_that_does_not_allow_it_refuses(self, tmp_path: Path) -> None:
        federation = made(tmp_path, "additive")
        everybody = list(federation.hospitals.values())
        for one in everybody:
            others = [other for other in everybody if other is not one]
            one.open(others, federation.task, approved=True, mechanisms=frozenset({"threshold"}))
        federation.ask(**self.SETTINGS)
        run = federation.work()
        assert run.state is RunState.FAILED
        assert "PF-315" in run.reason
        assert not any(one.asked for one in everybody)
        federation.coordinator.close()


class TestStable:
    """Each query that is asked costs its test_delta, of the run's delta and of each hospital's."""

    TEST_DELTA = 1e-7

    def settings(self, mechanism: str, **changed: Any) -> dict[str, Any]:
        return {
            "mechanism": mechanism,
            "sigma1": 1.0,
            "sigma2": None,
            "test_delta": self.TEST_DELTA,
            "batch_size": 4,
            "epsilon": 900.0,
            **changed,
        }

    def spent(self, federation: Worked) -> list[float]:
        """The tests that each hospital has paid for, by what its ledger says."""
        ledgers = [one.ledger.load() for one in federation.hospitals.values()]
        return [round(ledger.charged_delta() / self.TEST_DELTA, 6) for ledger in ledgers]

    def reopen(self, federation: Worked) -> None:
        """Start every hospital anew, on its ledger."""
        federation.approve_pool(True)

    @sampled()
    @pytest.mark.parametrize("mechanism", ["stable-gaussian", "stable-laplace"])
    @pytest.mark.parametrize("form", ["additive", "masked"])
    def test_labels_are_the_exact_winners_and_every_ask_costs_delta(
        self, tmp_path: Path, form: str, mechanism: str
    ) -> None:
        federation = made(tmp_path, form)
        federation.ask(form=form, **self.settings(mechanism))
        run = federation.work()
        assert (run.state, run.progress.void) == (RunState.DONE, 0), run.reason
        truth = true_class(federation.task.inputs)
        answered = {place: label for place, label in federation.labels().items() if label}
        assert answered == {place: CLASSES[truth[place]] for place in answered}
        # The lead is all votes. By the Laplace test three hospitals' is above the bar with a chance
        # of 0.98: three answers in twelve come but for one time in 10^13.
        assert len(answered) >= 3
        require_voted_once(federation)
        assert federation.charges() == [[EntryState.COMMITTED] * 3] * len(federation.hospitals)
        assert self.spent(federation) == [QUERIES] * len(federation.hospitals)
        assert run.progress.tests_delta == pytest.approx(QUERIES * self.TEST_DELTA, rel=1e-9)
        budget = table(federation, "privacy.json")["budget"]
        assert budget["kept_for_tests"] == pytest.approx(QUERIES * self.TEST_DELTA, rel=1e-9)
        assert budget["kept_for_tests"] < budget["delta"]
        federation.coordinator.close()

    @sampled()
    @pytest.mark.parametrize(
        ("mechanism", "stage"),
        [
            pytest.param("stable-gaussian", BatchStage.ANSWERED, id="answered"),
            pytest.param("stable-laplace", BatchStage.DECIDED, id="decided"),
            more("stable-gaussian", BatchStage.PLANNED, id="planned"),
            more("stable-laplace", BatchStage.STORED, id="stored"),
        ],
    )
    def test_a_kill_in_the_middle_loses_no_delta_and_doubles_none(
        self, tmp_path: Path, mechanism: str, stage: BatchStage
    ) -> None:
        federation = made(tmp_path, "additive")
        federation.ask(**self.settings(mechanism))
        federation.on_stage = die_at(stage, passes=2)
        with pytest.raises(KilledError):
            federation.work()
        held = 4 if stage is BatchStage.PLANNED else 8  # hospitals charge before they send
        assert self.spent(federation) == [held] * 3
        federation.on_stage = lambda passed: None
        run = federation.work()
        assert (run.state, run.progress.void) == (RunState.DONE, 0), run.reason
        require_voted_once(federation)
        assert self.spent(federation) == [QUERIES] * 3
        federation.coordinator.close()

    def test_a_lost_batch_gives_no_delta_back(self, tmp_path: Path) -> None:
        """The coordinator has all answers, and is stopped: nobody knows what it drew."""
        federation = made(tmp_path, "additive")
        federation.ask(**self.settings("stable-gaussian"))
        federation.on_stage = die_at(BatchStage.DECIDED, passes=2)
        with pytest.raises(KilledError):
            federation.work()
        federation.on_stage = lambda passed: None
        federation.coordinator.queue.stop("first")
        run = federation.work()
        assert (run.state, run.progress.void) == (RunState.STOPPED, 1), run.reason
        assert federation.charges() == [[EntryState.COMMITTED, EntryState.FORFEITED]] * 3
        assert self.spent(federation) == [8.0] * 3
        assert run.progress.tests_delta == pytest.approx(8 * self.TEST_DELTA, rel=1e-9)
        federation.coordinator.close()

    @pytest.mark.slow
    def test_many_small_runs_do_not_overspend_a_hospitals_delta(self, tmp_path: Path) -> None:
        federation = made(tmp_path, "additive")
        poorest = federation.hospitals[1]
        poorest.start_over(delta_for_tests=5.5 * self.TEST_DELTA)
        asked = 0
        for number, queries in enumerate((2, 4, 6, 5, 7), start=1):
            self.reopen(federation)
            chosen = self.settings("stable-gaussian", queries=queries, batch_size=2)
            federation.ask(f"run {number}".replace(" ", "-"), select="all", **chosen)
            run = federation.work(f"run-{number}")
            if queries <= 5:
                assert run.state is RunState.DONE, run.reason
                asked = queries
            else:  # one more batch would exceed it: nobody votes on it
                assert run.state is RunState.INCOMPLETE
                assert f"{NAMES[1]}" in run.reason
                assert "PF-318" in run.reason
            assert self.spent(federation) == [asked] * 3
        ledger = poorest.ledger.load()
        assert ledger.charged_delta() <= ledger.additive_delta
        assert ledger.used_share() < 0.1  # epsilon is not in the way
        federation.coordinator.close()

    @sampled()
    @pytest.mark.parametrize("kept", [0.0, 0.5e-7], ids=["nothing kept", "less than one test"])
    def test_a_hospital_that_can_pay_for_no_test_refuses_before_anybody_votes(
        self, tmp_path: Path, kept: float
    ) -> None:
        federation = made(tmp_path, "additive")
        poorest = federation.hospitals[1]
        poorest.start_over(delta_for_tests=kept)
        self.reopen(federation)
        federation.ask(**self.settings("stable-gaussian"))
        run = federation.work()
        assert run.state is RunState.FAILED
        assert f"{NAMES[1]} [PF-321]" in run.reason
        assert not any(one.asked for one in federation.hospitals.values())
        assert federation.charges() == [[]] * 3
        federation.coordinator.close()
