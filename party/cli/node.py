"""Running the node at the command line: start, pause, resume, budget."""

from __future__ import annotations

import logging
import os
import signal
import threading
from pathlib import Path
from typing import Any

import typer

from party.cli.lifetime_budget import require_lifetime_decided
from party.cli.records import finished
from party.cli.terminal import DEFAULT_SITE, ByOption, SiteOption, decider
from party.errors import NotReadyError
from party.owner import open_records, open_site, opened_records
from party.site.membership import SiteMembership
from party.site.site import Site
from pate_fed.nodes import QUIET_FLOWER, facts, write_logs
from pate_fed.nodes.command_line import EXIT_DONE, show
from pate_fed.prices import READERS
from pate_fed.wording import epsilon_text, percent, room_words

_PACKAGE = "party"
_log = logging.getLogger(__name__)


def start(site: SiteOption = DEFAULT_SITE) -> None:
    """Run this hospital's node in all its federations, in the foreground.

    The doctor must agree first. The first start fixes the budget for life, which a person must
    have decided. A federation that fails alone does not stop the others. For permanent operation
    see `pate-party service install`. It prints only its log: JSON lines on standard error.
    """
    write_logs(_PACKAGE)
    opened = finished(open_site(site))
    memberships = _ask_doctor(opened)
    with opened_records(opened) as records:
        require_lifetime_decided(records)
    _quieten(opened)
    # Flower reads its environment when it is imported.
    from party.flower.serving import serve  # noqa: PLC0415
    from party.service import PartyService  # noqa: PLC0415

    write_logs(_PACKAGE)  # once more: Flower, which is loaded now, has a handler of its own
    logging.getLogger("flwr").setLevel(logging.ERROR)  # names the fault, without the message
    os.umask(0o077)
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    service = PartyService(opened)
    for one in memberships:
        _log.info("%s is up; it speaks to %s.", one.settings.party, one.settings.address)
    serve(service, opened, stopped=stopped, memberships=memberships)
    _log.info("Stopped; everything is written down.")
    raise typer.Exit(EXIT_DONE)


def pause(
    by: ByOption = None,
    site: SiteOption = DEFAULT_SITE,
) -> None:
    """Refuse every new batch from now on, in open runs too, in every federation."""
    _set_pause(site, is_paused=True, by=by)


def resume(
    by: ByOption = None,
    site: SiteOption = DEFAULT_SITE,
) -> None:
    """Take part again after a pause."""
    _set_pause(site, is_paused=False, by=by)


def budget(site: SiteOption = DEFAULT_SITE) -> None:
    """Show the used share of the budget for life, and each run's epsilon and share."""
    from party.people_tables import budget_table  # noqa: PLC0415 - keeps --help fast

    with open_records(site) as opened:
        table = budget_table(opened)
    tests = f"Tests       {table['tests_delta']:.3g} of their delta is spent"
    show(
        table,
        (
            f"For life    {table['words']}",
            f"Used        {percent(table['used_share'])} of it, in {table['batches']} batch(es)",
            *([tests] if table["delta_for_tests"] else []),
            *map(_line_of_run, table["runs"]),
        ),
    )


def _line_of_run(one: dict[str, Any]) -> str:
    tests = f", delta {one['tests_delta']:.3g} by tests" if one["tests_delta"] else ""
    room = "" if one["room"] is None else f"{room_words(one['room'])}; "
    return (
        f"  run {one['name'] or one['run'][:16] or '(unknown)'}  {_epsilons(one)}; "
        f"{one['batches']} batch(es), {one['open']} of them open; "
        f"it took {percent(one['share'])} of the budget{tests}; {room}{one['federation']}"
    )


def _epsilons(one: dict[str, Any]) -> str:
    """Name the number that is charged, with that of readers beside it where it is another."""
    charged = f"epsilon {epsilon_text(one['charged_epsilon'])}"
    if not one["charged_view"]:
        return charged
    seen = f"{charged} against {one['charged_view']}"
    if one["charged_view"] == READERS:
        return seen
    return f"{seen}, {epsilon_text(one['epsilon'])} against {READERS}"


def _ask_doctor(site: Site) -> list[SiteMembership]:
    """Return the federations that can be served; refuse where none can, or the site itself fails.

    A coordinator's fault may be mended while the node runs: it tries again by itself.
    """
    from party import doctor  # noqa: PLC0415 - keeps --help fast

    several = len(site.current) > 1
    found = list(doctor.examine(site, doctor.PartyProbes()))
    for one in found:
        if one.state != doctor.OK:
            of = f"{one.federation}: " if several and one.federation else ""
            level = logging.ERROR if one.state == doctor.FAIL else logging.WARNING
            extra = facts("doctor", check=one.name)
            _log.log(level, "%s%s %s", of, one.said, one.advice, extra=extra)
    failed = [one for one in found if one.state == doctor.FAIL]
    failing = {one.federation for one in failed}
    if failed and ("" in failing or not {one.name for one in site.current} - failing):
        raise NotReadyError(
            "the doctor must find nothing that fails before the node starts",
            ", ".join(one.name for one in failed),
        )
    here = {one.federation for one in failed if one.name in doctor.LOCAL_NAMES}
    served = [one for one in site.current if one.name not in here and not one.missing_keys]
    for name in {one.name for one in site.current} - {one.name for one in served}:
        _log.error("%s is not served: mend its faults, and start again.", name)
    return served


def _quieten(site: Site) -> None:
    """Flower calls nobody and installs nothing."""
    os.environ.update(QUIET_FLOWER, FLWR_HOME=str(site.path("flower")))


def _set_pause(folder: Path, *, is_paused: bool, by: str | None) -> None:
    who = decider(by)
    with open_records(folder) as opened:
        decide = opened.decisions.state.pause if is_paused else opened.decisions.state.resume
        decide(by=who)
    state = "paused: it refuses every new batch" if is_paused else "taking part again"
    show(
        {"paused": is_paused, "by": who},
        (f"This hospital is {state}.",),
    )
