"""Joining a federation, how we stand in it, and leaving it."""

from __future__ import annotations

import shutil
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from cryptography import x509

from party.cli.console import (
    DEFAULT_SITE,
    EXIT_FAILED,
    FormatOption,
    SiteOption,
    ask,
    decider,
    open_site,
    opened_records,
    show,
    tell,
)
from party.enrollment import CoordinatorDoor, ask_membership, require_way_out
from party.errors import (
    EnrollmentError,
    JournalLockedError,
    NotConfirmedError,
    PartyError,
    ServiceError,
    SiteError,
    UsageError,
    WordsDifferError,
)
from party.site import SETTINGS_FILE, Site
from party.status_file import FILE as STATUS_FILE
from party.status_file import Status, read_status
from pate_fed.nodes import Format, one_line
from protocols.enrollment import MAX_INVITATION_BYTES, Invitation
from protocols.errors import InvitationError
from protocols.fingerprint_words import is_same, spoken
from protocols.messages import Membership

if TYPE_CHECKING:
    from party.doctor import Check

FEW_DAYS: Final = 30
SILENT_S: Final = 150.0
"""A node hears the coordinator every minute; after twice that and what an answer may take, it does
not any more."""


def join(
    invite: Annotated[Path, typer.Argument(metavar="INVITE", help="The operator's file.")],
    site: SiteOption = DEFAULT_SITE,
    compared: Annotated[
        str | None,
        typer.Option(
            metavar="WORDS",
            help="The 12 words of the federation, as the operator read them aloud.",
        ),
    ] = None,
    output_format: FormatOption = Format.TEXT,
) -> None:
    """Make this hospital's keys, and ask to join a federation.

    Compare the words by telephone first: they show that nobody changed the invitation.
    """
    invitation = _read_invitation(invite)
    require_way_out(invitation.address)
    _compare(invitation, compared)
    folder = site.absolute()
    is_new = not folder.exists()
    made = _site_for(folder, invitation)
    try:
        with closing(CoordinatorDoor(made, clock=time.time)) as door:
            answer = door.join(invitation.token)
    except EnrollmentError as error:
        if is_new and error.is_refusal:
            _remove_unused(folder)
        raise
    with opened_records(made) as opened:
        opened.records.note_joined(
            federation=made.fingerprint_of_federation, identity=made.identity.public
        )
    words = spoken(made.identity.public.fingerprint)
    show(
        output_format,
        {
            "site": str(made.folder),
            "federation": answer.federation,
            "party": invitation.party,
            "state": answer.state,
            "fingerprint": made.identity.public.fingerprint.hex(),
            "words": words,
        },
        (
            f"Asked to join {answer.federation} as {invitation.party}: {answer.state}.",
            f"Keys and settings are in {made.folder}.",
            "Read these words aloud to the operator, who then approves:",
            f"  {words}",
        ),
    )


def status(site: SiteOption = DEFAULT_SITE, output_format: FormatOption = Format.TEXT) -> None:
    """Show how this hospital stands: membership, data, teachers, peers, node."""
    opened = open_site(site)
    answer = _ask(opened)
    membership = answer if isinstance(answer, Membership) else None
    reason = _reason(answer)
    settings = opened.settings
    checked, pause = _decided(opened)
    troubles = _troubles(opened, answer)
    kept = [one for one in opened.path("teachers").glob("*") if not one.name.startswith(".")]
    words = spoken(opened.identity.public.fingerprint) if opened.has_keys else ""
    peers = len(membership.peer_names) if membership is not None else None
    node, unread = _node(opened)
    state = "" if node is None else _node_state(node, answer)
    show(
        output_format,
        {
            "site": str(opened.folder),
            "federation": settings.federation,
            "party": settings.party,
            "coordinator": settings.address,
            "state": None if membership is None else membership.state,
            "reason": reason,
            "words": words,
            "data": {"file": settings.data.file, "rows": settings.data.rows},
            "teachers": settings.teachers,
            "tasks_with_teachers": len(kept),
            "checked_peers": checked,
            "peers": peers,
            "troubles": [
                {"name": one.name, "state": one.state, "said": one.said} for one in troubles
            ],
            "paused": None if pause is None else {"by": pause[0], "at": pause[1]},
            "node": None if node is None else {**node.as_record(), "state": state},
            "node_unread": unread,
        },
        (
            f"Federation      {settings.federation}, at {settings.address}",
            f"This hospital   {settings.party}: {words or 'it has no keys any more'}",
            f"Membership      {reason if membership is None else membership.state}",
            f"Data            {settings.data.file or 'none: see pate-party data add'}",
            f"Teachers        {settings.teachers}, trained for {len(kept)} task(s)",
            f"Checked peers   {'?' if checked is None else checked} of "
            f"{'?' if peers is None else peers}",
            *(_node_lines(node, state) if not unread else (f"Node            {unread}",)),
            *(() if pause is None else (f"Paused          {_pause_words(*pause)}",)),
            *(f"Trouble         {one.name}: {one.said} {one.advice}" for one in troubles),
        ),
    )


