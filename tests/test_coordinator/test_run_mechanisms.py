"""Deployed runs of mechanisms that need more than votes: a student in between, a part of delta.

Worker and hospitals are those of a deployment, in this process.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from coordinator.runs import open_run
from coordinator.runs.open_run import results_of
from coordinator.runs.queue import RunState
from coordinator.runs.stages import Stage
from pate_fed.accounting import EntryState
from protocols import wire
from protocols.messages import Plan
from tests.support.deployed import CLASSES, NAMES, true_class
from tests.support.invariants import messages_in
from tests.support.markers import more
from tests.support.worked import QUERIES, KilledError, Worked

FIVE = (*NAMES, "East", "Mid")


def made(folder: Path, form: str) -> Worked:
    return Worked(folder, names=FIVE if form == "masked" else NAMES)


def table(federation: Worked, name: str) -> dict[str, Any]:
    folder = results_of(federation.coordinator.home, "first")
    found: dict[str, Any] = json.loads((folder / name).read_text())
    return found


def labels(federation: Worked) -> dict[int, str]:
    lines = (results_of(federation.coordinator.home, "first") / "labels.csv").read_text()
    rows = [line.split(",") for line in lines.splitlines()[1:]]
    return {int(row[0]): row[1] for row in rows}


def charges(federation: Worked) -> list[list[EntryState]]:
    return [
        [entry.state for entry in one.ledger.load().entries]
        for one in federation.hospitals.values()
    ]


def die_at(fatal: Stage, *, passes: int) -> Callable[[Stage], None]:
    passed = Counter[Stage]()

    def die(stage: Stage) -> None:
        passed[stage] += 1
        if stage is fatal and passed[stage] >= passes:
            raise KilledError

    return die


def require_voted_once(federation: Worked) -> None:
    """Each plan was voted on once; a second phase is a plan of its own."""
    for one in federation.hospitals.values():
        assert set(one.asked) == set(federation.request().queries)
        assert set(Counter(one.voted).values()) == {1}


class TestInteractive:
    """The teachers are of one mind: a student that has learned it leaves them nothing to say."""

    SETTINGS: ClassVar[dict[str, Any]] = {
        "mechanism": "interactive",
        "vote_threshold": 25.0,
        "sigma1": 2.0,
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
                    if isinstance(message, Plan) and message.phase == 0:
                        terms: Any = wire.decode_value(message.terms)
                        digest = terms["predictions_digest"]
                        assert of_batch.setdefault(message.batch, digest) == digest
            found.append([of_batch[batch] for batch in sorted(of_batch)])
        return found

    def require_sound(self, federation: Worked) -> None:
        truth = true_class(federation.task.inputs)
        released = labels(federation)
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
        states = charges(federation)
        assert states == [[EntryState.COMMITTED] * 3] * len(federation.hospitals)

    @pytest.mark.parametrize("noise", ["coordinator", "parties"])
    @pytest.mark.parametrize("form", ["additive", "masked"])
    def test_a_student_learns_between_the_batches(
        self, tmp_path: Path, form: str, noise: str
    ) -> None:
        federation = made(tmp_path, form)
        federation.ask(form=form, noise=noise, **self.SETTINGS)
        run = federation.work()
        assert (run.state, run.progress["void"]) == (RunState.DONE, 0), run.reason
        self.require_sound(federation)
        assert table(federation, "privacy.json")["mechanism"]["confidence"] == 0.6
        report = results_of(federation.coordinator.home, "first") / "report.html"
        assert "Interactive-GNMax" in report.read_text(encoding="utf-8")
        federation.coordinator.close()

    @pytest.mark.parametrize(
        ("form", "noise", "stage"),
        [
            pytest.param("additive", "coordinator", Stage.PLANNED, id="planned"),
            pytest.param("additive", "parties", Stage.FIRST_STORED, id="first phase stored"),
            pytest.param("masked", "coordinator", Stage.DECIDED, id="decided, masked"),
            more("additive", "coordinator", Stage.ANSWERED, id="answered"),
            more("additive", "coordinator", Stage.STORED, id="stored"),
            more("masked", "parties", Stage.FIRST_STORED, id="first phase stored, masked"),
            more("masked", "parties", Stage.DECIDED, id="decided, masked, parties"),
        ],
    )
    def test_a_restart_decides_an_asked_batch_with_the_same_predictions(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, noise: str, stage: Stage
    ) -> None:
        federation = made(tmp_path, form)
        federation.ask(form=form, noise=noise, **self.SETTINGS)
        asked: list[tuple[int, ...]] = []
        predict = open_run.predictions_for

        def predictions_for(batch: tuple[int, ...], **known: Any) -> Any:
            """A student of another life is of another mind."""
            asked.append(batch)
            found = predict(batch, **known)
            return None if found is None else np.roll(found, len(asked) > 2, axis=1)

        monkeypatch.setattr(open_run, "predictions_for", predictions_for)
        federation.on_stage = die_at(stage, passes=2)
        with pytest.raises(KilledError):
            federation.work()
        before = self.digests(federation)
        federation.on_stage = lambda passed: None
        run = federation.work()
        assert (run.state, run.progress["void"]) == (RunState.DONE, 0), run.reason
        self.require_sound(federation)
        after = self.digests(federation)
        assert all(old == new[: len(old)] for old, new in zip(before, after, strict=True))
        assert len(asked) == len(set(asked)) == 3
        federation.coordinator.close()

    def test_a_hospital_that_does_not_allow_it_refuses(self, tmp_path: Path) -> None:
        federation = made(tmp_path, "additive")
        everybody = list(federation.hospitals.values())
        for one in everybody:
            others = [other for other in everybody if other is not one]
            one.open(others, federation.task, approved=True, mechanisms=frozenset({"confident"}))
        federation.ask(**self.SETTINGS)
        run = federation.work()
        assert run.state is RunState.FAILED
        assert "PF-315" in run.reason
        assert not any(one.asked for one in everybody)
        federation.coordinator.close()
