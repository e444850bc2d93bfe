"""The public edition of a run: each field that anybody may see, by name, and no other.

A field is public where the stated epsilon covers it, or where it was fixed before the run without a
look at records. A field that stands in no list here is left out; a test holds the lists against the
fields of a run, so that a new field must be put into one of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pate_fed.errors import RunDirectoryError
from pate_fed.report.publication_words import has_own_data
from pate_fed.report.run_directory import RunRecord


def _under(prefix: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{prefix}.{name}" for name in names)


PUBLIC: Final = frozenset({
    # Released labels and "no answer"s, or what follows from them.
    *_under("metrics.queries", "asked", "answered", "refused", "not_asked", "void", "reinforced"),
    *_under("metrics.queries", "from_store"),
    *_under("metrics.student", "kind", "reason"),
    *_under("privacy.ledger", "batch", "state", "asked", "answered", "charged"),
    "privacy.charged",
    # Counts with noise, under an epsilon of their own.
    *_under("metrics.evaluation", "patients", "accuracy", "accuracy_interval"),
    *_under("metrics.evaluation.class.*", "share", "right", "interval"),
    *_under("metrics.evaluation.certainty.*", "share", "right", "interval"),
    *_under("privacy.evaluation", "epsilon", "delta", "sigma", "unit_patients", "view", "method"),
    *_under("metrics.evaluation.groups.*.*", "share", "right", "interval"),
    *_under("privacy.evaluation", "neighboring_definition", "trust"),
    *_under("privacy.evaluation.with_labels", "epsilon", "delta", "method"),
    # Fixed before the run.
    *_under("metrics", "schema_version", "simulated", "parties", "teachers", "batches"),
    *_under("privacy", "schema_version", "simulated", "delta", "dp_flavor", "privacy_unit"),
    *_under("privacy", "unit_votes", "neighboring_definition", "sum", "guarantee", "trust_model"),
    *_under("privacy", "threat_model", "post_processing", "unprotected"),
    *_under("privacy.outputs", "output", "seen_by", "bounded_by"),
    *_under("privacy.mechanism", "name", "vote_threshold", "sigma1", "sigma2", "shares"),
    *_under("privacy.mechanism", "max_asks", "max_answers", "confidence"),
    *_under("privacy.mechanism", "test_delta", "unit_votes", "gamma", "constant"),
    *_under("privacy.noise", "place", "source", "delta_slack"),
    *_under("privacy.budget", "epsilon", "delta", "order_of_rounds", "kept_for_tests"),
    *_under("privacy.views.public.formal", "epsilon", "method", "holds_for", "not_covered"),
    *_under("privacy.views.public.removal", "epsilon", "method", "privacy_unit"),
    "privacy.views.public.removal.neighboring_definition",
    *_under("privacy.views.coordinator.formal", "epsilon", "method", "holds_for"),
    *_under("privacy.runs", "run", "epsilon", "method", "delta"),
    *_under("privacy.parties", "party", "teachers", "votes", "unit_votes", "budget", "epsilon"),
    "privacy.parties.method",
    *_under("manifest", "schema_version", "edition", "begun_on", "pate_fed", "suite"),
    *_under("manifest", "run_id", "transcript_head"),
    *_under("run", "purpose", "source.label", "source.classes"),
    *_under("run.federation", "parties", "sum", "suite"),
    *_under("run.queries", "count", "select", "batch_size"),
    *_under("run.mechanism", "name", "vote_threshold", "sigma1", "sigma2", "confidence"),
    *_under("run.mechanism", "test_delta", "noise", "colluders", "max_answers"),
    *_under("run.budget", "epsilon", "delta", "unit"),
    *_under("run.models", "student", "prevalence"),
    *_under("run.evaluation", "patients", "epsilon", "by"),
})  # fmt: skip
"""Fields that every public edition has; a "*" stands for any name, and lists have no step."""

PUBLIC_WITH_POOL: Final = frozenset({
    *_under("metrics.accuracy", "student", "labels"),
    *_under("metrics.scores.student", "records", "accuracy", "accuracy_interval", "majority"),
    *_under("metrics.scores.student", "balanced_accuracy", "auc", "calibration_error"),
    *_under("metrics.scores.student", "decided_classes"),
    *_under("metrics.scores.student.per_class.*", "records", "recall", "decided", "precision"),
    *_under("metrics.per_class.*", "answered", "refused"),
    *_under("metrics.evaluation.no_answer.*.*", "answered", "refused"),
    "metrics.queries.pool",
    "manifest.pool_sha256",
    "run.data",
})  # fmt: skip
"""Fields that follow from released labels and from public inputs: not where those are patients."""

PRIVATE: Final = frozenset({
    # Accuracies of models of private records, without noise; the votes; counts of records.
    *_under("metrics.accuracy", "teacher_mean", "best_single_party", "pooled"),
    *_under("metrics.scores.teacher_mean", "accuracy", "balanced_accuracy", "auc"),
    *_under("metrics.scores.best_single_party", "accuracy", "balanced_accuracy", "auc"),
    *_under("metrics.scores.pooled", "accuracy", "balanced_accuracy", "auc"),
    *_under("privacy.per_instance", "epsilon", "order", "method", "releasable"),
    "metrics.data.**",
    "metrics.scores.student.by_hospital.**",
    *_under("manifest", "partition.**", "split.**"),
    # Times and sizes of messages, and texts that name hospitals, runs or a machine's files.
    *_under("metrics", "exchanges.**", "seconds.**", "bytes.**", "warnings", "earlier_runs.**"),
    *_under("manifest", "python", "versions.**", "seed", "heads_compared", "not_heard"),
    "manifest.federation",
    "manifest.earlier_setups.**",
    *_under("run.source", "file", "patient_id", "hospital", "ignored", "positive", "separator"),
    "run.source.decimal",
    *_under("run.federation", "teachers", "weights", "partition", "patients", "engine"),
    *_under("run", "seed", "budget.party_epsilons", "earlier.**"),
    *_under("run.models", "teacher", "device", "class_balance"),
})  # fmt: skip
"""Fields that no public edition has."""

_WHOLE: Final = (
    "metrics.data",
    "metrics.scores.student",
    "metrics.scores.teacher_mean",
    "metrics.scores.best_single_party",
    "metrics.scores.pooled",
    "privacy.per_instance",
)
"""Tables that are null in an edition that has no field of theirs."""


def is_public(run: RunRecord) -> bool:
    """Tell whether a record is of a public edition."""
    return bool(run.manifest.get("edition") == "public")


def public_record(run: RunRecord, *, agreed: Collection[str] = ()) -> RunRecord:
    """Return the content of a run's public edition.

    Args:
        run: The run.
        agreed: Hospitals that agreed to be named; the others get numbers.

    Raises:
        RunDirectoryError: the run protects nobody, or a seed makes its noise predictable; or
            `agreed` names a hospital that took no part.
    """
    if why := no_public_edition(run):
        raise RunDirectoryError("this run must have a public edition", f"none: {why}")
    named = _named(run, agreed)
    allowed = PUBLIC if has_own_data(run) else PUBLIC | PUBLIC_WITH_POOL
    metrics = _kept(run.metrics, ("metrics",), allowed) or {}
    privacy = _kept(run.privacy, ("privacy",), allowed) or {}
    for party in privacy["parties"]:
        party["party"] = named[str(party["party"])]
    for number, used in enumerate(privacy["runs"], start=1):
        used["run"] = f"run {number}"
    manifest = _kept({**run.manifest, "edition": "public"}, ("manifest",), allowed)
    return replace(
        run,
        settings=_without_nothing(_kept(run.settings, ("run",), allowed)),
        manifest=_without_nothing(manifest),
        metrics=metrics,
        privacy=privacy,
        labels=() if has_own_data(run) else run.labels,
        digests={},
        sent=(),
    )


def leaves(table: Mapping[str, Any], file: str) -> Iterator[str]:
    """Yield the path of each field of a file, as the lists of this module name it."""
    for name, value in table.items():
        rows = value if isinstance(value, list) else [value]
        if not any(isinstance(row, Mapping) for row in rows):
            yield f"{file}.{name}"
        for row in rows:
            if isinstance(row, Mapping):
                yield from leaves(row, f"{file}.{name}")


def is_listed(path: str, rules: Collection[str]) -> bool:
    """Tell whether a list names a field."""
    return any(_fits(path.split("."), rule.split(".")) for rule in rules)


def no_public_edition(run: RunRecord) -> str:
    """Say why a run can have no public edition; "" where it can."""
    if run.privacy["views"]["public"]["formal"]["epsilon"] is None:
        return "nothing bounds what its labels reveal"
    if run.settings.get("seed") is not None or run.manifest.get("seed") is not None:
        return "its noise came from a seed, so anybody can compute it (run without --seed)"
    return ""


def _named(run: RunRecord, agreed: Collection[str]) -> dict[str, str]:
    names = [str(party["party"]) for party in run.privacy["parties"]]
    strangers = sorted(set(agreed) - set(names))
    if strangers:
        raise RunDirectoryError("--agreed must name hospitals of this run", repr(strangers[0]))
    return {
        name: name if name in agreed else f"Hospital {number}"
        for number, name in enumerate(names, start=1)
    }


def _kept(
    table: Mapping[str, Any], place: tuple[str, ...], allowed: Collection[str]
) -> dict[str, Any] | None:
    """Copy allowed fields. Other fields with a name in the lists are empty; the rest are gone."""
    kept: dict[str, Any] = {}
    for name, value in table.items():
        here = (*place, name)
        is_named, has_some = _is_named(here), any(_leads_to(here, rule) for rule in allowed)
        if isinstance(value, Mapping):
            if is_named or has_some:
                kept[name] = _kept(value, here, allowed)
        elif isinstance(value, list) and any(isinstance(row, Mapping) for row in value):
            if is_named or has_some:
                rows = [row for row in value if has_some and isinstance(row, Mapping)]
                kept[name] = [_kept(row, here, allowed) for row in rows]
        elif any(_fits(here, rule.split(".")) for rule in allowed):  # a name may have dots
            kept[name] = value
        elif is_named:
            kept[name] = [] if isinstance(value, list) else None
    is_empty = not any(_leads_to(place, rule) for rule in allowed)
    return None if is_empty and ".".join(place) in _WHOLE else kept


def _is_named(here: tuple[str, ...]) -> bool:
    """Tell whether a list spells the last step of a path, so that the name itself tells nothing."""
    return any(
        _leads_to(here, rule) and rule.split(".")[len(here) - 1] == here[-1]
        for rule in PUBLIC | PUBLIC_WITH_POOL | PRIVATE
    )


def _leads_to(here: Sequence[str], rule: str) -> bool:
    """Tell whether a path is a rule's, or the beginning of it."""
    steps = rule.split(".")
    return len(here) <= len(steps) and all(
        step in ("*", one) for one, step in zip(here, steps, strict=False)
    )


def _fits(path: Sequence[str], steps: Sequence[str]) -> bool:
    if steps[-1] == "**":
        path, steps = path[: len(steps) - 1], steps[:-1]
    return len(path) == len(steps) and all(
        step in ("*", one) for one, step in zip(path, steps, strict=True)
    )


def _without_nothing(table: Mapping[str, Any] | None) -> dict[str, Any]:
    """Leave out what is empty; only for tables that may have any fields."""
    found = {
        name: _without_nothing(value) if isinstance(value, Mapping) else value
        for name, value in (table or {}).items()
    }
    return {name: value for name, value in found.items() if value not in (None, {}, [])}
