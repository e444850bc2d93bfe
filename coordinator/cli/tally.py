"""The second organisation of verified sums: `tally invite`, `tally init`, `tally accept`, ..."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from coordinator.cli.terminal import DEFAULT_HOME, HomeOption
from coordinator.errors import TallySetupError
from pate_fed.errors import InvalidSettingError
from pate_fed.nodes import printable, typed_in
from pate_fed.nodes.command_line import Commands, ask, show
from pate_fed.nodes.owner_files import write_new
from pate_fed.nodes.ports import host_and_port
from protocols.fingerprint_words import spoken
from protocols.party_names import normalized

if TYPE_CHECKING:
    from coordinator.tally.cards import PinnedEnd

tally_app = Commands("The tally: a second organisation that checks votes and adds noise.")

FolderOption = Annotated[
    Path, typer.Option("--folder", metavar="DIR", help="The tally's folder.", show_default=True)
]
ComparedOption = Annotated[
    str | None,
    typer.Option(metavar="WORDS", help="The 12 words, as the other end read them aloud."),
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

    read = TallyInvite.read(invite)
    _compare(read, "coordinator", compared)
    own = host_and_port(address) or ("", 0)
    given = {
        "address": address,
        "name": normalized(name),
        "host": host,
        "port": own[1] if port is None else port,
    }
    settings = typed_in(TallySettings, given, fault=TallySetupError)
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
    from coordinator.federation.home import FederationHome  # noqa: PLC0415 - keeps --help fast
    from coordinator.tally.cards import TallyCard  # noqa: PLC0415

    opened = FederationHome.open(home.absolute())
    read = TallyCard.read(card)
    _compare(read, "tally", compared)
    opened.accept_tally(read)
    show(
        {"address": read.address, "fingerprint": read.identity.fingerprint.hex()},
        [f"The federation's tally is at {read.address}."],
    )


def _compare(read: PinnedEnd, whose: str, compared: str | None) -> None:
    """Refuse, with `TallySetupError`, a file whose words nobody compared."""
    if compared is not None:
        read.require_words(compared)
        return
    for line in (
        f"Federation {read.federation}. Telephone the {whose}'s people, on a number that did not",
        "come with the file, and compare:",
        f"  {spoken(read.fingerprint)}",
    ):
        typer.echo(printable(line), err=True)
    if not ask(f"Did the {whose}'s people read the same 12 words?"):
        raise TallySetupError("the 12 words must be compared before anything is made")
