"""The request of a labeling run, written down once: the same after every restart.

Everything that was left open is filled in before: mechanism, caps, price, members, queries. So a
request's result cannot change with the version of a default, or with members who join meanwhile.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from coordinator.errors import RunRequestError
from coordinator.federation.enrollment import EnrolledParty
from coordinator.federation.home import FederationHome
from pate_fed.accounting.ranges import RANGES
from pate_fed.data import DataSource
from pate_fed.data.preprocessing import exactly
from pate_fed.data.task import LearningTask
from pate_fed.errors import InvalidSettingError, InvalidTaskError
from pate_fed.evaluation_task import EvaluationTask, is_evaluation
from pate_fed.inputs import DatasetKind
from pate_fed.mechanisms import DEPLOYED_MECHANISMS
from pate_fed.nodes import checked, record_of
from pate_fed.planning import RunSettings, resolve_for, terms_of
from pate_fed.planning.evaluation_settings import EvaluationSettings, EvaluationShape
from pate_fed.planning.fine_noise import require_fine_noise
from pate_fed.prices import run_price
from pate_fed.regular_files import read_regular
from pate_fed.terms import RUN_NAME, RunTerms, is_run_name
from protocols.forms import DEPLOYED_FORMS, FORMS

SCHEMA_VERSION = 1
MOST_PATIENCE_S = 365 * 24 * 3600
"""A year: nobody waits longer for a hospital."""

_NOT_DEPLOYED = (
    "data",
    "engine",
    "seed",
    "partition",
    "teachers",
    "records_per_teacher",
)
"""Settings that a deployment has not: hospitals keep them, or nobody."""


@dataclass(frozen=True, slots=True)
class RequestedParty:
    """A member as it was when the run was asked for.

    Attributes:
        fingerprint: Of its identity, 32 bytes.
    """

    name: str
    fingerprint: bytes
    teachers: int


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """The further facts of a run that asks how good the student of another one is.

    Attributes:
        columns: Counts in each row.
        sigma: Standard deviation of the noise that their price buys, in patients.
    """

    run: str
    columns: int
    settings: EvaluationSettings
    sigma: float


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A run as it was asked for, with everything filled in; pool and task are digests, 32 bytes.

    Attributes:
        source: Name of the file that the public queries came from.
        parties: Its members, in the order that the terms are drafted in. In an evaluation their
            "teachers" are places for held-out patients.
        queries: Positions in the pool, in the order that they are asked.
        patience_s: How long it waits for hospitals that are silent, or have to approve it.
        evaluation: What is asked instead of labels; None for labels.
        answered: Queries that were answered already when it was asked: they come from the store
            and cost nothing, so caps and noise are of the others.
        epsilon: Its cost, `run_price` of its terms: said wherever the run's epsilon is.
    """

    name: str
    pool: bytes
    task: bytes
    source: str
    kind: DatasetKind
    label: str
    class_names: tuple[str, ...]
    parties: tuple[RequestedParty, ...]
    queries: tuple[int, ...]
    patience_s: float = field(metadata={"ge": 0, "le": MOST_PATIENCE_S})
    settings: RunSettings
    evaluation: EvaluationRequest | None = None
    answered: int = field(default=0, metadata=RANGES["queries"].metadata | {"ge": 0})
    epsilon: float = field(default=math.inf, metadata={"ge": 0})

    @classmethod
    def make(
        cls,
        name: str,
        task: LearningTask,
        *,
        members: list[EnrolledParty],
        settings: RunSettings,
        source: str,
        select: str,
        patience_s: float,
        seed: int,
        answered: Callable[[tuple[int, ...]], int],
    ) -> RunRequest:
        """Fill a request in; `settings` has None for all that is open.

        Queries are selected by one of `SELECTION_METHODS`, seeded, or "all". `answered` tells how
        many of some positions in the pool are answered already.

        Raises:
            RunRequestError: the name cannot be, or a member's number of votes is unknown.
            TooFewPartiesError: fewer members than a secure sum needs.
            InvalidSettingError: settings that contradict each other, or the pool.
            BudgetExhaustedError: the run does not fit its budget, or hospitals' new budgets for
                life of the same epsilon; nothing was asked.
        """
        if not is_run_name(name):
            raise RunRequestError(f"a run's name must be {RUN_NAME}", repr(name))
        if settings.rule.mechanism not in DEPLOYED_MECHANISMS:
            raise RunRequestError(
                f"the mechanism must be {' or '.join(DEPLOYED_MECHANISMS)}", settings.rule.mechanism
            )
        if settings.caps.max_answers is not None:  # hospitals would vote on what nobody looks at
            raise RunRequestError("a run must ask all its queries")
        data_set = task.data_set
        missing = [one.name for one in members if not one.votes_on(data_set)]
        if missing:
            raise RunRequestError(
                "every member's node must have said how many votes it has, as it does once it "
                f"runs with {f'a data set {data_set!r}' if data_set else 'a table'}; suspend a "
                "hospital to leave it out",
                f"nothing from {', '.join(missing)}",
            )
        if settings.form not in DEPLOYED_FORMS:
            raise RunRequestError(
                f"the secure sum of a deployed run must be {' or '.join(DEPLOYED_FORMS)}",
                settings.form,
            )
        settings.check(FORMS)
        pool = task.pool
        distinct = pool.distinct
        parties = tuple(
            RequestedParty(one.name, one.identity.fingerprint, one.votes_on(data_set))
            for one in members
        )

        def resolved_for(settings: RunSettings) -> RunSettings:
            teachers = tuple(one.teachers for one in parties)
            return resolve_for(
                settings, teachers, pool=len(distinct), classes=task.classes, sums=FORMS
            )

        resolved = resolved_for(settings)
        count = resolved.caps.max_asks or 0
        calibrates = settings.coverage is not None
        if select == "all" and calibrates and count < len(distinct):
            raise InvalidSettingError(
                "--coverage needs queries drawn at random, or all of them: name a --select",
                f"all, and {count} of {len(distinct)} rows",
            )
        if select == "all":
            chosen: tuple[int, ...] = distinct[:count]
        else:
            from pate_fed.students import choose_queries  # noqa: PLC0415 - takes seconds

            rng = np.random.default_rng(seed)
            chosen = choose_queries(
                pool, distinct, count, method=select, rng=rng, calibrates=calibrates
            )
        request = cls(
            name=name,
            pool=pool.digest,
            task=task.digest,
            source=source,
            kind=task.kind,
            label=task.label,
            class_names=task.class_names,
            parties=parties,
            queries=chosen,
            patience_s=patience_s,
            settings=resolved,
        )
        request = replace(request, answered=answered(request.queries))
        if not request.new_queries:
            return request.priced
        if request.new_queries < count:
            fewer = resolved_for(
                replace(settings, caps=replace(settings.caps, max_asks=request.new_queries))
            )
            request = replace(request, settings=fewer)
        require_fine_noise(request.terms)
        return request.priced

    @property
    def new_queries(self) -> int:
        """How many of its queries hospitals are asked at most."""
        return len(self.queries) - self.answered

    @property
    def free_words(self) -> str:
        """How many of its queries cost nothing, in words; empty if there are none."""
        if not self.answered:
            return ""
        return f"{self.answered} of {len(self.queries)} rows are answered already: free"

    @property
    def priced(self) -> RunRequest:
        """The same request with the cost of its terms, or none where nothing is asked."""
        return replace(self, epsilon=run_price(self.terms).epsilon if self.new_queries else 0.0)

    @property
    def terms(self) -> RunTerms:
        """Terms of the run, its parties in the order of `parties`."""
        if self.evaluation is not None:
            asked = EvaluationShape(
                name=self.name,
                pool_digest=self.pool,
                task_digest=self.task,
                rows=len(self.queries),
                columns=self.evaluation.columns,
                parties=len(self.parties),
            ).terms(
                self.evaluation.settings,
                self.evaluation.sigma,
                form=FORMS[self.settings.form],
            )
            return replace(asked, purpose=self.settings.purpose)
        return terms_of(
            self.settings,
            name=self.name,
            classes=len(self.class_names),
            pool_digest=self.pool,
            task_digest=self.task,
            sums=FORMS,
        )

    def terms_by(self, seats: Iterable[bytes]) -> RunTerms:
        """Return the terms with the parties of these fingerprints, all of them, in this order."""
        known = [party.fingerprint for party in self.parties]
        return self.terms.seated([known.index(fingerprint) for fingerprint in seats])

    def to_json(self) -> str:
        """Return its one form."""
        record = record_of(self, leave_out={"settings": {*_NOT_DEPLOYED}})
        record["schema_version"] = SCHEMA_VERSION
        return json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> RunRequest:
        """Read the text of `to_json`; anything else is a `RunRequestError`."""
        try:
            record: dict[str, Any] = json.loads(text)
            if record.pop("schema_version") != SCHEMA_VERSION:
                raise RunRequestError(f"a request must be of version {SCHEMA_VERSION}")
            source, label = (exactly(record[name], str) for name in ("source", "label"))
            data = source_of(source, label, kind=exactly(record["kind"], str))
            record["settings"]["data"] = record_of(data)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise RunRequestError("a request must be as it was written") from error
        made = checked(cls, record, where="a request: ", fault=RunRequestError)
        try:
            _ = made.terms
        except (ValueError, LookupError, TypeError) as error:
            raise RunRequestError("a request must agree with itself") from error
        return made


def read_task(home: FederationHome, request: RunRequest) -> LearningTask | EvaluationTask:
    """Read the task of a run as it was published; any other is a `RunRequestError`."""
    try:
        content = read_regular(home.path("pools", request.pool.hex()))
        kind = EvaluationTask if is_evaluation(content) else LearningTask
        task: LearningTask | EvaluationTask = kind.from_bytes(content)
    except OSError as error:
        raise RunRequestError("the run's pool must be readable", error.strerror) from error
    except InvalidTaskError as error:
        raise RunRequestError("the run's task must be as it was published", "no task") from error
    if (task.pool.digest, task.digest) != (request.pool, request.task):
        raise RunRequestError("the run's task must be as it was published")
    return task


def read_learning_task(home: FederationHome, request: RunRequest) -> LearningTask:
    """Read the task of a run that must be one that asks for labels; see `read_task`."""
    task = read_task(home, request)
    if not isinstance(task, LearningTask):
        raise RunRequestError("the run must be one that asks for labels")
    return task


def source_of(file: str, label: str, *, kind: str) -> DataSource:
    """Return the public queries' source, as settings name it."""
    if kind == "image":
        return DataSource("images", data_file=Path(file))
    return DataSource("csv", data_file=Path(file), label_column=label)
