"""The public edition of a run: each field that anybody may see, and no other.

Each field of the record says whether it is public (`pate_fed.record`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from pate_fed.errors import RunDirectoryError
from pate_fed.report.publication_words import has_own_data
from pate_fed.report.run_directory import FinishedRun


def public_record(run: FinishedRun, *, agreed: Collection[str] = ()) -> FinishedRun:
    """Return the content of a run's public edition.

    The hospitals in `agreed` agreed to be named; the others get numbers.

    Raises:
        RunDirectoryError: the run protects nobody, or a seed makes its noise predictable; or
            `agreed` names a hospital that took no part.
    """
    if why := no_public_edition(run):
        raise RunDirectoryError("this run must have a public edition", f"none: {why}")
    named = _named(run, agreed)
    with_pool = not has_own_data(run)
    privacy = run.privacy.public_edition(with_pool=with_pool)
    manifest = run.manifest.public_edition(with_pool=with_pool)
    return replace(
        run,
        settings=run.settings.public_edition(with_pool=with_pool),
        manifest=manifest.changed(edition="public"),
        metrics=run.metrics.public_edition(with_pool=with_pool),
        privacy=privacy.changed(
            parties=tuple(one.changed(party=named[one.party]) for one in privacy.parties),
            runs=tuple(
                one.changed(run=f"run {number}") for number, one in enumerate(privacy.runs, start=1)
            ),
        ),
        labels=run.labels if with_pool else (),
        images=run.images if with_pool else b"",
        digests={},
        sent=(),
    )


def no_public_edition(run: FinishedRun) -> str:
    """Say why a run can have no public edition; "" where it can."""
    if run.privacy.views.public.epsilon is None:
        return "nothing bounds what its labels reveal"
    if run.settings.seed is not None or run.manifest.seed is not None:
        return "its noise came from a seed, so anybody can compute it (run without --seed)"
    return ""


def _named(run: FinishedRun, agreed: Collection[str]) -> dict[str, str]:
    names = [party.party for party in run.privacy.parties]
    strangers = sorted(set(agreed) - set(names))
    if strangers:
        raise RunDirectoryError("--agreed must name hospitals of this run", repr(strangers[0]))
    return {
        name: name if name in agreed else f"Hospital {number}"
        for number, name in enumerate(names, start=1)
    }
