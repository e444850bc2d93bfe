"""Running the node at the command line: start, pause, resume, budget."""

from __future__ import annotations

import logging
import os
import signal
import threading
from pathlib import Path
from typing import Any

import typer

from party.cli.console import DEFAULT_SITE, ByOption, FormatOption, SiteOption, decider, show
from party.cli.policy import require_lifetime_decided
from party.cli.records import finished
from party.errors import NotReadyError
from party.owner import open_records, open_site, opened_records
from party.site.folder import Site
from party.site.membership import SiteMembership
from pate_fed.nodes import QUIET_FLOWER, Format, facts, write_logs_as_json
from pate_fed.nodes.command_line import EXIT_DONE
from pate_fed.wording import epsilon_text, percent, room_words

_PACKAGE = "party"
_log = logging.getLogger(__name__)


def start(site: SiteOption = DEFAULT_SITE) -> None:
    """Run this hospital's node in all its federations, in the foreground.

    The doctor must agree first. The first start fixes the budget for life, which a person must
    have decided. A federation that fails alone does not stop the others. For permanent operation
    see `pate-party service install`. It prints only its log: JSON lines on standard error.
    """
    write_logs_as_json(_PACKAGE)
    opened = finished(open_site(site))
    memberships = _ask_doctor(opened)
    with opened_records(opened) as records:
        require_lifetime_decided(records)
    _quieten(opened)
    # Flower reads its environment when it is imported.
    from party.flower.serving import serve  # noqa: PLC0415
    from party.service import PartyService  # noqa: PLC0415

    write_logs_as_json(_PACKAGE)  # once more: Flower, which is loaded now, has a handler of its own
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
    output_format: FormatOption = Format.TEXT,
) -> None:
    """Refuse every new batch from now on, in open runs too, in every federation."""
    _set_pause(site, output_format, is_paused=True, by=by)


def resume(
    by: ByOption = None,
    site: SiteOption = DEFAULT_SITE,
    output_format: FormatOption = Format.TEXT,
) -> None:
    """Take part again after a pause."""
    _set_pause(site, output_format, is_paused=False, by=by)


def budget(site: SiteOption = DEFAULT_SITE, output_format: FormatOption = Format.TEXT) -> None:
    """Show the used share of the budget for life, and each run's epsilon and share."""
    with open_records(site) as opened:
        ledger, runs = opened.spending()
    used = ledger.used_share()
    content: dict[str, Any] = {
        "epsilon": ledger.epsilon,
        "delta": ledger.delta,
        "used_share": used,
        "delta_for_tests": ledger.additive_delta,
        "tests_delta": ledger.charged_delta(),
        "batches": len(ledger.entries),
        "runs": [
            {
                "run": one.run,
                "name": one.name,
                "federation": opened.site.federation_of(one.coordinator),
                "batches": one.batches,
                "open": one.open_batches,
                "epsilon": one.epsilon,
                "share": one.share,
                "room": one.room,
                "tests_delta": one.tests_delta,
            }
            for one in runs
        ],
    }
    show(
        output_format,
        content,
        (
            f"For life    {ledger.budget_words}",
            f"Used        {percent(used)} of it, in {len(ledger.entries)} batch(es)",
            *(
                [f"Tests       {ledger.charged_delta():.3g} of their delta is spent"]
                if ledger.additive_delta
                else []
            ),
            *(
                f"  run {one.name or one.run[:16] or '(unknown)'}  epsilon "
                f"{epsilon_text(one.epsilon)}; {one.batches} batch(es), {one.open_batches} of them "
                f"open; it took {percent(one.share)} of the budget"
                f"{f', delta {one.tests_delta:.3g} by tests' if one.tests_delta else ''}; "
                f"{'' if one.room is None else f'{room_words(one.room)}; '}"
                f"{opened.site.federation_of(one.coordinator)}"
                for one in runs
            ),
        ),
    )


def _ask_doctor(site: Site) -> list[SiteMembership]:
    """Return the federations that can be served; refuse where none can, or the site itself fails.

    A coordinator's fault may be mended while the node runs: it tries again by itself.
    """
    from party import doctor  # noqa: PLC0415 - keeps --help fast

    several = len(site.current) > 1
    found = list(doctor.examine(site, doctor.Surroundings()))
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


def _set_pause(folder: Path, output_format: Format, *, is_paused: bool, by: str | None) -> None:
    who = decider(by)
    with open_records(folder) as opened:
        decide = opened.records.standing.pause if is_paused else opened.records.standing.resume
        decide(by=who)
    state = "paused: it refuses every new batch" if is_paused else "taking part again"
    show(
        output_format,
        {"paused": is_paused, "by": who},
        (f"This hospital is {state}.",),
    )
