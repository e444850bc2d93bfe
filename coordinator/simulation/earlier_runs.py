"""A series: a simulation that continues finished ones, with the same hospitals and public inputs.

Each run of such a series has its own mechanism, caps and ledger; all share one budget: see
`docs/explanation/students.md`. Besides the data, a directory holds all that the next run needs:
`run.toml` lists the runs before it, `labels.csv` has the labels of all, and `split`
in `manifest.json` repeats the draws of the first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Final, Self

import numpy as np

from coordinator.database import Answer
from coordinator.runs.labeling import Member
from coordinator.runs.transcripts import check_transcript
from coordinator.simulation.chance import Chance
from pate_fed.accounting.formal_cost import ROUNDING_ROOM
from pate_fed.data import Dataset
from pate_fed.errors import (
    BudgetExhaustedError,
    InvalidDataError,
    InvalidSettingError,
    RunDirectoryError,
)
from pate_fed.mechanisms import DEPLOYED_MECHANISMS
from pate_fed.options import OPTIONS, option_of
from pate_fed.planning import RunSettings, resolve, terms_of
from pate_fed.queries import QueryPool
from pate_fed.record.manifest import PartitionProof
from pate_fed.record.settings import EarlierRun, OwnSettings
from pate_fed.report import FinishedRun, read_run
from pate_fed.report.ended_run import UsedRun
from pate_fed.series import order_of_series, price_of_runs, price_of_series
from pate_fed.terms import RunTerms, is_run_name
from pate_fed.version import __version__
from protocols.forms import FORMS

SAME: Final = tuple(name for name, one in OPTIONS.items() if one.series == "same")
"""Settings that are the same in all runs of the series."""

KEPT: Final = (*SAME, *(name for name, one in OPTIONS.items() if one.series == "kept"))
"""Settings that a later run takes over where the user gives no others."""

_ROUNDED: Final = 1e-9
"""Relative difference of two numbers that are the same."""

_TRAINED_BY: Final = ("numpy", "scikit-learn", "scipy", "torch")
"""Packages whose other versions may deal records or train teachers otherwise."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Before:
    """All that a new run takes from earlier ones, once the data are known.

    Attributes:
        settings: The new run's, unresolved; its budgets are the amounts left by earlier runs.
        terms: Of each earlier run, hospitals in the data's order.
        budgets: Of the whole series, in that order; empty in a first run.
        spent: Cost of the earlier runs for each hospital's units, in that order.
        answers: Of all earlier queries, by position in the pool, in the order asked.
        reinforced: Labels that a student kept, by position in the pool.
    """

    settings: RunSettings
    terms: tuple[RunTerms, ...] = ()
    budgets: tuple[float, ...] = ()
    spent: tuple[float, ...] = ()
    answers: Mapping[int, Answer] = field(default_factory=dict)
    reinforced: Mapping[int, int] = field(default_factory=dict)

    def resolved(self, dataset: Dataset, *, rng: np.random.Generator) -> RunSettings:
        """Fill in all open settings; no query is asked again.

        Raises:
            BudgetExhaustedError: the rest of the budgets does not afford a single query.
            See `resolve`.
        """
        try:
            return resolve(self.settings, dataset, sums=FORMS, rng=rng, asked=len(self.answers))
        except BudgetExhaustedError as error:
            raise self._of_the_series(error) from error

    def used_runs(self, names: tuple[str, ...], members: tuple[Member, ...]) -> list[UsedRun]:
        """Return the earlier runs, whose labels are used, hospitals in the seats' order.

        `names` are the hospitals in the data's order, `members` the same in that of the seats.
        """
        places = [names.index(member.name) for member in members]
        form = FORMS[self.settings.form]
        return [UsedRun(terms.seated(places), form) for terms in self.terms]

    def _of_the_series(self, error: BudgetExhaustedError) -> BudgetExhaustedError:
        """Return an error about the rest of a budget as one about the whole budget."""
        if not self.terms:
            return error
        rests = [abs(rest - error.budget) for rest in self.settings.party_epsilons or ()]
        seat = rests.index(min(rests))
        _, _, advice = error.got.partition(": ")
        said = f"earlier runs cost {self.spent[seat]:.6g} of it"
        return BudgetExhaustedError(
            requested=error.requested + self.spent[seat],
            budget=self.budgets[seat],
            advice=f"{said}; {advice}" if advice else said,
        )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class EarlierRuns:
    """Finished runs, as the directory of the last one tells them.

    Attributes:
        record: That directory's content; None before a first run.
        runs: The runs, the oldest first.
    """

    record: FinishedRun | None = None
    runs: tuple[EarlierRun, ...] = ()

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the directory of a finished run, and check it as `transcript verify` does.

        Raises:
            RunDirectoryError: it cannot be read, or no run can stand on it.
            BrokenTranscriptError: somebody changed its transcript.
            AlteredResultsError: somebody changed a file.
        """
        record = simulation_record(folder)
        check_transcript(folder)
        _require_same_version(record)
        settings = record.settings
        own = {name: getattr(settings, name) for name in OwnSettings.model_fields}
        last = EarlierRun(run=free_name(folder, settings.earlier), **own)
        _require_private(last.mechanism)
        if settings.evaluate != "public":
            raise InvalidSettingError(
                "--after must name a run with --evaluate public: another evaluation of the "
                "patients who were kept back would cost more",
                "private",
            )
        return cls(record, (*settings.earlier, last))

    @property
    def number(self) -> int:
        """Number of the run that follows, from 1."""
        return len(self.runs) + 1

    def chance(self, seed: int | None) -> Chance:
        """Return the randomness of the run that follows."""
        if self.record is None:
            return Chance(seed)
        assert self.record.manifest.split is not None
        root = bytes.fromhex(self.record.manifest.split.seed)
        return Chance(seed, root=root, run_number=self.number)

    def require_same(self, settings: RunSettings) -> None:
        """Refuse settings that would make other hospitals, teachers or neighbors."""
        if self.record is None:
            return
        new, old = settings.as_record(), self.record.settings
        for name in SAME:
            now, then = getattr(new, name), getattr(old, name)
            if now != then:
                raise InvalidSettingError(
                    f"{option_of(name)} must be as in the earlier run: {then or 'not given'}",
                    ",".join(map(str, now)) if isinstance(now, tuple) else now or "none",
                )
        _require_private(settings.rule.mechanism)

    def joined(
        self, settings: RunSettings, pool: QueryPool, class_names: tuple[str, ...]
    ) -> Before:
        """Return what a new run takes over; its budgets are those of the whole series.

        Raises:
            InvalidDataError: pool or classes changed since.
            RunDirectoryError: their cost is not the one that the last of them states.
            BudgetExhaustedError: the earlier runs used a budget up.
        """
        if self.record is None:
            return Before(settings)
        if pool.digest.hex() != self.record.manifest.pool_sha256:
            raise InvalidDataError("the public pool must be that of the earlier run")
        numbers = {name: place for place, name in enumerate(class_names)}
        labels = (*self.record.labels, *self.record.reinforced.items())
        if not {label for _, label in labels if label} <= numbers.keys():
            raise InvalidDataError("classes must be those of the earlier run")
        if settings.teachers is None:
            settings = replace(settings, party_teachers=self._party_teachers())
        terms: tuple[RunTerms, ...] = ()
        for one in self.runs:
            own = _with_rest(_as_run(settings, one), terms)
            terms += (
                terms_of(
                    own.settings,
                    name=one.run,
                    classes=len(class_names),
                    pool_digest=pool.digest,
                    sums=FORMS,
                ),
            )
        before = _with_rest(settings, terms)
        unit = terms[-1].unit
        public = max(price_of_series(terms, seat, unit=unit).epsilon for seat in _seats(terms))
        stated = self.record.privacy.views.public.epsilon
        if stated is None or abs(public - stated) > _ROUNDED * stated:
            raise RunDirectoryError(
                "privacy.json of the earlier run must state the cost that its run.toml has",
                f"{stated} instead of {public:.6g}",
            )
        orders = {order_of_series(terms[0], seat, unit=unit) for seat in _seats(terms)}
        if (fixed := self.record.privacy.budget.order_of_series) not in orders:
            raise RunDirectoryError(
                "privacy.json of the earlier run must state the order that its first run fixed",
                fixed,
            )
        last = self.runs[-1].run
        return replace(
            before,
            answers={
                int(query): Answer(
                    numbers[label] if label else None, self.record.drawn_in.get(query, last), 0
                )
                for query, label in self.record.labels
            },
            reinforced={
                int(query): numbers[label] for query, label in self.record.reinforced.items()
            },
        )

    def _party_teachers(self) -> tuple[int, ...] | None:
        """Return the numbers of teachers that followed from the hospitals' records."""
        known = self.record and self.record.manifest.partition
        if not known:
            return None
        numbers = Counter(one.party for one in known.teachers)
        return tuple(numbers[party] for party in sorted(numbers))

    def require_same_numbers(self, partition: PartitionProof) -> None:
        """Refuse other numbers of records. No file holds a digest that could tell their content."""
        if self.record is None:
            return
        known = self.record.manifest.partition
        now, then = (
            [(one.party, one.teacher, one.units, one.records) for one in proof.teachers]
            for proof in (partition, known or partition)
        )
        if known is None or now != then:
            raise InvalidDataError("the hospitals' records must be those of the earlier run")

    def raised(self, before: Before) -> list[str]:
        """Warn where the budget of the whole series was raised once labels had been seen."""
        earlier = [one.party_epsilons or () for one in self.runs]
        if not any(
            now > then
            for listed in earlier
            for now, then in zip(before.budgets, listed, strict=True)
        ):
            return []
        return [
            f"The budget of the whole series is {max(before.budgets):g} now. It was "
            f"{min(map(max, earlier)):g}, and was raised after labels had been seen: the smaller "
            "one no longer holds."
        ]


