"""Settings of a simulation: what was asked for, and what that comes to.

`SimulationSettings` is what a person typed, with None where nothing was; `resolve` fills it in
once the data are known, and refuses what contradicts itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from coordinator.errors import InvalidSettingError
from pate_fed.data import DataSource
from pate_fed.partition import PartitionScheme
from protocols.additive import AdditiveSum
from protocols.errors import TooFewPartiesError

LEAST_PARTIES: Final = AdditiveSum.smallest

VOTE_THRESHOLD_SHARE: Final = 0.6
SIGMA1_SHARE: Final = 0.3
SIGMA2_SHARE: Final = 0.16
"""Parameters per teacher where no better ones are known."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a data set gets where nothing else is said.

    The mechanism's parameters were chosen on simulated votes, never on private ones:
    `benchmarks/choose_parameters.py` says how.

    Attributes:
        parties: Number of parties; None for one per hospital of the data.
        teachers: Teachers per party.
        queries: Queries asked.
        vote_threshold, sigma1, sigma2: The mechanism's; None for a share of all teachers.
    """

    parties: int | None
    teachers: int
    queries: int
    vote_threshold: float | None = None
    sigma1: float | None = None
    sigma2: float | None = None


DEFAULTS: Final[Mapping[str, Defaults]] = {
    "digits": Defaults(50, 1, 30, vote_threshold=20.0, sigma1=15.0, sigma2=8.0),
    "breast-cancer": Defaults(40, 1, 20, vote_threshold=24.0, sigma1=12.0, sigma2=7.0),
    "mnist": Defaults(10, 25, 100),
    "csv": Defaults(10, 5, 100),
}


@dataclass(frozen=True, slots=True)
class SimulationSettings:
    """A simulation as it was asked for; None means "choose for me".

    Attributes:
        data: Where the records come from.
        parties: Number of parties.
        teachers: Teachers per party.
        partition: How records are dealt to parties.
        queries: Queries to ask.
        select: How queries are chosen from the pool.
        mechanism: "confident" or "gnmax".
        vote_threshold: Noisy top count from which Confident-GNMax answers, in votes.
        sigma1: Standard deviation of the noise of that check, in votes.
        sigma2: Standard deviation of the noise of each count, in votes.
        form: Secure sum.
        unit: Privacy unit.
        delta: In (0, 1).
        epsilon: Budget.
        max_answers: Answers after which the run ends.
        max_refusals: Refusals after which the run ends.
        batch_size: Queries per batch.
        teacher_model: Kind of teacher.
        student: Kind of student.
        engine: "local" or "ray".
        seed: Makes a run repeatable; None draws everything fresh.
        timeout_s: How long an exchange may take.
    """

    data: DataSource
    parties: int | None = None
    teachers: int | None = None
    partition: PartitionScheme | None = None
    queries: int | None = None
    select: str = "medoids"
    mechanism: str = "confident"
    vote_threshold: float | None = None
    sigma1: float | None = None
    sigma2: float | None = None
    form: str = "additive"
    unit: str | None = None
    delta: float = 1e-5
    epsilon: float = 5.0
    max_answers: int | None = None
    max_refusals: int | None = None
    batch_size: int | None = None
    teacher_model: str = "auto"
    student: str = "auto"
    engine: str = "local"
    seed: int | None = None
    timeout_s: float = 600.0

    def check(self) -> None:
        """Refuse what can be refused before any data are read.

        Raises:
            InvalidSettingError: a number is out of its range, or two options contradict.
            TooFewPartiesError: fewer parties than a secure sum needs.
        """
        for name in ("parties", "teachers", "queries", "batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidSettingError(f"{_option(name)} must be at least 1", value)
        if self.parties is not None and self.parties < LEAST_PARTIES:
            raise TooFewPartiesError(received=self.parties, threshold=LEAST_PARTIES)
        for name in ("max_answers", "max_refusals"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidSettingError(f"{_option(name)} must be at least 1", value)
        for name in ("sigma1", "sigma2", "epsilon", "timeout_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise InvalidSettingError(f"{_option(name)} must be above 0 and finite", value)
        if self.vote_threshold is not None and not abs(self.vote_threshold) < float("inf"):
            raise InvalidSettingError("--vote-threshold must be finite", self.vote_threshold)
        if not 0 < self.delta < 1:
            raise InvalidSettingError("--delta must be in (0, 1)", self.delta)
        if self.seed is not None and self.seed < 0:
            raise InvalidSettingError("--seed must be at least 0", self.seed)
        if self.mechanism == "gnmax" and (
            self.vote_threshold is not None or self.sigma1 is not None
        ):
            raise InvalidSettingError(
                "--vote-threshold and --sigma1 are for --mechanism confident", "gnmax"
            )
        if self.partition == "column" and self.data.name == "csv" and not self.data.hospital_column:
            raise InvalidSettingError("--partition column needs --hospital COLUMN", "none")
        self._check_data_options()

    def _check_data_options(self) -> None:
        data = self.data
        csv_only = {
            "--data-file": data.data_file,
            "--label": data.label_column,
            "--patient-id": data.patient_column,
            "--hospital": data.hospital_column,
        }
        if data.name != "csv":
            for option, value in csv_only.items():
                if value is not None:
                    raise InvalidSettingError(f"{option} is for --data csv", data.name)
        if data.name != "mnist" and data.data_dir is not None:
            raise InvalidSettingError("--data-dir is for --data mnist", data.name)

    def with_defaults(self) -> SimulationSettings:
        """Fill in what depends on the name of the data set only."""
        known = DEFAULTS[self.data.name]
        by_column = self.partition == "column" or (
            self.partition is None and self.data.hospital_column is not None
        )
        return replace(
            self,
            partition="column" if by_column else self.partition or "iid",
            parties=self.parties if by_column else self.parties or known.parties,
            teachers=self.teachers or known.teachers,
            queries=self.queries or known.queries,
        )

    def with_numbers(self, *, parties: int, pool: int) -> SimulationSettings:
        """Fill in what depends on the number of parties and on the pool.

        Args:
            parties: Parties there are.
            pool: Public inputs there are.

        Raises:
            TooFewPartiesError: fewer parties than a secure sum needs.
            InvalidSettingError: more queries than the pool has.
        """
        if parties < LEAST_PARTIES:
            raise TooFewPartiesError(received=parties, threshold=LEAST_PARTIES)
        known = DEFAULTS[self.data.name]
        teachers = self.teachers or known.teachers
        votes = parties * teachers
        asked = min(self.queries or known.queries, pool)
        if self.queries is not None and self.queries > pool and self.queries != known.queries:
            raise InvalidSettingError(f"--queries must be at most the pool's {pool}", self.queries)
        fits = (parties, teachers) == (known.parties, known.teachers)
        threshold, sigma1, sigma2 = (
            (known.vote_threshold, known.sigma1, known.sigma2) if fits else (None, None, None)
        )
        confident = self.mechanism == "confident"
        return replace(
            self,
            parties=parties,
            teachers=teachers,
            queries=asked,
            vote_threshold=_first(self.vote_threshold, threshold, VOTE_THRESHOLD_SHARE * votes)
            if confident
            else None,
            sigma1=_first(self.sigma1, sigma1, SIGMA1_SHARE * votes) if confident else None,
            sigma2=_first(self.sigma2, sigma2, SIGMA2_SHARE * votes),
            unit=self.unit or ("party" if teachers == 1 else "record"),
            max_answers=min(self.max_answers or asked, asked),
            max_refusals=min(self.max_refusals or asked, asked),
            batch_size=min(self.batch_size or asked, asked),
        )

    def as_table(self) -> dict[str, object]:
        """Return the settings for `run.toml`; file names without their folders."""
        data = self.data
        return {
            "data": data.name,
            "source": {
                "file": None if data.data_file is None else Path(data.data_file).name,
                "label": data.label_column,
                "patient_id": data.patient_column,
                "hospital": data.hospital_column,
            },
            "federation": {
                "parties": self.parties,
                "teachers": self.teachers,
                "partition": self.partition,
                "sum": self.form,
                "engine": self.engine,
            },
            "queries": {
                "count": self.queries,
                "select": self.select,
                "batch_size": self.batch_size,
            },
            "mechanism": {
                "name": self.mechanism,
                "vote_threshold": self.vote_threshold,
                "sigma1": self.sigma1,
                "sigma2": self.sigma2,
                "max_answers": self.max_answers,
                "max_refusals": self.max_refusals,
            },
            "budget": {"epsilon": self.epsilon, "delta": self.delta, "unit": self.unit},
            "models": {"teacher": self.teacher_model, "student": self.student},
            "seed": self.seed,
        }


def _first(*values: float | None) -> float:
    return next(value for value in values if value is not None)


def _option(name: str) -> str:
    return "--" + name.removesuffix("_s").replace("_", "-")
