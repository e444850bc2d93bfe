"""The second organisation of verified sums: `tally invite`, `tally init`, `tally accept`, ..."""

from __future__ import annotations

import os
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from coordinator.cli.terminal import DEFAULT_HOME, HomeOption
from coordinator.errors import TallySetupError, UsageError
from pate_fed.errors import InvalidSettingError
from pate_fed.nodes import (
    exit_code,
    lines_of_checks,
    printable,
    table_of_checks,
    typed_in,
    write_logs,
    write_named,
)
from pate_fed.nodes.command_line import Commands, ask, show
from pate_fed.nodes.owner_files import write_new
from pate_fed.nodes.ports import host_and_port
from pate_fed.nodes.terminal import minute
from pate_fed.wording import plural
from protocols.fingerprint_words import spoken
from protocols.party_names import normalized

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coordinator.tally.book_rows import RunStanding
    from coordinator.tally.cards import PinnedEnd
    from coordinator.tally.side_material import SideFile

tally_app = Commands("The tally: a second organisation that checks votes and adds noise.")

FolderOption = Annotated[
    Path, typer.Option("--folder", metavar="DIR", help="The tally's folder.", show_default=True)
]
ComparedOption = Annotated[
    str | None,
    typer.Option(metavar="WORDS", help="The 12 words, as the other end read them aloud."),
]
PlanArgument = Annotated[
    str, typer.Argument(metavar="PLAN", help="First digits of the digest of a batch's plan.")
]
OutOption = Annotated[Path, typer.Option(metavar="FILE", help="New file to write.")]
HeardOption = Annotated[
    bool,
    typer.Option("--heard", help="Only what it heard and told, for the other end's auditor."),
]
DEFAULT_FOLDER: Final = Path("tally")
_INVITE, _CARD = Path("tally-invite.json"), Path("tally-card.json")


