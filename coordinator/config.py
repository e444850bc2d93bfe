"""Settings of a simulation: what was asked for, and what that comes to.

`SimulationSettings` is what a person typed, with None where nothing was; `resolve` fills it in
once the data are known, and refuses what contradicts itself.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from coordinator.errors import InvalidSettingError
from pate_fed.accounting import PrivacyEvent, PrivacyLedger
from pate_fed.data import Dataset, DataSource
from pate_fed.errors import BudgetExhaustedError
from pate_fed.mechanisms import make_mechanism
from pate_fed.partition import PartitionScheme, units_by_hospital
from pate_fed.queries import QueryPool
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

    The mechanisms' parameters were chosen on simulated votes, never on private ones:
    `benchmarks/choose_parameters.py` says how.

    Attributes:
        parties: Number of parties where the data name no hospitals.
        teachers: Teachers per party; None for `TEACHERS_IN_ALL` shared out.
        queries: Most queries asked; fewer where the budget affords fewer.
        confident: Vote threshold, sigma1 and sigma2 for this many teachers, in votes; None for
            shares of their number.
        gnmax: Sigma of GNMax, likewise.
    """

    parties: int
    teachers: int | None
    queries: int
    confident: tuple[float, float, float] | None = None
    gnmax: float | None = None


DEFAULTS: Final[Mapping[str, Defaults]] = {
    "digits": Defaults(50, 1, 30, confident=(20.0, 10.0, 7.95), gnmax=6.95),
    "breast-cancer": Defaults(50, 1, 30, confident=(30.0, 8.0, 8.75), gnmax=6.95),
    "mnist": Defaults(10, 25, 100),
    "csv": Defaults(10, None, 100),
}
TEACHERS_IN_ALL: Final = 50
LEAST_UNITS_PER_TEACHER: Final = 5


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
        if self.vote_threshold is not None and not 0 <= self.vote_threshold < float("inf"):
            raise InvalidSettingError(
                "--vote-threshold must be at least 0 and finite", self.vote_threshold
            )
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

    def resolve(self, dataset: Dataset) -> SimulationSettings:
        """Fill in everything that was left open, now that the data are known.

        Args:
            dataset: The records, split.

        Raises:
            TooFewPartiesError: fewer parties than a secure sum needs.
            InvalidSettingError: more queries than the pool has.
            BudgetExhaustedError: the budget does not afford a single query.
        """
        known = DEFAULTS[self.data.name]
        has_hospitals = dataset.private.hospitals is not None
        scheme = self.partition or ("column" if has_hospitals else "iid")
        parties = self._parties(dataset, known, scheme)
        teachers = self.teachers or known.teachers or _shared_out(dataset, parties, scheme)
        settled = replace(
            self,
            partition=scheme,
            parties=parties,
            teachers=teachers,
            unit=self.unit or ("party" if teachers == 1 else "record"),
        )._with_mechanism(known)
        return settled._with_queries(known, pool=len(QueryPool(dataset.pool.features).distinct))

    def _parties(self, dataset: Dataset, known: Defaults, scheme: PartitionScheme) -> int:
        if scheme == "column" and dataset.private.hospitals is not None:
            parties = self.parties or len(units_by_hospital(dataset.private))
        else:
            parties = self.parties or known.parties
        if parties < LEAST_PARTIES:
            raise TooFewPartiesError(received=parties, threshold=LEAST_PARTIES)
        return parties

    def _with_mechanism(self, known: Defaults) -> SimulationSettings:
        votes = (self.parties or 0) * (self.teachers or 0)
        is_known_size = (self.parties, self.teachers) == (known.parties, known.teachers)
        if self.mechanism == "gnmax":
            usual = known.gnmax if is_known_size else None
            return replace(self, sigma2=_first(self.sigma2, usual, SIGMA2_SHARE * votes))
        threshold, sigma1, sigma2 = (known.confident if is_known_size else None) or (
            VOTE_THRESHOLD_SHARE * votes,
            SIGMA1_SHARE * votes,
            SIGMA2_SHARE * votes,
        )
        return replace(
            self,
            vote_threshold=_first(self.vote_threshold, threshold),
            sigma1=_first(self.sigma1, sigma1),
            sigma2=_first(self.sigma2, sigma2),
        )

    def _with_queries(self, known: Defaults, *, pool: int) -> SimulationSettings:
        if self.queries is not None and self.queries > pool:
            raise InvalidSettingError(
                f"--queries must be at most the pool's {pool} distinct inputs", self.queries
            )
        queries = self.queries or self._affordable(min(known.queries, pool))
        return replace(
            self,
            queries=queries,
            max_answers=min(self.max_answers or queries, queries),
            max_refusals=min(self.max_refusals or queries, queries),
            batch_size=min(self.batch_size or queries, queries),
        )

    def _affordable(self, most: int) -> int:
        """Return how many queries the budget affords at the worst, at most `most`."""
        mechanism = make_mechanism(
            self.mechanism,
            vote_threshold=self.vote_threshold,
            sigma1=self.sigma1,
            sigma2=_first(self.sigma2),
        )
        ledger = PrivacyLedger(self.epsilon, self.delta)
        weight = float(self.teachers or 1) if self.unit == "party" else 1.0

        def worst_case(queries: int) -> PrivacyEvent:
            asks, answers = mechanism.caps(
                queries,
                max_answers=self.max_answers or queries,
                max_refusals=self.max_refusals or queries,
            )
            return mechanism.worst_case_event(asks, answers, weight=weight)

        try:
            ledger.reserve("one query", worst_case(1))
        except BudgetExhaustedError as error:
            raise BudgetExhaustedError(
                requested=error.requested,
                budget=error.budget,
                advice=f"{(self.parties or 0) * (self.teachers or 0)} votes a query and noise of "
                f"{self.sigma2:g} votes leave nothing to ask; take more teachers, more noise or "
                "a larger budget",
            ) from error
        # The cost grows with the number of queries, so the affordable ones come first.
        return bisect_left(
            range(1, most + 1), True, key=lambda queries: not ledger.can_afford(worst_case(queries))
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


def _shared_out(dataset: Dataset, parties: int, scheme: PartitionScheme) -> int:
    """Share `TEACHERS_IN_ALL` out, but leave every teacher a few units to learn from."""
    private = dataset.private
    if scheme == "column" and private.hospitals is not None:
        smallest = min(units_by_hospital(private).values())
    else:
        smallest = private.unit_count // parties
    wanted = -(-TEACHERS_IN_ALL // parties)
    return max(1, min(wanted, smallest // LEAST_UNITS_PER_TEACHER))


def _first(*values: float | None) -> float:
    return next(value for value in values if value is not None)


def _option(name: str) -> str:
    return "--" + name.removesuffix("_s").replace("_", "-")
