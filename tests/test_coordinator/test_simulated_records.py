"""`simulate --teacher neighbors`: a run whose price follows from the cap of a patient's votes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from coordinator.runs.labeling.deciding import Decider
from party.decision.agreed_run import AgreedRun
from party.decision.own_votes import OwnVotes
from party.site.party_task import PartyTask
from party.storage.patient_votes import tags_by
from pate_fed.accounting import Outcomes
from pate_fed.accounting.gaussian_dp import gdp_epsilon
from pate_fed.mechanisms import keyed_stream
from pate_fed.queries import QueryPool
from pate_fed.rule import Caps, Rule
from pate_fed.terms import RunTerms
from pate_fed.votes import TeacherWeights, cap_votes
from protocols.identity import SigningIdentity
from tests.support.command import Command, labels_in, pate_fed, write_table
from tests.support.stores import journal_in_memory

__all__ = ["pate_fed"]  # a fixture

PATIENTS, QUERIES, CAP, CLASSES = 4, 6, 2, 2


def arguments(table: Path, out: Path) -> list[object]:
    return [
        "simulate",
        *("--data", "csv", "--data-file", table, "--label", "sick", "--patient-id", "patient"),
        *("--parties", 3, "--teacher", "neighbors", "--queries", 12, "--sum", "plain"),
        *("--ignore", "clinic", "--epsilon", 3, "--seed", 7, "--out", out),
    ]


def privacy_of(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "privacy.json").read_text("utf-8"))
    return found


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_table(tmp_path / "table.csv", rows=360)


class TestSimulation:
    def test_its_record_states_the_cap_and_the_price_of_the_cap(
        self, pate_fed: Command, table: Path, tmp_path: Path
    ) -> None:
        out = tmp_path / "run"
        ended = pate_fed(*arguments(table, out), "--votes-per-patient", 3, "--batch-size", 5)
        assert ended.code == 0, ended.err

        found = privacy_of(out)
        rule, public = found["mechanism"], found["views"]["public"]
        assert (rule["name"], rule["patient_votes"], rule["max_asks"]) == ("gnmax", 3, 12)
        mu = math.sqrt(2 * 3) / rule["sigma2"]
        assert public["epsilon"] == pytest.approx(gdp_epsilon(mu, 1e-5), rel=1e-12)
        assert 2.98 < public["epsilon"] <= 3
        assert found["views"]["removal"] is None
        assert (found["privacy_unit"], found["unit_votes"]) == ("record", 1)
        assert "at most 3 times" in found["neighboring_definition"]
        assert found["neighboring_definition"] in found["guarantee"]
        assert found["per_instance"]["epsilon"] is None
        assert len(found["ledger"]) == 3
        assert len(labels_in(out)) == 12

    def test_more_queries_cost_no_more_noise(
        self, pate_fed: Command, table: Path, tmp_path: Path
    ) -> None:
        noises = []
        for queries in (6, 20):
            out = tmp_path / str(queries)
            more = ("--queries", queries, "--votes-per-patient", 3)
            assert pate_fed(*arguments(table, out), *more).code == 0
            noises.append(privacy_of(out)["mechanism"]["sigma2"])

        assert noises[0] == pytest.approx(noises[1], rel=0.002)  # the search's accuracy

    def test_a_series_adds_up_and_counts_each_run_s_cap(
        self, pate_fed: Command, table: Path, tmp_path: Path
    ) -> None:
        first, second = tmp_path / "first", tmp_path / "second"
        assert pate_fed(*arguments(table, first), "--votes-per-patient", 3).code == 0
        more = ("--data-file", table, "--epsilon", 6, "--votes-per-patient", 2, "--queries", 4)
        ended = pate_fed("simulate", "--after", first, *more, "--out", second)
        assert ended.code == 0, ended.err

        found = privacy_of(second)
        assert [one["run"] for one in found["runs"]] == ["first", "second"]
        assert found["views"]["public"]["epsilon"] <= 6
        assert found["mechanism"]["patient_votes"] == 2
        assert "at most 3 times" in found["neighboring_definition"]

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            pytest.param(["--unit", "party"], "must protect patients", id="a hospital as unit"),
            pytest.param(["--noise", "parties"], "--noise coordinator", id="noise at the parties"),
            pytest.param(["--mechanism", "lnmax"], "gnmax or threshold", id="another mechanism"),
            pytest.param(["--mechanism", "threshold"], "--vote-threshold", id="no threshold"),
            pytest.param(["--teachers", 4], "without --teachers", id="teachers"),
            pytest.param(
                ["--records-per-teacher", 8], "--records-per-teacher", id="small teachers"
            ),
            pytest.param(["--label", "sick,clinic"], "one label", id="several labels"),
            pytest.param(["--votes-per-patient", 0], "at least 1", id="no votes"),
            pytest.param(
                ["--teacher", "logistic", "--votes-per-patient", 3],
                "is for --teacher neighbors",
                id="a cap of teachers",
            ),
        ],
    )
    def test_what_has_no_proved_price_is_refused_before_anything_is_trained(
        self, pate_fed: Command, table: Path, tmp_path: Path, given: list[object], said: str
    ) -> None:
        out = tmp_path / "run"
        ended = pate_fed(*arguments(table, out), *given)

        assert ended.code == 2
        assert ended.error_code == "PF-105"
        assert said in " ".join(ended.err.split())
        assert not out.exists()


def terms(*, mechanism: str = "gnmax", votes: int = CAP) -> RunTerms:
    threshold = 1.0 if mechanism == "threshold" else None
    return RunTerms(
        name="run",
        pool_digest=bytes(32),
        task_digest=bytes(32),
        classes=CLASSES,
        weights=(TeacherWeights.equal(PATIENTS),) * 3,
        rule=Rule(mechanism, sigma2=1e-3, vote_threshold=threshold),
        unit="record",
        caps=Caps(QUERIES, QUERIES, QUERIES, patient_votes=votes),
        budgets=(1e9,) * 3,
        delta=1e-5,
    )


def own_votes() -> OwnVotes:
    return OwnVotes(
        keyed_stream(bytes(32), tag="noise"),
        cast=journal_in_memory().patient_votes,
        tag_of=tags_by(SigningIdentity.generate()),
    )


class TestOneHospital:
    """The cap is kept where votes become a vector, whatever the voters say."""

    pool = QueryPool(np.arange(QUERIES, dtype=np.float64)[:, np.newaxis])

    def rows(self, votes: OwnVotes, said: object, indices: tuple[int, ...]) -> NDArray[np.int64]:
        def vote(_: object) -> Any:
            if isinstance(said, Exception):
                raise said
            return said

        task = PartyTask(self.pool, vote, patients=tuple(map(str, range(PATIENTS))))
        run = SimpleNamespace(
            terms=terms(),
            task=task,
            scope=SimpleNamespace(digest=b"run"),
        )
        vector = votes.vector(
            cast("AgreedRun", run),
            self.pool.ask(indices),
            weights=TeacherWeights.equal(PATIENTS),
        )
        return vector.reshape(len(indices), CLASSES + 1)

    def test_all_batches_of_a_run_share_one_cap(self) -> None:
        votes, ones = own_votes(), np.ones((PATIENTS, 1))
        rows = [self.rows(votes, ones, (query,))[0].tolist() for query in range(4)]

        assert rows == [[0, 4, 0], [0, 4, 0], [0, 0, 4], [0, 0, 4]]

    @pytest.mark.parametrize(
        "said",
        [
            pytest.param(ValueError("a broken record"), id="an error"),
            pytest.param(np.ones((PATIENTS + 1, 2)), id="too many voters"),
            pytest.param("votes", id="no numbers"),
            pytest.param(np.full((PATIENTS, 2), np.nan), id="not a number"),
            pytest.param(np.full((PATIENTS, 2), 7), id="no class"),
        ],
    )
    def test_votes_that_cannot_be_made_are_none(self, said: object) -> None:
        rows = self.rows(own_votes(), said, (0, 1))

        assert rows.tolist() == [[0, 0, PATIENTS]] * 2

    def test_a_hospital_without_a_cap_is_seen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def without(votes: Any, *, used: Any, most: int, classes: int) -> Any:
            return cap_votes(votes, used=used, most=most + QUERIES, classes=classes)

        monkeypatch.setattr("party.decision.own_votes.cap_votes", without)
        with pytest.raises(AssertionError):
            self.test_all_batches_of_a_run_share_one_cap()


class TestDeciding:
    """The coordinator drops the votes that nobody cast, and shares labels out if asked to."""

    words = np.array([[2, 9, 1], [3, 8, 1], [0, 11, 1], [1, 10, 1]], dtype=np.int64)

    def labels(self, *, shares_out: bool, mechanism: str = "gnmax") -> list[int]:
        decider = Decider(
            terms(mechanism=mechanism),
            noise_bytes=keyed_stream(bytes(32), tag="noise"),
            meter=None,
            shares_out=shares_out,
        )
        opened = decider.open(self.words.ravel().copy(), queries=4, places=(0, 1, 2))
        assert opened.counts.tolist() == self.words[:, :CLASSES].tolist()
        release = decider.decide(opened, rule=decider.mechanism, left=Outcomes(4, 4))
        assert not opened.counts.any()
        return release.labels.tolist()

    def test_a_rare_class_wins_where_it_is_commonest(self) -> None:
        assert self.labels(shares_out=False) == [1, 1, 1, 1]
        assert self.labels(shares_out=True) == [0, 0, 1, 1]

    def test_a_threshold_is_on_counts_as_they_are(self) -> None:
        assert self.labels(shares_out=True, mechanism="threshold") == [1, 1, 1, 1]
