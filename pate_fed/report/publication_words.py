"""Which files of a run may be published, in words, for the person who answers for it."""

from __future__ import annotations

from typing import NamedTuple

from pate_fed.report.run_directory import FinishedRun
from pate_fed.run_folder import (
    ANNEXES,
    AUDIT,
    EARLIER,
    IMAGES,
    LABELS,
    MANIFEST,
    METRICS,
    PRIVACY,
    REPORT,
    SEAL,
    SENT,
    SETTINGS,
    STUDENT,
    TRANSCRIPT,
)

_OWN_DATA = ("csv", "images")


class FileWords(NamedTuple):
    """A file of a run, its content, and whether it may be published."""

    name: str
    content: str
    may_be_published: str


def has_own_data(run: FinishedRun) -> bool:
    """Tell whether a simulation took its records from a file of the user."""
    data = run.settings.data  # a public edition names it only where the records are public
    return data in _OWN_DATA or (data is None and run.manifest.is_public and run.is_simulated)


def files(run: FinishedRun) -> list[FileWords]:
    """List the files of a run and its pages; the student's as one."""
    found = {name.partition("/")[0] for name in run.digests}
    labels, student = _of_labels(run)
    part = _NO_PART if labels.startswith("no") else _PART
    listed = (
        FileWords(LABELS, "the released labels and “no answer”s", labels),
        FileWords(IMAGES, "small copies of the public images with labels", labels),
        FileWords(STUDENT, "the model and its card", student),
        FileWords(PRIVACY, "the cost in each view", part),
        FileWords(METRICS, "results, times, data traffic", part),
        FileWords(MANIFEST, "versions, fingerprints, signers", part),
        FileWords(SETTINGS, "the settings", part),
        FileWords(TRANSCRIPT, "fingerprints of all messages, signatures", _AUDITORS),
        FileWords(EARLIER, "the same of lost setups", _AUDITORS),
        FileWords(SENT, "size and fingerprint of each packet of a hospital", _TRAFFIC),
        FileWords(SEAL, "fingerprints of the files, signed by the coordinator", _CHECKS),
        FileWords(AUDIT, "an attack on made-up votes", "yes, but it is not in the public edition"),
        FileWords(ANNEXES, "questions of data-protection law, with answers from the run", "no"),
        FileWords(REPORT, "this report", part),
    )
    return [
        one._replace(name=f"{STUDENT}/") if one.name == STUDENT else one
        for one in listed
        if one.name in (*found, REPORT, ANNEXES)
    ]


_PART = "no: the public edition has the part that may be published"
_NO_PART = "no: this run has no public edition"
_AUDITORS = "no: only auditors get it; it holds hospitals' keys and signatures, no message contents"
_TRAFFIC = "no: only auditors get it; it tells who sent how much, no message contents"
_CHECKS = "no: only auditors get it; they check the other files with it"


def _of_labels(run: FinishedRun) -> tuple[str, str]:
    """Say it of labels and of the student, which learned from them."""
    if run.privacy.views.public.epsilon is None:
        refused = "no: nothing bounds how much it reveals"
        return refused, refused
    if run.settings.seed is not None:
        refused = "no: the seed makes its noise predictable"
        return refused, refused
    if not run.is_simulated:
        said = "yes, if everybody may see the public inputs"
        return said, said
    said = "yes, if everybody may see the public pool"
    if has_own_data(run):
        said += ": its patients are from your file"
    return said, f"{said}; the accuracy on the card only if everybody may see the test set, too"
