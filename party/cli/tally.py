"""The tally at the command line: its words compared with its own people, and its key pinned."""

from __future__ import annotations

from collections.abc import Mapping
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
from party.errors import NotConfirmedError, PartyUsageError, PinError, WordsDifferError
from party.owner import OpenSite, open_records
from party.site.joining import ask_membership
from party.site.membership import SiteMembership
from party.site.peers import MOST_LETTERS, TALLY, known_words, require_compared
from party.site.tally_standing import TallyStanding
from pate_fed.nodes.command_line import show
from protocols.fingerprint_words import spoken
from protocols.membership_messages import NamedTally


def tally(
    compared: Annotated[
        str | None,
        typer.Option(
            metavar="WORDS",
            help="The 12 words, or the 64 digits, as its own people read them aloud.",
        ),
    ] = None,
    body: Annotated[str | None, typer.Option(metavar="TEXT", help="Its owner.")] = None,
    federation: FederationOption = None,
    by: ByOption = None,
    site: SiteOption = DEFAULT_SITE,
) -> None:
    """Pin the tally, the second organisation of verified sums, after comparing its words.

    Telephone the tally's own people, on a number that is not from the operator.
    """
    with open_records(site) as opened:
        joined = opened.site.membership(federation)
        standing = TallyStanding.of(joined.settings, ask_membership(joined))
        named = standing.named
        if named is None:
            raise PinError("a federation must have a tally to pin it")
        if standing.waiting is None and compared is None and body is not None:
            joined = pin(opened, joined, named, body=owner_named(body), by=decider(by))
        else:
            require_both(compared, body)
        if standing.waiting is not None or compared is not None:
            owner = compare(named, compared, body, before=standing.pinned, known=words_in(joined))
            if owner is None:
                raise NotConfirmedError(
                    "a person must compare the words at a terminal: elsewhere with --compared and "
                    "--body",
                    "later",
                )
            joined = pin(opened, joined, named, body=owner, by=decider(by))
    pinned = TallyStanding.of(joined.settings, None)
    show(
        {
            "membership": joined.name,
            "tally": named.name,
            "fingerprint": named.identity.fingerprint.hex(),
            "words": spoken(named.identity.fingerprint),
            "body": pinned.body,
        },
        (f"Tally: {pinned}.", f"  {spoken(named.identity.fingerprint)}"),
    )
    if fault := joined.settings.aggregators.fault:
        tell(fault)


def words_in(joined: SiteMembership) -> dict[str, bytes]:
    """Return the fingerprints whose words are compared in a federation, but for a tally's."""
    return known_words(joined.fingerprint_of_federation, joined.identity.public, None)


def require_both(compared: str | None, body: str | None) -> None:
    """Refuse a tally's words without its owner, and the owner without the words."""
    if (compared is None) is not (body is None):
        missing = "owner" if body is None else "12 words"
        raise PartyUsageError(
            "a tally's 12 words and its owner must be given together", f"no {missing}"
        )
    if body is not None:
        owner_named(body)


def compare(
    named: NamedTally,
    compared: str | None,
    body: str | None,
    *,
    before: NamedTally | None,
    known: Mapping[str, bytes],
) -> str | None:
    """Have a person compare a tally's words; return its owner, None if that is left for later.

    `known` are the other fingerprints whose words could be typed instead, by whose they are.
    """
    if compared is not None:
        require_compared(compared, TALLY, {**known, TALLY: named.identity.fingerprint})
        return owner_named(body or "")
    if not is_attended():
        return None
    if before is not None and before.identity != named.identity:
        tell(f"THE KEY OF THE TALLY IS ANOTHER THAN THE PINNED ONE, of {before.name}.")
        tell("Ask the old tally's people, too, whether they were replaced or have a new key.")
    tell(f"This federation has a tally, {named.name}: the second organisation of verified sums.")
    tell("Telephone its own people, not the operator, on a number that is not from the operator.")
    tell("Their `pate-fed tally words` shows 12 words for hospitals:")
    tell(f"  {spoken(named.identity.fingerprint)}")
    answer = ask_choice("Did they read the same 12 words?", ("yes", "no", "later"), "later")
    if answer == "no":
        raise WordsDifferError(f"the 12 words must be {TALLY}", "others on the telephone")
    if answer != "yes":
        return None
    while not (owner := ask_text("Who owns the tally (its organisation, as you found it)?")):
        tell("Write down its owner: it must be another than the operator's.")
    return owner_named(owner)


def pin(
    opened: OpenSite, joined: SiteMembership, named: NamedTally, *, body: str, by: str
) -> SiteMembership:
    """Pin a compared tally in the site's settings, on record; return the membership with it."""
    before = TallyStanding.of(joined.settings, None)
    saved = opened.site.save(opened.site.settings.with_tally(joined.name, named, body=body))
    opened.decisions.state.note_rule(
        "tally",
        f"{named.name}, of {body}, {named.identity.fingerprint.hex()}",
        file=saved.settings_digest,
        by=by,
        before=""
        if before.pinned is None
        else f"{before.pinned.name}, of {before.body}, {before.pinned.identity.fingerprint.hex()}",
    )
    return saved.membership(joined.name)


def owner_named(text: str) -> str:
    """Return the owner of a tally or a coordinator, as typed; refuse an empty or broken line."""
    if not (text.strip() and text.isprintable() and len(text) <= MOST_LETTERS):
        raise PartyUsageError(f"an owner must be named, in 1 to {MOST_LETTERS} printable letters")
    return text


def tally_lines(standing: TallyStanding) -> tuple[str, ...]:
    """Return the line about a federation's tally; none where there is no tally."""
    has_none = standing.pinned is None and standing.named is None
    return () if has_none else (f"Tally           {standing}",)
