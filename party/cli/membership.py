"""Joining a federation, looking how long its certificates hold, and leaving it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from party.cli.tally import compare, owner_named, pin, require_both, tally_lines
from party.cli.terminal import (
    DEFAULT_SITE,
    FederationOption,
    SiteOption,
    ask_text,
    decider,
    is_attended,
    tell,
)
from party.errors import (
    JoinError,
    JournalLockedError,
    NotConfirmedError,
    PartyError,
    PartyUsageError,
)
from party.owner import OpenSite, open_site, opened_records
from party.site.joining import CoordinatorDoor, ask_membership, way_out
from party.site.membership import SiteMembership
from party.site.peers import FEDERATION, known_words, require_compared
from party.site.site import SETTINGS_FILE, Site
from party.site.status_file import FILE as STATUS_FILE
from party.site.status_file import known_status
from party.site.tally_standing import TallyStanding
from pate_fed.nodes.command_line import EXIT_FAILED, ask, show
from pate_fed.nodes.owner_files import as_fault
from pate_fed.nodes.terminal import minute
from pate_fed.regular_files import open_regular
from protocols.errors import InvitationError
from protocols.fingerprint_words import spoken
from protocols.invitation import MAX_INVITATION_BYTES, Invitation
from protocols.membership_messages import NamedTally

if TYPE_CHECKING:
    pass

FEW_DAYS: Final = 30


def join(
    invite: Annotated[Path, typer.Argument(metavar="INVITE", help="The operator's file.")],
    site: SiteOption = DEFAULT_SITE,
    *,
    compared: Annotated[
        str | None,
        typer.Option(
            metavar="WORDS",
            help="The 12 words of the federation, as the operator read them aloud.",
        ),
    ] = None,
    operator_body: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The coordinator's owner.")
    ] = None,
    compared_tally: Annotated[
        str | None,
        typer.Option(
            metavar="WORDS",
            help="The 12 words of the tally, as its own people read them aloud.",
        ),
    ] = None,
    tally_body: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The tally's owner.")
    ] = None,
) -> None:
    """Make this hospital's keys if it has none, and ask to join a federation.

    In an existing site this adds another federation; all share identity, journal and budget.
    First compare the 12 words by telephone: equal words prove that nobody changed the invitation.
    Say who owns the coordinator: its hospitals count as its allies.
    Where there is a tally, compare its 12 words with its own people, now or later.
    """
    import httpx  # noqa: PLC0415 - keeps --help fast

    invitation = read_invitation(invite)
    way_out(invitation.address)
    tally = invitation.tally
    _require_options(tally, operator_body, compared_tally, tally_body)
    folder = site.absolute()
    before = Site.open(folder) if (folder / SETTINGS_FILE).exists() else None
    known = None if before is None else before.membership_at(invitation.coordinator.fingerprint)
    was_left = known is not None and known.has_left
    own = None if before is None or not before.has_keys else before.identity.public
    resumed = known if known is not None and own is not None and known.fits(invitation) else None
    if resumed is None:
        _require_in_time(invitation)
    known_fingerprints = known_words(invitation.fingerprint, own, tally)
    _compare(invitation, compared, known_fingerprints)
    operator = _operator(operator_body, "" if known is None else known.settings.operator_body)
    before_it = None if known is None else known.settings.tally
    owner = None
    if tally is not None:
        owner = compare(
            tally, compared_tally, tally_body, before=before_it, known=known_fingerprints
        )
    joined = resumed or _new_membership(folder, before, invitation)
    try:
        with closing(CoordinatorDoor(joined, clock=time.time)) as door:
            answer = door.join(invitation.token)
    except JoinError as error:
        if isinstance(error.__cause__, httpx.HTTPError):
            raise _said_where_the_way_ends(joined, error) from error
        if not error.is_refusal:
            raise
        # The coordinator knows none of the keys that were made just now.
        if before is None:
            _remove_unused(folder)
        elif known is None:
            joined.site.forget(joined.name)
            tell(f"The coordinator took nothing: {joined.name} is removed again.")
        elif was_left:
            joined.site.leave(joined.name)
        raise
    with opened_records(joined.site) as opened:
        opened.decisions.state.note_joined(
            joined.name,
            federation=joined.fingerprint_of_federation,
            identity=joined.identity.public,
        )
        if tally is not None and owner is not None:
            joined = pin(opened, joined, tally, body=owner, by=decider(None))
        if operator != joined.settings.operator_body:
            joined = _note_operator(opened, joined, operator)
    standing = TallyStanding.of(joined.settings, answer)
    words = spoken(joined.identity.public.fingerprint)
    show(
        {
            "site": str(joined.site.folder),
            "membership": joined.name,
            "federation": answer.federation,
            "party": invitation.party,
            "state": answer.state,
            "fingerprint": joined.identity.public.fingerprint.hex(),
            "words": words,
            "node_port": joined.settings.node_port,
            "operator_body": joined.settings.operator_body,
            "tally": str(standing),
        },
        (
            f"Asked to join {answer.federation} as {invitation.party}: {answer.state}.",
            f"Keys and settings are in {joined.site.folder}; here it is called {joined.name}.",
            "Read these words aloud to the operator, who then approves:",
            f"  {words}",
            *tally_lines(standing),
        ),
    )
    status = known_status(joined.site.path(STATUS_FILE))
    if status is not None and status.is_alive(now=time.time()):
        tell("The node runs: restart it, so that it serves this federation too.")


def renew(
    federation: FederationOption = None,
    site: SiteOption = DEFAULT_SITE,
) -> None:
    """Check whether the operator must renew a certificate; changes nothing.

    A hospital's keys do not expire; the server's certificate and the federation's CA do. This
    also checks the membership. The exit code is 1 if a certificate expires within 30 days, or
    this hospital is not a member.
    """
    from party.doctor import PartyProbes, check_network  # noqa: PLC0415 - keeps --help fast

    joined = open_site(site).membership(federation)
    membership = ask_membership(joined)
    ca = joined.ca_ends
    left = (ca - datetime.now(UTC)) // timedelta(days=1)
    standing = TallyStanding.of(joined.settings, membership)
    tls = next(check for check in check_network(joined, PartyProbes()) if check.name == "tls")
    show(
        {
            "membership": joined.name,
            "state": membership.state,
            "peers": len(membership.peer_names),
            "ca_days_left": left,
            "server": {"state": tls.state, "said": tls.said},
            "tally": str(standing),
        },
        (
            f"Membership      {membership.state}, with {len(membership.peer_names)} peer(s)",
            f"Federation's CA until {ca:%Y-%m-%d}, {left} days",
            f"Server          {tls.said}",
            *tally_lines(standing),
        ),
    )
    is_member, ends_soon = membership.state == "member", tls.state != "ok" or left < FEW_DAYS
    if ends_soon:
        tell("Tell the operator: a certificate must be renewed soon.")
    if not is_member:
        tell("Ask the operator: this hospital is no member.")
    if ends_soon or not is_member:
        raise typer.Exit(EXIT_FAILED)


def leave(
    federation: FederationOption = None,
    site: SiteOption = DEFAULT_SITE,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Leave a federation: remove its keys; with the last federation also the identity.

    Journal, ledger and audit log stay. Tell the operator, who revokes the membership.
    """
    opened = open_site(site)
    one = opened.membership(federation)
    name, party = one.settings.federation, one.settings.party
    is_last = not [other for other in opened.current if other.name != one.name]
    whole = ", and its identity with it: this is its last federation" if is_last else ""
    if not (yes or ask(f"Remove the keys of {party} in {name} for good{whole}?")):
        raise NotConfirmedError("a person must agree to leave")
    try:
        with opened_records(opened) as noted:
            noted.database.become_node()  # a node that runs has the keys in its memory
            noted.decisions.state.note_left(one.name, by=decider(None))
    except JournalLockedError:
        raise
    except PartyError as error:  # leaving must not fail
        tell(f"That you leave could not be put on record: {error.code}")
    opened.leave(one.name)
    show(
        {
            "site": str(opened.folder),
            "membership": one.name,
            "federation": name,
            "keys": "removed",
            "identity": "removed" if is_last else "kept",
        },
        (
            f"The keys are gone: {party} has left {name}.",
            "Journal, ledger, audit log, settings and teachers are kept. Ask the operator to "
            "revoke this hospital.",
        ),
    )