def renew(site: SiteOption = DEFAULT_SITE, output_format: FormatOption = Format.TEXT) -> None:
    """Look whether a certificate has to be renewed, and tell by whom; nothing is changed here.

    A hospital has no certificate of its own, and its keys do not end: what ends are the server's
    certificate and the federation's CA, which the operator renews. The membership is asked for too.
    The exit code is 1 where a certificate ends within 30 days, or this hospital is no member.
    """
    opened = open_site(site)
    membership = ask_membership(opened)
    ca = _ends(opened)
    left = (ca - datetime.now(UTC)) // timedelta(days=1)
    tls = _tls_check(opened)
    show(
        output_format,
        {
            "state": membership.state,
            "peers": len(membership.peer_names),
            "ca_days_left": left,
            "server": {"state": tls.state, "said": tls.said},
        },
        (
            f"Membership      {membership.state}, with {len(membership.peer_names)} peer(s)",
            f"Federation's CA until {ca:%Y-%m-%d}, {left} days",
            f"Server          {tls.said}",
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
    site: SiteOption = DEFAULT_SITE,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    output_format: FormatOption = Format.TEXT,
) -> None:
    """Remove this hospital's keys, so that nobody can speak for it any more.

    What was answered and charged stays known: journal, ledger and audit log are kept. Tell the
    operator, who revokes.
    """
    opened = open_site(site)
    name = opened.settings.federation
    if not (yes or ask(f"Remove the keys of {opened.settings.party} in {name} for good?")):
        raise NotConfirmedError("a person must agree to leave", "no")
    try:
        with opened_records(opened) as noted:
            noted.database.become_node()  # a node that runs has the keys in its memory
            noted.records.note_left(by=decider(None))
    except JournalLockedError:
        raise
    except PartyError as error:  # whoever must leave can
        tell(f"That you leave could not be put on record: {error.code}")
    opened.remove_keys()
    show(
        output_format,
        {"site": str(opened.folder), "federation": name, "keys": "removed"},
        (
            f"The keys are gone: {opened.settings.party} has left {name}.",
            "Journal, ledger, audit log, settings and teachers are kept. Ask the operator to "
            "revoke this hospital.",
        ),
    )


# Joining ----------------------------------------------------------------------------------------


def _read_invitation(path: Path) -> Invitation:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_INVITATION_BYTES + 1)
    except OSError as error:
        raise UsageError("INVITE must be a readable file", error.strerror) from error
    try:
        return Invitation.from_json(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InvitationError("an invitation must be as it was made", "other bytes") from error


def _compare(invitation: Invitation, compared: str | None) -> None:
    if compared is not None:
        if not is_same(invitation.fingerprint, compared):
            raise WordsDifferError(
                "the words that the operator read must be this invitation's", "others"
            )
        return
    tell(f"Federation {invitation.federation}, at {invitation.address}.")
    tell("Telephone the operator, on a number that did not come with the invitation, and compare:")
    tell(f"  {spoken(invitation.fingerprint)}")
    if not ask("Did the operator read the same 12 words?"):
        raise NotConfirmedError("the words must be compared before anything is made", "no")


def _site_for(folder: Path, invitation: Invitation) -> Site:
    """Make the site, or go on with one whose request did not get through."""
    if not (folder / SETTINGS_FILE).exists():
        if invitation.expires_at <= time.time():
            raise EnrollmentError(
                "an invitation must be used in time: ask for another",
                f"one that ended on {_minute(invitation.expires_at)}",
            )
        return Site.create(folder, invitation)
    known = Site.open(folder)
    is_same_one = (
        known.settings.party == invitation.party
        and known.settings.address == invitation.address
        and known.fingerprint_of_federation == invitation.fingerprint
        and known.has_keys
    )
    if not is_same_one:
        raise SiteError(
            "a site is of one hospital in one federation: take another --site, or remove the "
            "folder first if it was never approved there",
            f"the folder of {known.settings.party} in {known.settings.federation}, at "
            f"{known.settings.address}: {folder}",
        )
    return known


def _remove_unused(folder: Path) -> None:
    """Remove a folder that we made just now: the coordinator knows none of its keys."""
    try:
        shutil.rmtree(folder)
    except OSError as error:
        tell(f"Remove {folder} by hand ({error.strerror}): its keys are nobody's.")
    else:
        tell(f"The coordinator took nothing: the new folder {folder} is removed again.")


def _node(site: Site) -> tuple[Status | None, str]:
    """Return how the node stands; else why that cannot be read: the node may be of another age."""
    try:
        return read_status(site.path(STATUS_FILE)), ""
    except ServiceError as error:
        return None, f"not known ({error.code}): {error}; the node writes it anew"


def _node_state(node: Status, answer: Membership | EnrollmentError | None) -> str:
    """Say how the node stands: itself it knows no more than that its SuperNode runs."""
    now = time.time()
    if not node.is_alive(now=now):  # whoever was killed could not say so
        return "stopped"
    if node.state not in ("ready", "paused"):
        return node.state
    if isinstance(answer, Membership) and answer.state != "member":
        return "not let in"
    if isinstance(answer, EnrollmentError):
        return "not let in" if answer.is_refusal else "not connected"
    return "not connected" if now - node.heard_at > SILENT_S else node.state


def _node_lines(node: Status | None, state: str) -> tuple[str, ...]:
    if node is None:
        return ("Node            never started: pate-party start",)
    lines = [f"Node            {state}, {node.tasks} task(s) ready"]
    if state == "not connected":
        heard = f"{_minute(node.heard_at)}" if node.heard_at else "not since the start"
        lines.append(f"Last heard      {heard}")
    if state not in ("ready", "stopped") and node.supernode_starts > 1:
        lines.append(
            f"SuperNode       started {node.supernode_starts} times: log/supernode.log says why it "
            "ended"
        )
    if node.run:
        lines.append(
            f"Run             {node.run[:16]}: {node.batches_answered} batch(es) answered, "
            f"{node.batches_refused} refused since the start"
        )
    if node.waiting:
        lines.append(f"Waiting         {node.waiting} for a person: pate-party approve")
    if node.last_refusal:
        lines.append(f"Last refusal    {node.last_refusal}")
    if node.last_fault:
        lines.append(f"Last fault      {node.last_fault}, {_minute(node.last_fault_at)}")
    if node.trouble:
        lines.append(f"Trouble         {node.trouble}")
    return tuple(lines)


def _pause_words(by: str, at: float) -> str:
    return f"since {_minute(at)}, by {by}: pate-party resume goes on"


def _minute(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"


# Standing ---------------------------------------------------------------------------------------


def _ask(site: Site) -> Membership | EnrollmentError | None:
    """Ask the coordinator, if there is a key to ask with."""
    if not site.has_keys:
        return None
    try:
        return ask_membership(site)
    except EnrollmentError as error:
        return error


def _reason(answer: Membership | EnrollmentError | None) -> str:
    """Say why the membership is not known; empty if it is."""
    if answer is None:
        return "left: there are no keys"
    if isinstance(answer, EnrollmentError):
        return f"not known: {answer.code}: {one_line(str(answer))}"
    return ""


def _decided(site: Site) -> tuple[int | None, tuple[str, float] | None]:
    """Return how many peers were checked, and who paused the site and when."""
    try:
        with opened_records(site) as opened:
            return len(opened.records.pins()), opened.records.paused()
    except PartyError:  # what is wrong with the database, the troubles say
        return None, None


def _troubles(site: Site, answer: Membership | EnrollmentError | None) -> list[Check]:
    from party.doctor import OK, Surroundings, examine_standing  # noqa: PLC0415 - see _tls_check

    def answered(_: Site) -> Membership:
        if isinstance(answer, Membership):
            return answer
        raise answer or EnrollmentError("a site must have keys to ask", "none")

    around = Surroundings(membership=answered)
    return [check for check in examine_standing(site, around) if check.state != OK]


def _tls_check(site: Site) -> Check:
    from party.doctor import Surroundings, check_network  # noqa: PLC0415 - keeps --help fast

    return next(check for check in check_network(site, Surroundings()) if check.name == "tls")


def _ends(site: Site) -> datetime:
    try:
        content = site.path("ca.crt").read_bytes()
        return x509.load_pem_x509_certificate(content).not_valid_after_utc
    except (OSError, ValueError) as error:
        raise SiteError("ca.crt must be a certificate", type(error).__name__) from error
