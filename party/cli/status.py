"""The state of this hospital, at the command line: the site, and each of its federations."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from party.cli.tally import tally_lines
from party.cli.terminal import DEFAULT_SITE, SiteOption
from party.errors import JoinError, NodeStartError, PartyError
from party.owner import open_site, opened_records, refused_for_tally, state_of_node
from party.site.joining import ask_membership
from party.site.membership import SiteMembership
from party.site.site import Site
from party.site.status_file import FILE as STATUS_FILE
from party.site.status_file import FederationStatus, Status, read_status
from party.site.tally_standing import TallyStanding
from pate_fed.nodes import one_line
from pate_fed.nodes.command_line import show
from pate_fed.nodes.terminal import minute
from pate_fed.wording import plural
from protocols.fingerprint_words import spoken
from protocols.membership_messages import Membership

if TYPE_CHECKING:
    from party.doctor import Check

SILENT_S: Final = 150.0
"""A node hears the coordinator every minute; it counts as silent after twice that and the time of
an answer.
"""


@dataclass(frozen=True, slots=True)
class _InFederation:
    """Our state in one federation.

    `answer` is its coordinator's, or the reason for none; None if it was not asked. `state` is the
    node's in it, as far as both tell; empty if it never ran.
    """

    joined: SiteMembership
    answer: Membership | JoinError | None
    node: FederationStatus | None
    state: str

    @property
    def membership(self) -> Membership | None:
        """The coordinator's answer, if it gave one."""
        return self.answer if isinstance(self.answer, Membership) else None

    @property
    def reason(self) -> str:
        """The reason why the membership is not known; empty if it is."""
        if self.answer is None:
            return "left: there are no keys"
        if isinstance(self.answer, JoinError):
            return f"not known: {self.answer.code}: {one_line(str(self.answer))}"
        return ""

    def record(self) -> dict[str, object]:
        """Return it for a program."""
        settings, membership = self.joined.settings, self.membership
        return {
            "name": self.joined.name,
            "federation": settings.federation,
            "party": settings.party,
            "coordinator": settings.address,
            "state": None if membership is None else membership.state,
            "reason": self.reason,
            "peers": None if membership is None else len(membership.peer_names),
            "tally": str(TallyStanding.of(settings, membership)),
            "node": self.state,
        }

    def lines(self, *, several: bool) -> tuple[str, ...]:
        """Return it for people."""
        settings, membership = self.joined.settings, self.membership
        called = f", here called {self.joined.name}" if several else ""
        peers = "?" if membership is None else str(len(membership.peer_names))
        return (
            f"Federation      {settings.federation}, at {settings.address}{called}",
            f"Called there    {settings.party}, beside {peers} peer(s)",
            f"Membership      {self.reason if membership is None else membership.state}",
            *tally_lines(TallyStanding.of(settings, membership)),
            *_lines_of_node(self.joined, self.node, self.state),
        )


def status(site: SiteOption = DEFAULT_SITE) -> None:
    """Show this hospital's state: memberships, data, teachers, peers, node."""
    opened = open_site(site)
    node, unread = _node(opened)
    federations = [_in_federation(one, node) for one in opened.memberships]
    settings = opened.settings
    checked, pause = _decided(opened)
    troubles = _troubles(opened, {one.joined.name: one.answer for one in federations})
    kept = list(opened.path("teachers").glob("[!.]*"))
    words = spoken(opened.identity.public.fingerprint) if opened.has_keys else ""
    several = len(federations) > 1
    state = "" if node is None else state_of_node(opened, node)
    show(
        {
            "site": str(opened.folder),
            "words": words,
            "federations": [one.record() for one in federations],
            "data": {"file": opened.data.file, "rows": opened.data.rows},
            "teachers": settings.teachers,
            "tasks_with_teachers": len(kept),
            "checked_peers": checked,
            "troubles": [asdict(one) for one in troubles],
            "paused": None if pause is None else {"by": pause[0], "at": pause[1]},
            "node": None if node is None else {**asdict(node), "state": state},
            "node_unread": unread,
        },
        (
            f"This hospital   {words or 'it has no keys any more'}",
            *(line for one in federations for line in one.lines(several=several)),
            f"Data            {opened.data.file or 'none: see pate-party data add'}",
            f"Teachers        none: {plural(settings.teachers, 'patient')} may vote"
            if settings.do_records_vote
            else f"Teachers        {settings.teachers}, trained for {len(kept)} task(s)",
            f"Checked peers   {'?' if checked is None else checked}",
            *(_node_lines(node, state) if not unread else (f"Node            {unread}",)),
            *(f"Waits           {said}" for said in refused_for_tally(opened)),
            *(() if pause is None else (f"Paused          {_pause_words(*pause)}",)),
            *(
                f"Trouble         {_of(one, several=several)}{one.name}: {one.said} {one.advice}"
                for one in troubles
            ),
        ),
    )


