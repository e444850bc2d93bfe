"""Which files of a run may be published, in words, for the person who answers for it."""

from __future__ import annotations

from typing import NamedTuple

from pate_fed import wording
from pate_fed.report.run_directory import (
    EARLIER,
    LABELS,
    MANIFEST,
    METRICS,
    PRIVACY,
    REPORT,
    SEAL,
    SETTINGS,
    STUDENT,
    TRANSCRIPT,
    RunRecord,
)

_OWN_DATA = ("csv", "images")


class FileWords(NamedTuple):
    """A file of a run, its content, and whether it may be published."""

    name: str
    content: str
    may_be_published: str


def has_own_data(run: RunRecord) -> bool:
    """Tell whether a simulation took its records from a file of the user."""
    return run.settings.get("data") in _OWN_DATA


def files(run: RunRecord) -> list[FileWords]:
    """List the files of a run and its report; the student's as one."""
    found = {name.partition("/")[0] for name in run.digests}
    labels, student = _of_labels(run)
    metrics, manifest, report = _of_measurements(run)
    settings = "no: they hold the seed" if _is_seeded(run) else "yes, if the settings may be"
    listed = (
        FileWords(LABELS, "the released labels and “no answer”s", labels),
        FileWords(STUDENT, "the model and its card", student),
        FileWords(PRIVACY, "the cost in each view", _of_costs(run)),
        FileWords(METRICS, "results and effort", metrics),
        FileWords(MANIFEST, "versions, fingerprints, signers", manifest),
        FileWords(SETTINGS, "the settings", settings),
        FileWords(TRANSCRIPT, "fingerprints of all messages, signatures", "yes"),
        FileWords(EARLIER, "the same of lost setups", "yes"),
        FileWords(SEAL, "signed fingerprints of the files", "yes"),
        FileWords(REPORT, "this page", report),
    )
    return [
        one._replace(name=f"{STUDENT}/") if one.name == STUDENT else one
        for one in listed
        if one.name in (*found, REPORT)
    ]


def _is_simulated(run: RunRecord) -> bool:
    return wording.is_simulated(run.metrics, run.privacy)


def _is_seeded(run: RunRecord) -> bool:
    return run.settings.get("seed") is not None


def _of_labels(run: RunRecord) -> tuple[str, str]:
    """Say it of labels and of the student, which learned from them."""
    if run.privacy["views"]["public"]["formal"]["epsilon"] is None:
        refused = "no: nothing bounds how much it reveals"
        return refused, refused
    if _is_seeded(run):
        refused = "no: the seed makes its noise predictable"
        return refused, refused
    if not _is_simulated(run):
        said = "only if the public inputs may be"
        return said, said
    said = "only if the public pool may be"
    if has_own_data(run):
        said += ": its patients are from your file"
    return said, f"{said}; the card's accuracy also needs a public test set"


def _of_costs(run: RunRecord) -> str:
    instance = run.privacy["per_instance"]
    if instance["epsilon"] is not None and not instance["releasable"]:
        return "no: per_instance depends on the votes; without it, yes"
    return "yes" if _is_simulated(run) else "yes; it names the hospitals"


def _of_measurements(run: RunRecord) -> tuple[str, str, str]:
    """Say it of metrics, manifest and report."""
    if not _is_simulated(run):
        return "yes", "yes", "yes; it names the hospitals"
    return (
        "no: accuracies from private records, without noise",
        "no: record counts of teachers (simulations only)",
        "no: it shows the numbers of metrics.json, manifest.json and privacy.json",
    )