def simulation_record(folder: Path, *, what: str = "--after") -> FinishedRun:
    """Read the directory of a simulation, unchecked; `what` names it in a `RunDirectoryError`."""
    record = read_run(folder)
    if record.manifest.is_public or record.manifest.split is None:
        kind = "a public edition" if record.manifest.is_public else "another run"
        raise RunDirectoryError(f"{what} must name the directory of a simulation", kind)
    return record


def free_name(folder: Path, runs: Sequence[EarlierRun]) -> str:
    """Return the name of a run: its directory's, or its number where that cannot be."""
    name = folder.resolve().name
    is_free = is_run_name(name) and name not in {one.run for one in runs}
    return name if is_free else f"run-{len(runs) + 1}"


def _require_same_version(record: FinishedRun) -> None:
    now = {"pate_fed": __version__, **{name: version(name) for name in _TRAINED_BY}}
    then = {**record.manifest.versions, "pate_fed": record.manifest.pate_fed}
    for name, installed in now.items():
        if then.get(name) != installed:
            raise RunDirectoryError(
                f"--after must name a run of {name} {installed}, which trains the same teachers",
                then.get(name),
            )


def _require_private(mechanism: str | None) -> None:
    """Refuse mechanisms for comparison only: no sum of runs holds for their readers."""
    if mechanism not in DEPLOYED_MECHANISMS:
        raise InvalidSettingError(
            "beside --after a mechanism must release labels at a price", mechanism
        )