@tally_app.command()
def invite(
    out: Annotated[Path, typer.Option(metavar="FILE", help="File to write.")] = _INVITE,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Write the file from which another organisation makes the federation's tally."""
    from coordinator.federation.home import FederationHome  # noqa: PLC0415 - keeps --help fast

    made = FederationHome.open(home.absolute()).invite_tally(now=datetime.now(UTC))
    write_new(out, [made.to_json()], fault=InvalidSettingError)
    words = spoken(made.fingerprint)
    show(
        {"file": str(out), "words": words},
        (
            f"{out} is for the organisation that will run the tally.",
            "When they telephone you, read these words aloud; they compare:",
            f"  {words}",
        ),
    )


@tally_app.command()
def init(  # noqa: PLR0917 - one argument per option
    invite: Annotated[Path, typer.Argument(metavar="INVITE", help="The coordinator's file.")],
    address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where the coordinator reaches the tally.")
    ],
    name: Annotated[
        str, typer.Option(metavar="NAME", help="Your organisation, as hospitals are told.")
    ],
    folder: FolderOption = DEFAULT_FOLDER,
    compared: ComparedOption = None,
    host: Annotated[str, typer.Option(help="Address to bind the port to.")] = "0.0.0.0",  # noqa: S104 - the coordinator is elsewhere
    port: Annotated[
        int | None, typer.Option(help="The port here. [default: the address's]")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Card to write.")] = _CARD,
) -> None:
    """Make a tally in a new folder, and its card for the coordinator.

    First compare the coordinator's 12 words by telephone: equal words prove that nobody changed the
    file.
    """
    from coordinator.tally.cards import TallyInvite  # noqa: PLC0415 - keeps --help fast
    from coordinator.tally.tally_folder import TallyFolder, TallySettings  # noqa: PLC0415

    _require_new(out)  # all of it before a person is asked, or anything is made
    read = TallyInvite.read(invite)
    own = host_and_port(address) or ("", 0)
    given = {
        "address": address,
        "name": normalized(name),
        "host": host,
        "port": own[1] if port is None else port,
    }
    settings = typed_in(TallySettings, given, fault=TallySetupError)
    TallyFolder.require_new(folder)
    _compare(read, "coordinator", compared, {})
    made = TallyFolder.create(folder.absolute(), settings, read, now=datetime.now(UTC))
    write_new(out, [made.card.to_json()], fault=InvalidSettingError)
    words = spoken(made.card.fingerprint)
    show(
        {"folder": str(folder), "file": str(out), "words": words},
        (
            f"The tally of {read.federation} was made; its folder is {folder}.",
            f"Send {out} to the coordinator, who compares these words with you:",
            f"  {words}",
            "Hospitals compare others: pate-fed tally words",
            "Next: pate-fed tally serve",
        ),
    )


@tally_app.command()
def words(folder: FolderOption = DEFAULT_FOLDER) -> None:
    """Show the tally's words: read them aloud to a hospital, or to the coordinator."""
    from coordinator.tally.tally_folder import TallyFolder  # noqa: PLC0415 - keeps --help fast

    card = TallyFolder.open(folder.absolute()).card
    hospitals, coordinator = spoken(card.identity.fingerprint), spoken(card.fingerprint)
    show(
        {"name": card.name, "hospitals": hospitals, "coordinator": coordinator},
        (
            f"Tally           {card.name}, of {card.federation}",
            f"For hospitals   {hospitals}",
            f"For coordinator {coordinator}",
        ),
    )


@tally_app.command()
def accept(
    card: Annotated[Path, typer.Argument(metavar="CARD", help="The tally's file.")],
    compared: ComparedOption = None,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Pin the federation's tally after comparing its words by telephone."""
    from coordinator.federation.home import FederationHome, fingerprints_of  # noqa: PLC0415 - fast --help
    from coordinator.tally.cards import TallyCard  # noqa: PLC0415

    opened = FederationHome.open(home.absolute())
    read = TallyCard.read(card)
    opened.require_tally(read)
    _compare(read, "tally", compared, fingerprints_of(opened, read))
    opened.accept_tally(read)
    show(
        {"address": read.address, "fingerprint": read.identity.fingerprint.hex()},
        (
            f"The federation's tally is at {read.address}.",
            "Hospitals compare other words with its people, and pin it: pate-party tally",
        ),
    )


@tally_app.command(shows=False)
def serve(folder: FolderOption = DEFAULT_FOLDER) -> None:
    """Serve the coordinator until SIGTERM. Logs are JSON lines."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # lines of its own, which are no JSON
    os.umask(0o077)
    from coordinator.tally.tally_service import serve_tally  # noqa: PLC0415 - keeps --help fast

    write_logs("coordinator")
    serve_tally(folder)


@tally_app.command()
def status(folder: FolderOption = DEFAULT_FOLDER) -> None:
    """Show each run: batches that came and were opened, rejected reports, charges and caps."""
    from coordinator.tally.book_rows import run_standings  # noqa: PLC0415 - keeps --help fast
    from coordinator.tally.tally_folder import TallyFolder  # noqa: PLC0415

    opened = TallyFolder.open(folder.absolute())
    with closing(opened.database()) as database, database.transaction() as connection:
        found = run_standings(connection, coordinator=opened.coordinator.identity)
    tables = [
        {
            "name": run.name,
            "hospitals": run.hospitals,
            "expires_at": run.expires_at,
            "plans": {plan.hex(): is_open for plan, is_open in run.plans.items()},
            "rejected": dict(run.rejected),
            "asks": [run.charged.asks, run.caps.asks],
            "answers": [run.charged.answers, run.caps.answers],
        }
        for run in found
    ]
    served = "is served" if opened.is_served else "is not served: pate-fed tally serve"
    show(
        {"federation": opened.coordinator.federation, "served": opened.is_served, "runs": tables},
        (
            f"The tally of {opened.coordinator.federation} {served}.",
            *(line for run in found for line in _lines(run)),
        ),
    )


@tally_app.command()
def doctor(folder: FolderOption = DEFAULT_FOLDER) -> None:
    """Check the tally for problems, running or stopped; changes nothing.

    Exit codes: 0 good, 1 warnings only, 4 failures.
    """
    from coordinator.tally.tally_doctor import TallyProbes, examine_tally  # noqa: PLC0415 - fast --help

    found = list(examine_tally(folder.absolute(), TallyProbes()))
    show(table_of_checks(found), lines_of_checks(found))
    raise typer.Exit(exit_code(found))


@tally_app.command()
def restored(
    end: Annotated[
        str,
        typer.Argument(
            metavar="END", help="Whose older database was put back: coordinator or tally."
        ),
    ],
    folder: FolderOption = DEFAULT_FOLDER,
) -> None:
    """Go on after an older database was put back. Talk to the other end before.

    The service must not run. `tally` ends all runs that have begun: what their hospitals sent could
    be looked at twice.
    """
    from coordinator.tally.book_rows import take_restored  # noqa: PLC0415 - fast --help
    from coordinator.tally.side_material import ENDS  # noqa: PLC0415
    from coordinator.tally.tally_folder import TallyFolder  # noqa: PLC0415

    if end not in ENDS:
        raise UsageError(f"END must be {' or '.join(ENDS)}", "another word")
    opened = TallyFolder.open(folder.absolute())
    held = opened.lock()
    try:
        with closing(opened.database()) as database:
            ended = take_restored(database, ends_runs=end == "tally")
    finally:
        os.close(held)
    show(
        {"end": end, "ended": ended},
        (
            f"The coordinator's next call says where both stand; {plural(ended, 'run')} ended.",
            "Next: pate-fed tally serve",
        ),
    )


@tally_app.command()
def material(
    plan: PlanArgument,
    out: OutOption,
    heard: HeardOption = False,
    folder: FolderOption = DEFAULT_FOLDER,
) -> None:
    """Write the tally's material of a batch for an auditor: secret, its parts and its noise.

    Never give it to somebody who has the coordinator's, too.
    """
    from coordinator.tally.book_rows import noted_batch, plans_named  # noqa: PLC0415 - fast --help
    from coordinator.tally.side_material import SideFile  # noqa: PLC0415
    from coordinator.tally.tally_folder import TallyFolder  # noqa: PLC0415

    opened = TallyFolder.open(folder.absolute())
    with closing(opened.database()) as database, database.transaction() as connection:
        digests = plans_named(connection, plan)
        noted = noted_batch(connection, digests[0]) if len(digests) == 1 else None
    if noted is None or noted.key is None:
        must = "the digits must be those of one batch whose audit window is open: see `status`"
        raise UsageError(must, f"{len(digests)} batches")
    write_side(
        SideFile.of_steps(
            "tally",
            noted.steps,
            coordinator=opened.coordinator.identity,
            record=noted.record,
            plan=noted.plan,
            key=None if heard else noted.key,
        ),
        out,
    )


def write_side(made: SideFile, out: Path) -> None:
    """Write an end's file of a batch, for its owner alone."""
    _require_new(out)
    write_named(out, "--out", made.to_bytes(), fault=InvalidSettingError)
    is_secret = made.material is not None
    said = (
        f"{out} holds the {made.end}'s parts and noise of the batch: for one auditor, who must not "
        "have the other end's of this batch."
        if is_secret
        else f"{out} holds what the {made.end} heard and told: for the auditor of the other end."
    )
    show({"file": str(out), "end": made.end, "is_secret": is_secret}, [said])


def _lines(run: RunStanding) -> list[str]:
    opened = sum(run.plans.values())
    rejected = ", ".join(f"{one[:8]} {count} times" for one, count in run.rejected.items())
    return [
        f"{run.name:24} {run.hospitals} hospitals, until {minute(run.expires_at)}",
        f"{'':24} {opened} of {plural(len(run.plans), 'batch', 'batches')} opened; charged "
        f"{run.charged.asks} of {run.caps.asks} asks, {run.charged.answers} of "
        f"{run.caps.answers} answers",
        *([f"{'':24} reports without votes: {rejected}"] if rejected else []),
        *(
            f"{'':24} {plan.hex()[:16]} {'opened' if is_open else 'not opened'}"
            for plan, is_open in run.plans.items()
        ),
    ]


def _require_new(out: Path) -> None:
    if os.path.lexists(out) or not out.absolute().parent.is_dir():
        raise InvalidSettingError("--out must be a new file in an existing folder", str(out))


def _compare(read: PinnedEnd, end: str, compared: str | None, others: Mapping[str, bytes]) -> None:
    """Refuse, with `TallySetupError`, a file whose words nobody compared."""
    if compared is not None:
        read.require_words(compared, others)
        return
    for line in (
        f"Federation {read.federation}. Telephone the {end}'s people, on a number that did not",
        f"come with the file. Compare {read.whose}:",
        f"  {spoken(read.fingerprint)}",
    ):
        typer.echo(printable(line), err=True)
    if not ask(f"Did the {end}'s people read the same 12 words?"):
        raise TallySetupError("the 12 words must be compared before anything is made")