# Joining ----------------------------------------------------------------------------------------


def read_invitation(path: Path) -> Invitation:
    """Read an operator's file; `PartyUsageError` or `InvitationError` where it is none."""
    with as_fault(PartyUsageError, "INVITE must be a readable file"), open_regular(path) as file:
        content = file.read(MAX_INVITATION_BYTES + 1)
    try:
        return Invitation.from_json(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InvitationError("an invitation must be as it was made") from error


def _require_options(
    tally: NamedTally | None, operator_body: str | None, compared: str | None, body: str | None
) -> None:
    """Refuse owners and a tally's words that cannot be kept, before a person compares anything."""
    if operator_body is not None:
        owner_named(operator_body)
    require_both(compared, body)
    if tally is None and compared is not None:
        raise PartyUsageError(
            "an invitation must name a tally to pin it: join without the tally's words, then "
            "`pate-party tally --compared WORDS --body NAME`",
            "one that names none",
        )


def _compare(invitation: Invitation, compared: str | None, known: Mapping[str, bytes]) -> None:
    if compared is not None:
        require_compared(compared, FEDERATION, known)
        return
    tell(f"Federation {invitation.federation}, at {invitation.address}.")
    tell("Telephone the operator, on a number that did not come with the invitation, and compare")
    tell("the federation's words, which `pate-fed members` shows there:")
    tell(f"  {spoken(invitation.fingerprint)}")
    if not ask("Did the operator read the same 12 words?"):
        raise NotConfirmedError("the words must be compared before anything is made")


def _operator(given: str | None, before: str) -> str:
    """Return who owns the coordinator, as our people found it; "" if nobody said it."""
    if given is not None:
        return owner_named(given)
    if not is_attended():
        return before
    question = "Who owns the coordinator (its organisation, as you found it)?"
    said = ask_text(question, before or "none")
    return "" if said == "none" else owner_named(said)


def _note_operator(opened: OpenSite, joined: SiteMembership, body: str) -> SiteMembership:
    """Write down who owns the coordinator, on record; return the membership with it."""
    before = joined.settings.operator_body
    saved = joined.site.save(joined.site.settings.with_setting(joined.name, operator_body=body))
    opened.decisions.state.note_rule(
        "operator_body",
        body,
        file=saved.settings_digest,
        by=decider(None),
        before=before or "none",
    )
    return saved.membership(joined.name)


def _require_in_time(invitation: Invitation) -> None:
    if invitation.expires_at <= time.time():
        raise JoinError(
            "an invitation must be used in time: ask for another",
            f"one that ended on {minute(invitation.expires_at)}",
        )


def _new_membership(folder: Path, site: Site | None, invitation: Invitation) -> SiteMembership:
    made = Site.create(folder, invitation) if site is None else site.add(invitation)
    joined = made.membership_at(invitation.coordinator.fingerprint)
    assert joined is not None
    return joined


def _remove_unused(folder: Path) -> None:
    """Remove a folder that we made just now: the coordinator knows none of its keys."""
    try:
        shutil.rmtree(folder)
    except OSError as error:
        tell(f"Remove {folder} by hand ({error.strerror}): its keys are nobody's.")
    else:
        tell(f"The coordinator took nothing: the new folder {folder} is removed again.")


def _said_where_the_way_ends(joined: SiteMembership, error: JoinError) -> JoinError:
    """Return an error that names the obstacle; the same error if it is none of ours."""
    from party.doctor import FAIL, PartyProbes, check_network  # noqa: PLC0415 - --help stays fast

    checks = check_network(joined, PartyProbes())
    found = next((check for check in checks if check.state == FAIL), None)
    if found is None:
        return error
    return JoinError(
        f"the way to the coordinator at {joined.settings.address} must be open. {found.advice} "
        "Then join again with the same file: the keys that were made are kept",
        f"this: {found.said}",
    )