def _as_run(settings: RunSettings, earlier: EarlierRun) -> RunSettings:
    """Return settings with those that an earlier run had of its own."""
    return settings.changed({name: getattr(earlier, name) for name in OwnSettings.model_fields})


def _seats(terms: Sequence[RunTerms]) -> range:
    return range(len(terms[-1].weights))


def _with_rest(settings: RunSettings, earlier: Sequence[RunTerms]) -> Before:
    """Take the cost of earlier runs off each hospital's budget; something must remain."""
    budgets = settings.party_epsilons or (settings.epsilon,) * (settings.parties or 0)
    if not earlier:
        return Before(settings)
    last = earlier[-1]
    spent = tuple(
        price_of_runs(earlier, seat, unit=last.unit, at_coordinator=last.rule.opens_noisy).epsilon
        for seat in _seats(earlier)
    )
    if len(budgets) != len(spent):
        raise InvalidSettingError(
            f"--party-epsilons must have one entry for each of {len(spent)} hospitals", len(budgets)
        )
    # The sum over the series is rounded up by that factor.
    rest = tuple(whole / ROUNDING_ROOM - cost for whole, cost in zip(budgets, spent, strict=True))
    least = rest.index(min(rest))
    if rest[least] <= 0:
        raise BudgetExhaustedError(
            requested=spent[least],
            budget=budgets[least],
            advice="the earlier runs alone cost that, and --epsilon counts them; raise it",
        )
    return Before(
        replace(settings, party_epsilons=rest), tuple(earlier), budgets=budgets, spent=spent
    )