def _in_federation(joined: SiteMembership, node: Status | None) -> _InFederation:
    answer = _ask(joined)
    known = None if node is None else node.federations.get(joined.name)
    state = "" if node is None or known is None else _node_state(joined, node, known, answer)
    return _InFederation(joined, answer, known, state)


def _node(site: Site) -> tuple[Status | None, str]:
    """Return the node's status, or why it cannot be read: the node may have another version."""
    try:
        return read_status(site.path(STATUS_FILE)), ""
    except NodeStartError as error:
        return None, f"not known ({error.code}): {error}; the node writes it anew"


def _node_state(
    joined: SiteMembership,
    node: Status,
    known: FederationStatus,
    answer: Membership | JoinError | None,
) -> str:
    """Name the node's state in a federation: the node itself knows only that its SuperNode runs."""
    state = state_of_node(joined.site, node)
    if state not in ("running", "paused"):
        return state
    if known.state != "ready":
        return known.state
    if isinstance(answer, Membership) and answer.state != "member":
        return "suspended" if answer.state == "suspended" else "not let in"
    if isinstance(answer, JoinError):
        return "not let in" if answer.is_refusal else "not connected"
    if time.time() - known.heard_at > SILENT_S:
        return "not connected"
    return "paused" if state == "paused" else "ready"


def _lines_of_node(
    joined: SiteMembership, node: FederationStatus | None, state: str
) -> tuple[str, ...]:
    if node is None:
        return ()
    lines = [f"Connection      {state}"]
    if state == "not connected":
        heard = minute(node.heard_at) if node.heard_at else "not since the start"
        lines.append(f"Last heard      {heard}")
    if state not in ("ready", "stopped") and node.supernode_starts > 1:
        lines.append(
            f"SuperNode       started {node.supernode_starts} times: "
            f"log/{joined.supernode_log.name} says why it ended"
        )
    if node.run:
        lines.append(
            f"Run             {node.run[:16]}: {node.batches_answered} batch(es) answered, "
            f"{node.batches_refused} refused since the start"
        )
        lines.append(
            f"Transcript      head {node.transcript_head[:16]}: the same at every hospital"
        )
    if node.last_refusal:
        lines.append(f"Last refusal    {node.last_refusal}")
    if node.last_fault:
        lines.append(f"Last fault      {node.last_fault}, {minute(node.last_fault_at)}")
    return tuple(lines)


def _node_lines(node: Status | None, state: str) -> tuple[str, ...]:
    if node is None:
        return ("Node            never started: pate-party start",)
    lines = [f"Node            {state}, {node.tasks} task(s) ready"]
    if node.waiting:
        lines.append(f"Waiting         {node.waiting} for a person: pate-party approve")
    if state == "silent":
        lines.append(f"Last said       {minute(node.at)}: it is busy, or it cannot store")
    if node.trouble:
        lines.append(f"Trouble         {node.trouble}")
    return tuple(lines)


def _pause_words(by: str, at: float) -> str:
    return f"since {minute(at)}, by {by}: pate-party resume goes on"


def _of(check: Check, *, several: bool) -> str:
    return f"{check.federation}, " if several and check.federation else ""


def _ask(joined: SiteMembership) -> Membership | JoinError | None:
    if not joined.site.has_keys or joined.has_left:
        return None
    try:
        return ask_membership(joined)
    except JoinError as error:
        return error


def _decided(site: Site) -> tuple[int | None, tuple[str, float] | None]:
    """Return how many peers were checked, and who paused the site and when."""
    try:
        with opened_records(site) as opened:
            return len(opened.decisions.pins()), opened.decisions.state.paused()
    except PartyError:  # the troubles name the database's fault
        return None, None


def _troubles(site: Site, answers: Mapping[str, Membership | JoinError | None]) -> list[Check]:
    from party.doctor import OK, PartyProbes, examine_standing  # noqa: PLC0415 - slow to load

    def answered(joined: SiteMembership) -> Membership:
        answer = answers[joined.name]
        if isinstance(answer, Membership):
            return answer
        raise answer or JoinError("a site must have keys to ask")

    around = PartyProbes(membership=answered)
    return [check for check in examine_standing(site, around) if check.state != OK]
