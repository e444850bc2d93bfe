"""A student on this hospital's own held-out patients, for its people alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from party.cli.terminal import DEFAULT_SITE, SiteOption
from party.errors import TaskError
from party.owner import open_site
from party.site.tasks import begins_as_evaluation, kept_pools, read_task
from pate_fed.evaluation_task import EvaluationTask
from pate_fed.nodes.command_line import show

if TYPE_CHECKING:
    from party.site.site import Site


def evaluation(
    digest: Annotated[
        str | None,
        typer.Argument(metavar="[DIGEST]", help="First digits of an evaluation's pool."),
    ] = None,
    site: SiteOption = DEFAULT_SITE,
) -> None:
    """Try the student of an evaluation on this hospital's own held-out patients.

    Its own teachers are tried, too. Nothing of it leaves this machine, and it costs nothing.
    """
    from party.site.evaluations import own_scores  # noqa: PLC0415 - keeps --help fast

    opened = open_site(site)
    task = _find(opened, digest or "")
    found, floor = own_scores(opened, task), opened.settings.data.floor
    show(
        {"pool": task.pool.digest.hex(), **found.as_table(floor=floor)},
        (*found.lines(floor=floor), "Nothing of this left this machine."),
    )


def _find(site: Site, digits: str) -> EvaluationTask:
    """Return the kept evaluation that a person means by the first digits of its pool's digest."""
    digits = digits.strip().lower()
    named = (one for one in kept_pools(site) if one.name.startswith(digits))
    found = [one.name for one in named if begins_as_evaluation(one)]
    if len(found) != 1:
        raise TaskError(
            "an evaluation must be one that `pate-party approve` listed: give the first digits of "
            "its pool",
            f"{len(found)} that begin so",
        )
    task = read_task(site, bytes.fromhex(found[0]))
    assert isinstance(task, EvaluationTask)
    return task
