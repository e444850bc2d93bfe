"""Settings of a run, simulated or real: what was asked for, and what that comes to.

`RunSettings` is what a person typed, with None where nothing was; `resolve` fills it in
once the data are known, and refuses what contradicts itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from pate_fed.accounting import Outcomes
from pate_fed.accounting.statement import Pricing
from pate_fed.charging import PRICINGS, affordable_queries, priced, tightest_cost
from pate_fed.data import Dataset, DataSource
from pate_fed.errors import BudgetExhaustedError, InvalidSettingError, InvalidTermsError
from pate_fed.federation import NO_TASK, RunTerms
from pate_fed.mechanisms import (
    SPECS,
    USUAL_AT_PARTIES,
    DistributedNoise,
    Size,
    Spec,
    specs_with,
    usual_vote_threshold,
)
from pate_fed.mechanisms.preview import Preview, preview_confident, simulated_votes
from pate_fed.partition import PartitionScheme, units_by_hospital
from pate_fed.queries import QueryPool
from pate_fed.votes import MAX_TOTAL_VOTES
from protocols.envelope import DEFAULT_SUITE
from protocols.errors import TooFewPartiesError
from protocols.forms import FORMS

LEAST_PARTIES: Final = FORMS["additive"].smallest

LEARNING_BATCHES: Final = 5
"""Batches of a run whose student learns between them."""


def usual_mechanism(noise: str) -> str:
    """Return the mechanism of a run that names none: with noise at the parties one exchange."""
    return USUAL_AT_PARTIES if noise == "parties" else next(iter(SPECS))


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a data set gets where nothing else is said.

    The mechanisms' parameters were chosen on simulated votes, never on private ones:
    `benchmarks/choose_parameters.py` says how.

    Attributes:
        parties: Number of parties where the data name no hospitals.
        teachers: Teachers per party; None for `TEACHERS_IN_ALL` shared out.
        queries: Most queries asked; fewer where the budget affords fewer.
        parameters: Of mechanisms, by name, for this many teachers.
        at_parties: The same where the parties add the noise.
    """

    parties: int
    teachers: int | None
    queries: int
    parameters: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    at_parties: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def _for_fifty(check: Mapping[str, float]) -> Defaults:
    """Return the defaults of a bundled data set, with parameters of Confident-GNMax of its own."""
    parameters = {"confident": check, "interactive": check, "gnmax": {"sigma2": 6.95}}
    return Defaults(50, 1, 30, parameters, at_parties={"gnmax": {"sigma2": 7.4}})


DEFAULTS: Final[Mapping[str, Defaults]] = {
    "digits": _for_fifty({"vote_threshold": 20.0, "sigma1": 10.0, "sigma2": 7.95}),
    "breast-cancer": _for_fifty({"vote_threshold": 30.0, "sigma1": 8.0, "sigma2": 8.75}),
    "mnist": Defaults(10, 25, 100),
    "csv": Defaults(10, None, 100),
}
TEACHERS_IN_ALL: Final = 50
LEAST_UNITS_PER_TEACHER: Final = 5


