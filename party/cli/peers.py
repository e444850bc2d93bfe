"""Peers at the command line: checked by our own people, or not."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from party.cli.terminal import (
    DEFAULT_SITE,
    ByOption,
    FederationOption,
    SiteOption,
    ask_choice,
    ask_text,
    decider,
    is_attended,
    tell,
)
from party.errors import JoinError, NotConfirmedError, PinError, WordsDifferError
from party.owner import OpenSite, open_records
from party.site.joining import ask_membership
from party.site.peers import (
    ListedPeer,
    known_words,
    listed_peers,
    named_by,
    require_compared,
    words_of_peer,
)
from pate_fed.nodes import one_line
from pate_fed.nodes.command_line import Commands, show
from protocols.fingerprint_words import spoken
from protocols.membership_messages import Membership
from protocols.party_names import normalized

peers_app = Commands("The other hospitals, and who checked them.")


@peers_app.command("list")
def list_peers(
    federation: FederationOption = None,
    site: SiteOption = DEFAULT_SITE,
) -> None:
    """Show all peers of a federation with their words and their checks.

    Pins hold in every federation, so pinned hospitals are listed even if they are not members.
    Unchecked peers do not count: the coordinator may have invented them.
    """
    membership: Membership | None = None
    with open_records(site) as opened:
        joined = opened.site.membership(federation)
        try:
            membership = ask_membership(joined)
        except JoinError as error:
            tell(f"The coordinator was not asked: {error.code}: {one_line(str(error))}")
        found = listed_peers(opened.decisions.pins(), membership)
    show(
        {"asked": membership is not None, "peers": [_table(one) for one in found]},
        [line for one in found for line in _lines(one, asked=membership is not None)]
        or ["No peer is known."],
    )


@peers_app.command("add")
def add(  # noqa: PLR0917 - one argument per option
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name at the coordinator.")],
    compared: Annotated[
        str,
        typer.Option(
            metavar="WORDS",
            help="The 12 words, or the 64 digits, as its own people read them aloud.",
        ),
    ],
    how: Annotated[str, typer.Option(metavar="TEXT", help="How it was checked.")],
    by: Annotated[str, typer.Option(metavar="PERSON", help="Who of us checked it.")],
    body: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Its owner, if not its name."),
    ] = None,
    ours: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="NAME",
            help="Your name for it, if another peer has the same name.",
        ),
    ] = None,
    federation: FederationOption = None,
    site: SiteOption = DEFAULT_SITE,
) -> None:
    """Pin a peer after comparing its words with its own people, not with the coordinator."""
    with open_records(site) as opened:
        joined = opened.site.membership(federation)
        membership = ask_membership(joined)
        identity, whose = named_by(membership, name), words_of_peer(name)
        known = known_words(
            joined.fingerprint_of_federation, joined.identity.public, membership.tally
        )
        require_compared(compared, whose, {whose: identity.fingerprint, **known})
        name = normalized(ours or name)
        pin = opened.decisions.add_pin(name, identity, body=body or "", how=how, by=by)
    show(
        {"pinned": name, "fingerprint": identity.fingerprint.hex(), "body": pin.body},
        (f"{name} is pinned, and counts as checked.",),
    )


@peers_app.command("check", shows=False)
def check(
    federation: FederationOption = None,
    by: ByOption = None,
    site: SiteOption = DEFAULT_SITE,
) -> None:
    """Check all unchecked peers, one after the other, at a terminal.

    For each, telephone its own people, compare the shown words, and say how you checked.
    """
    if not is_attended():
        raise NotConfirmedError(
            "a person must compare the words at a terminal: elsewhere `pate-party peers add`",
            "no terminal",
        )
    with open_records(site) as opened:
        here = opened.site.current if federation is None else (opened.site.membership(federation),)
        differing = [
            name
            for joined in here
            for name in check_in_one_sitting(opened, ask_membership(joined), by=decider(by))
        ]
        pins = len(opened.decisions.pins())
    show({}, (f"{pins} peer(s) are pinned, and count as checked.",))
    if differing:
        raise WordsDifferError(
            "the words of a peer must be those that its own people read", ", ".join(differing)
        )


def check_in_one_sitting(opened: OpenSite, membership: Membership, *, by: str) -> list[str]:
    """Pin peers whose words a person finds the same; return the names of those with others."""
    found = [one for one in listed_peers(opened.decisions.pins(), membership) if one.pin is None]
    differing: list[str] = []
    how = ""
    for number, one in enumerate(found, start=1):
        tell(
            f"\nPeer {number} of {len(found)}: {one.name}. Telephone its own people, on a number "
            "that is not from the operator; their `pate-party status` shows 12 words:"
        )
        tell(f"  {spoken(one.identity.fingerprint)}")
        answer = ask_choice("Did they read the same 12 words?", ("yes", "no", "later"), "later")
        if answer == "no":
            differing.append(one.name)
            tell("It is not pinned. Somebody may stand between: tell its people and the operator.")
        if answer != "yes":
            continue
        how = _ask_how(how)
        body = ask_text("Whom does it belong to?", one.name)
        try:
            opened.decisions.add_pin(normalized(one.name), one.identity, body=body, how=how, by=by)
        except PinError as error:
            tell(f"{error.code}: {one_line(str(error))}")
    return differing


def _ask_how(before: str) -> str:
    """Ask how a peer was checked; for the first one there is no answer to press Enter for."""
    question = "How was it checked (for example: telephone, number from their own website)?"
    while not (how := ask_text(question, before or None)):
        tell("Write down how: without it the check is worth nothing later.")
    return how


@peers_app.command("remove")
def remove(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its pinned name.")],
    by: ByOption = None,
    site: SiteOption = DEFAULT_SITE,
) -> None:
    """Drop a pin: from the next run on the peer does not count."""
    with open_records(site) as opened:
        pin = opened.decisions.remove_pin(normalized(name), by=decider(by))
    show(
        {"removed": name, "fingerprint": pin.identity.fingerprint.hex()},
        (f"{name} is pinned no more.",),
    )


def _table(one: ListedPeer) -> dict[str, object]:
    return {
        "name": one.name,
        "fingerprint": one.identity.fingerprint.hex(),
        "words": spoken(one.identity.fingerprint),
        "member": one.is_member,
        "checked": None
        if one.pin is None
        else {
            "body": one.pin.body,
            "how": one.pin.how,
            "by": one.pin.by,
            "at": _moment(one.pin.at).isoformat(),
        },
    }


def _lines(one: ListedPeer, *, asked: bool) -> tuple[str, str]:
    if one.pin is None:
        state = "not checked: counts for nothing"
    else:
        state = f"checked by {one.pin.by} on {_moment(one.pin.at):%Y-%m-%d}: {one.pin.how}"
        if asked and not one.is_member:
            state += "; the coordinator names no member with this key"
    return f"{one.name}: {state}", f"  {spoken(one.identity.fingerprint)}"


def _moment(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC).replace(microsecond=0)