@dataclass(frozen=True, slots=True)
class RunSettings:
    """A run as it was asked for; None means "choose for me".

    Attributes:
        data: Where the records come from.
        parties: Number of parties.
        teachers: Teachers per party.
        party_teachers: Teachers of the parties one by one instead, where each said how many it has.
        partition: How records are dealt to parties.
        queries: Queries to ask.
        select: How queries are chosen from the pool.
        mechanism: One of `SPECS`.
        vote_threshold: Noisy top count from which Confident-GNMax answers, in votes.
        sigma1: Standard deviation of the noise of that check, in votes; of a test of stability,
            in units.
        sigma2: Standard deviation of the noise of each count, in votes.
        confidence: Chance from which the student's own label is kept.
        test_delta: Of one test of stability.
        noise: Who adds it: "coordinator" or "parties".
        colluders: With noise at the parties, hospitals whose noise an attacker may know.
        form: Secure sum.
        suite: Sealing suite of the run, the same for all hospitals.
        unit: Privacy unit.
        weights: For each hospital in the data's order, the votes that each of its teachers casts;
            one each if None.
        delta: In (0, 1).
        epsilon: Budget of every hospital's units.
        party_epsilons: Budgets of the hospitals one by one, instead.
        pricing: "auto" for the smallest formal price that holds, or one of them.
        valid_votes: Whether all hospitals are trusted to send valid vote rows: the joint price
            holds only then.
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
    party_teachers: tuple[int, ...] | None = None
    partition: PartitionScheme | None = None
    queries: int | None = None
    select: str = "medoids"
    mechanism: str = "confident"
    vote_threshold: float | None = None
    sigma1: float | None = None
    sigma2: float | None = None
    confidence: float | None = None
    test_delta: float | None = None
    noise: str = "coordinator"
    colluders: int | None = None
    form: str = "additive"
    suite: str = DEFAULT_SUITE
    unit: str | None = None
    weights: tuple[int, ...] | None = None
    delta: float = 1e-5
    epsilon: float = 5.0
    party_epsilons: tuple[float, ...] | None = None
    pricing: str = "auto"
    valid_votes: bool = True
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
        if self.parties is not None and self.parties < self._least_parties:
            raise TooFewPartiesError(received=self.parties, threshold=self._least_parties)
        for name in ("max_answers", "max_refusals"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidSettingError(f"{_option(name)} must be at least 1", value)
        self._check_parts()
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
        if self.partition == "column" and self.data.name == "csv" and not self.data.hospital_column:
            raise InvalidSettingError("--partition column needs --hospital COLUMN", "none")
        self._check_data_options()

    def _check_parts(self) -> None:
        """Refuse options that another mechanism has, and lists that do not fit."""
        self._check_noise()
        spec, prices = self._spec, self._prices
        for name in ("vote_threshold", "sigma1", "sigma2", "confidence", "test_delta"):
            if getattr(self, name) is not None and name not in spec.parameters:
                has = " and ".join(
                    f"--mechanism {other}"
                    for other, each in specs_with(self.noise).items()
                    if name in each.parameters
                )
                must = f"is for {has}" if has else f"is not for --noise {self.noise}"
                raise InvalidSettingError(f"{_option(name)} {must}", self.mechanism)
        if self.max_refusals is not None and not spec.may_refuse:
            raise InvalidSettingError("--max-refusals is for what refuses", self.mechanism)
        if self.confidence is not None and not 0 <= self.confidence <= 1:
            raise InvalidSettingError("--confidence must be between 0 and 1", self.confidence)
        if self.test_delta is not None and not 0 < self.test_delta < min(0.5, self.delta):
            raise InvalidSettingError("--test-delta must be above 0 and below --delta", "another")
        for place, weight in enumerate(self.weights or (), start=1):
            if weight < 1:
                raise InvalidSettingError(
                    "--weights must be at least 1 each", f"{weight} for hospital {place}"
                )
        if self.weights == ():
            raise InvalidSettingError("--weights must be at least 1 each", "none")
        if self.party_epsilons is not None and not all(
            0 < budget < float("inf") for budget in self.party_epsilons
        ):
            raise InvalidSettingError("--party-epsilons must be above 0 and finite", "others")
        if self.pricing != "auto" and self.pricing not in prices:
            where = " with --noise parties" if self.noise == "parties" else ""
            raise InvalidSettingError(
                f"--pricing of {self.mechanism}{where} must be auto or {' or '.join(prices)}",
                self.pricing,
            )
        if self.pricing == "joint" and not self.valid_votes:
            raise InvalidSettingError(
                "--pricing joint must come with --valid-votes", "--unchecked-votes"
            )

    @property
    def _spec(self) -> Spec:
        return SPECS[self.mechanism]

    @property
    def _prices(self) -> tuple[Pricing, ...]:
        return self._spec.prices_with(self.noise)

    def _check_noise(self) -> None:
        """Refuse what cannot be with noise at the parties, or is for it alone."""
        if self.noise not in ("coordinator", "parties"):
            raise InvalidSettingError("--noise must be coordinator or parties", self.noise)
        if self.noise == "coordinator":
            if self.colluders is not None:
                raise InvalidSettingError("--colluders is for --noise parties", self.noise)
            return
        if self.mechanism not in specs_with(self.noise):
            raise InvalidSettingError(
                f"--mechanism with --noise parties must be {' or '.join(specs_with(self.noise))}",
                self.mechanism,
            )
        if not FORMS[self.form].hides_vectors:
            raise InvalidSettingError(
                "--noise parties must hide the votes: one hospital's noise is too little for it",
                "--sum plain",
            )
        if self.colluders is not None and self.colluders < 1:
            raise InvalidSettingError("--colluders must be at least 1", self.colluders)

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

    def resolve(self, dataset: Dataset) -> RunSettings:
        """Fill in everything that was left open, now that the data are known.

        Args:
            dataset: The records, split.

        Raises:
            TooFewPartiesError: fewer parties than a secure sum needs.
            InvalidSettingError: more queries than the pool has.
            BudgetExhaustedError: the budget does not afford a single query.
        """
        return self._resolved(dataset, DEFAULTS[self.data.name])

    def affordable(self, dataset: Dataset) -> int:
        """Return how many of the queries that were asked for the budgets afford at the worst.

        Args:
            dataset: The records, split.

        Raises:
            BudgetExhaustedError: not a single one.
        """
        known = DEFAULTS[self.data.name]
        most = replace(known, queries=self.queries or known.queries)
        return replace(self, queries=None)._resolved(dataset, most).queries or 0

    def resolve_for(self, teachers: tuple[int, ...], *, pool: int, classes: int) -> RunSettings:
        """Fill in everything that was left open, for hospitals that are there already.

        Args:
            teachers: Of each of them.
            pool: Distinct public inputs.
            classes: Number of classes.

        Raises:
            See `resolve`.
        """
        if len(teachers) < self._least_parties:
            raise TooFewPartiesError(received=len(teachers), threshold=self._least_parties)
        usual_unit = "party" if set(teachers) == {1} else "record"
        settled = replace(
            self,
            parties=len(teachers),
            party_teachers=teachers,
            teachers=None,
            unit=self.unit or usual_unit,
        )._with_one_each()
        return settled._with_mechanism(DEFAULTS["csv"], classes=classes)._with_queries(
            DEFAULTS["csv"], pool=pool, classes=classes
        )

    def _resolved(self, dataset: Dataset, known: Defaults) -> RunSettings:
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
        )._with_one_each()
        classes = len(dataset.class_names)
        return settled._with_mechanism(known, classes=classes)._with_queries(
            known,
            pool=len(QueryPool(dataset.pool.features).distinct),
            classes=classes,
        )

    def _with_one_each(self) -> RunSettings:
        """Fill in what each party has; of settings whose number of parties is known."""
        parties = self.parties or 0
        settled = replace(
            self,
            colluders=self.colluders or 1 if self.noise == "parties" else None,
            weights=self.weights or (1,) * parties,
            party_epsilons=self.party_epsilons or (self.epsilon,) * parties,
        )
        for name in ("weights", "party_epsilons"):
            given = getattr(settled, name)
            if len(given) != parties:
                raise InvalidSettingError(
                    f"{_option(name)} must have one entry for each of {parties} hospitals",
                    len(given),
                )
        if settled.noise == "parties" and settled._shares < 1:
            raise InvalidSettingError(
                f"--colluders must leave one of {parties} hospitals that is honest and present",
                settled.colluders,
            )
        return settled

    def terms(
        self, *, name: str, classes: int, pool_digest: bytes, task_digest: bytes = NO_TASK
    ) -> RunTerms:
        """Return the terms of the run, hospitals in the data's order, with the price chosen.

        Args:
            name: What the run is called.
            classes: Number of classes.
            pool_digest: Of the query pool, 32 bytes.
            task_digest: Of the task document, 32 bytes; a simulation has none.
        """
        draft = self._draft(classes, self._caps(self.queries or 0, None))
        return replace(
            self._priced(draft), name=name, pool_digest=pool_digest, task_digest=task_digest
        )

    def _parties(self, dataset: Dataset, known: Defaults, scheme: PartitionScheme) -> int:
        if scheme == "column" and dataset.private.hospitals is not None:
            parties = self.parties or len(units_by_hospital(dataset.private))
        else:
            parties = self.parties or known.parties
        if parties < self._least_parties:
            raise TooFewPartiesError(received=parties, threshold=self._least_parties)
        return parties

    @property
    def _least_parties(self) -> int:
        return max(FORMS[self.form].smallest, LEAST_PARTIES)

    @property
    def _dropouts(self) -> int:
        """Hospitals that may be lost before the sum opens; of resolved settings."""
        parties = self.parties or 0
        return parties - FORMS[self.form].threshold(parties)

    @property
    def _shares(self) -> int:
        """Noise shares that have to suffice; of resolved settings."""
        return (self.parties or 0) - (self.colluders or 0) - self._dropouts

    @property
    def votes(self) -> int:
        """Votes per query in all; of resolved settings."""
        return sum(weight * count for weight, count in self._teams)

    @property
    def _teams(self) -> list[tuple[int, int]]:
        """Weight and number of each party's teachers; of resolved settings."""
        weights = self.weights or ()
        counts = self.party_teachers or (self.teachers or 0,) * len(weights)
        return list(zip(weights, counts, strict=True))

    @property
    def all_teachers(self) -> int:
        """Teachers of all parties; of resolved settings."""
        return sum(count for _, count in self._teams)

    @property
    def wanted_pricings(self) -> frozenset[Pricing]:
        """Ways to charge that may be chosen from."""
        if self.pricing == "auto":
            return PRICINGS
        return frozenset({self.pricing})  # type: ignore[arg-type]  # checked by `check`

    def _with_mechanism(self, known: Defaults, *, classes: int) -> RunSettings:
        """Fill in the parameters that the mechanism has."""
        votes = self.votes
        is_known_size = (self.parties, self.teachers, votes) == (
            known.parties,
            known.teachers,
            known.parties * (known.teachers or 0),
        )
        usual = dict(self._spec.usual(Size(votes, self._most_unit_votes, self.delta)))
        if self.noise == "parties":
            usual |= self._usual_at_parties(usual, classes=classes)
            if is_known_size:
                usual |= known.at_parties.get(self.mechanism, {})
        elif is_known_size:
            usual |= known.parameters.get(self.mechanism, {})
        needed = self._spec.parameters
        chosen: dict[str, Any] = {name: _first(getattr(self, name), usual[name]) for name in needed}
        return replace(self, **chosen)

    def _usual_at_parties(self, usual: dict[str, float], *, classes: int) -> dict[str, float]:
        """Return noise that is wide enough to be shared, and a threshold for the biased check."""
        least = float(math.ceil(math.sqrt(self._shares)))
        found = {"sigma2": max(usual["sigma2"], least)}
        # Rows of both kinds cost alike here.
        found["sigma1"] = _first(self.sigma1, self.sigma2, found["sigma2"])
        if not self._spec.may_refuse:
            return found
        noise = DistributedNoise(
            found["sigma1"], self.parties or 0, self.colluders or 0, self._dropouts
        )
        # What a student expects is taken off the rows.
        votes = 0 if self._spec.learns else self.votes
        threshold = usual_vote_threshold(votes=votes, classes=classes, noise=noise)
        found["vote_threshold"] = float(threshold)
        return found

    @property
    def _most_unit_votes(self) -> int:
        if self.unit == "party":
            return max(weight * count for weight, count in self._teams)
        return max(self.weights or (1,))

    def _with_queries(self, known: Defaults, *, pool: int, classes: int) -> RunSettings:
        if self.queries is not None and self.queries > pool:
            raise InvalidSettingError(
                f"--queries must be at most the pool's {pool} distinct inputs", self.queries
            )
        if self.votes > MAX_TOTAL_VOTES:
            raise InvalidSettingError(
                f"--weights and --teachers must come to at most {MAX_TOTAL_VOTES} votes", self.votes
            )
        preview, most = self._preview(classes), min(known.queries, pool)
        queries = self.queries or self._affordable(most, classes, preview)
        caps = self._caps(queries, preview)
        if preview is not None and self._priced(self._draft(classes, caps)).pricing != "joint":
            # A cap on refusals makes the joint price smaller and no other one.
            queries = self.queries or self._affordable(most, classes, None)
            caps = self._caps(queries, None)
        return replace(
            self,
            queries=queries,
            max_answers=caps.answers,
            max_refusals=caps.refusals,
            batch_size=min(self.batch_size or self._usual_batch(queries), queries),
        )

    def _usual_batch(self, queries: int) -> int:
        """Ask all at once, unless the student is to learn in between."""
        return -(-queries // LEARNING_BATCHES) if self._spec.learns else queries

    def _preview(self, classes: int) -> Preview | None:
        """Look at simulated votes where a cap on refusals makes a run cheaper."""
        joint = "joint" in self._prices and self.valid_votes
        if not joint or "joint" not in self.wanted_pricings or self.max_refusals is not None:
            return None
        return preview_confident(
            simulated_votes(votes=self.votes, classes=classes),
            vote_threshold=_first(self.vote_threshold),
            sigma1=_first(self.sigma1),
            sigma2=_first(self.sigma2),
        )

    def _caps(self, queries: int, preview: Preview | None) -> Outcomes:
        """Return the caps of a run of so many queries."""
        answers = min(self.max_answers or queries, queries)
        if not self._spec.may_refuse:
            return Outcomes(0, answers)
        usual = queries if preview is None else preview.refusals(queries)
        refusals = min(self.max_refusals or usual, queries)
        # The last ask ends the run by an answer or a refusal, not by both.
        return Outcomes(refusals, answers, min(queries, answers + refusals - 1))

    def _draft(self, classes: int, caps: Outcomes) -> RunTerms:
        """Return terms whose pool, task and pricing are still open."""
        unpriced = self._prices[0]
        orders = [2.0] * (self.parties or 0) if unpriced == "renyi" else []
        try:
            return RunTerms.from_record(
                {
                    "name": "draft",
                    "pool_digest": bytes(32),
                    "task_digest": NO_TASK,
                    "classes": classes,
                    "weights": [[list(team)] for team in self._teams],
                    "mechanism": self.mechanism,
                    "vote_threshold": self.vote_threshold,
                    "sigma1": self.sigma1,
                    "sigma2": self.sigma2,
                    "confidence": self.confidence,
                    "test_delta": self.test_delta,
                    "noise_place": self.noise,
                    "unit": self.unit,
                    "pricing": unpriced,
                    "orders": orders,
                    "max_asks": caps.asks,
                    "max_answers": caps.answers,
                    "max_refusals": caps.refusals,
                    "budgets": list(self.party_epsilons or ()),
                    "delta": self.delta,
                    "colluders": self.colluders,
                    "dropouts": self._dropouts if self.noise == "parties" else None,
                }
            )
        except InvalidTermsError as error:
            cause = error.__cause__
            raise InvalidSettingError(
                f"the settings must fit together: {getattr(cause, 'must', error.must)}", "others"
            ) from error

    def _priced(self, draft: RunTerms) -> RunTerms:
        return priced(draft, votes_are_valid=self.valid_votes, wanted=self.wanted_pricings)

    def _affordable(self, most: int, classes: int, preview: Preview | None) -> int:
        """Return how many queries the budgets afford at the worst, at most `most`."""
        if not self._spec.is_private:
            return most

        def terms_of(queries: int) -> RunTerms:
            return self._draft(classes, self._caps(queries, preview))

        found = affordable_queries(
            terms_of, most=most, votes_are_valid=self.valid_votes, wanted=self.wanted_pricings
        )
        if found:
            return found
        requested, budget = tightest_cost(
            terms_of(1), votes_are_valid=self.valid_votes, wanted=self.wanted_pricings
        )
        noise = _first(self.sigma2, self.sigma1)
        raise BudgetExhaustedError(
            requested=requested,
            budget=budget,
            advice=f"{self.votes} votes a query and noise of {noise:g} votes leave nothing to ask; "
            "take more teachers, more noise or a larger budget",
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
                "teachers": self.teachers or (self.party_teachers and list(self.party_teachers)),
                "weights": self.weights and list(self.weights),
                "partition": self.partition,
                "sum": self.form,
                "suite": self.suite,
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
                "confidence": self.confidence,
                "test_delta": self.test_delta,
                "noise": self.noise,
                "colluders": self.colluders,
                "max_answers": self.max_answers,
                "max_refusals": self.max_refusals,
            },
            "budget": {
                "epsilon": self.epsilon,
                "party_epsilons": self.party_epsilons and list(self.party_epsilons),
                "delta": self.delta,
                "unit": self.unit,
                "pricing": self.pricing,
                "valid_votes": self.valid_votes,
            },
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
