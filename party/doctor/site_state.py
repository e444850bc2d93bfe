"""Checks of the site's state: its database, membership, peers, CA, approvals."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from party.doctor.probes import PartyProbes
from party.errors import (
    CANNOT_STORE,
    BrokenSiteLogError,
    JoinError,
    PartyError,
    Reason,
    RecordError,
    SiteError,
    StorageError,
    code_of,
    fault_of,
)
from party.site.evaluations import task_of
from party.site.membership import MEMBERSHIPS_FOLDER, SiteMembership
from party.site.people_decisions import Approval, ApprovalState, PeopleDecisions
from party.site.site import SETTINGS_FILE, Site
from party.site.status_file import FILE, known_status
from party.site.tally_standing import TallyStanding
from party.site.tasks import read_task
from party.site.training import folder_of, require_bound
from party.storage import SiteAuditLog, read_ledger
from pate_fed.evaluation_task import EvaluationTask
from pate_fed.nodes.checks import Finding, fail, ok, warn
from pate_fed.nodes.notices import check_notices
from pate_fed.terms import RunTerms
from pate_fed.wording import plural
from protocols.errors import RestoredJournalError
from protocols.forms import FORMS
from protocols.values import decode_value

FEW_DAYS = 30
_NEVER_BACK = "Do not start a node on it: see the page on backing up and restoring."


def check_database(site: Site, around: PartyProbes) -> Finding:
    """Open the database, check audit log and budget, and look whether somebody saw a later one."""
    budget = site.settings.new_ledger()
    try:
        with site.open_database() as database:
            decided = PeopleDecisions(database, clock=around.clock).decided()
            SiteAuditLog(database).verify()
            ledger = read_ledger(database, budget=budget)
    except BrokenSiteLogError as error:
        said = f"The audit log was changed from record {error.number} on ({error.code})."
        return fail(said, "Keep the file as it is, and ask who could write it.")
    except PartyError as error:
        said = f"The database cannot be used ({error.code}): {error}."
        return fail(said, "See the page on errors.")
    if replace(ledger, entries=()) != budget:
        said = (
            f"The budget for life is {ledger.budget_words} since the node's first start "
            f"({RecordError.code}), and party.toml has another."
        )
        return fail(said, f"Put these numbers back into {SETTINGS_FILE}.")
    if decided.contradicted_at is not None:
        said = (
            f"The coordinator holds our signature of {decided.contradicted_at} records, which the "
            f"audit log does not go on from ({BrokenSiteLogError.code})."
        )
        return fail(said, _NEVER_BACK)
    if decided.halted_at:
        said = f"The others saw a later journal of ours ({RestoredJournalError.code})."
        return fail(said, _NEVER_BACK)
    return ok("The database can be used, and its audit log is unbroken.")


def check_storing(site: Site, around: PartyProbes) -> Finding:
    """Look whether anything can be stored, here and by the node that runs."""
    advice = (
        "Free the disk or make it writable. Until then the node answers nothing and is charged "
        "nothing; then it goes on by itself."
    )
    try:
        around.require_room(site)
    except StorageError as error:
        if error.code not in CANNOT_STORE:
            said = f"Not looked at: the database cannot be used ({error.code})."
            return warn(said, "See above.")
        said = f"Nothing can be stored where the site's folder is ({error.code}): {error}."
        return fail(said, advice)
    node = known_status(site.path(FILE))
    if node is None or node.state == "stopped":
        return ok("The node's records can be stored.")
    if node.is_alive(now=around.clock()):
        if node.trouble in CANNOT_STORE:
            said = f"The node cannot store its records ({node.trouble})."
            return fail(said, advice)
    elif around.has_node(site):
        since = f"{datetime.fromtimestamp(node.at, UTC):%Y-%m-%d %H:%M} UTC"
        said = f"The node runs, and has not written how it stands since {since}."
        return warn(said, f"It is busy, or it cannot store. {advice}")
    return ok("The node's records can be stored.")


def check_membership(joined: SiteMembership, around: PartyProbes) -> Finding:
    """Look whether there are keys, and ask the coordinator; else read its last answer."""
    if joined.has_left and joined.site.current and joined.site.has_keys:
        said = (
            f"This hospital left {joined.settings.federation}. If nobody decided so, put its "
            "node's keys back from your safe."
        )
        return ok(said)
    if joined.has_left or not joined.site.has_keys:
        said = "This hospital left the federation: its keys are gone."
        return fail(said, "If nobody left, put identity.key back; else join anew.")
    if joined.missing_keys:
        said = f"{MEMBERSHIPS_FOLDER}/{joined.name} has no {' and no '.join(joined.missing_keys)}."
        return fail(said, "Put it back from the copy in your safe.")
    try:
        _ = joined.node_public_key
    except SiteError as error:
        return fail(f"{error}.", "The node is let in by this key alone.")
    try:
        answer = around.membership(joined)
        return _check_state(answer.state)
    except JoinError as error:
        if error.is_refusal:
            said = f"The coordinator does not know this hospital ({error.code})."
            advice = (
                "Ask the operator for another invitation, and join with it in this same site, also "
                "if the federation was made anew."
            )
            return fail(said, advice)
    status = known_status(joined.site.path(FILE))
    known = None if status is None else status.federations.get(joined.name)
    state = "" if known is None else known.membership
    if not state:
        said = "The coordinator could not be asked whether this hospital is a member."
        return warn(said, "Look at the way to it first: `pate-party doctor`.")
    return _check_state(state)


def _check_state(state: str) -> Finding:
    if state == "revoked":
        said = "The coordinator revoked this hospital's membership."
        return fail(said, "Ask the operator; an identity never comes back.")
    if state == "suspended":
        said = "The operator suspended this hospital: it is asked nothing for now."
        return warn(said, "Ask the operator why, and until when.")
    if state == "requested":
        said = "The operator did not approve this hospital yet: its node is not let in."
        advice = (
            "Telephone the operator, and read your 12 words aloud (`pate-party status` shows them)."
        )
        return warn(said, advice)
    return ok("This hospital is a member.")


def check_peers(joined: SiteMembership, around: PartyProbes) -> Finding:
    """Count whom our people checked, as the guard does: bodies, not ours or the operator's."""
    site, operator_body = joined.site, joined.settings.operator_body
    try:
        policy = site.settings.policy_for(frozenset())
        with site.open_database() as database:
            pins = PeopleDecisions(database, clock=around.clock).pins()
    except PartyError as error:
        said = f"Checked peers cannot be counted ({error.code}): {error}."
        return fail(said, "Mend party.toml or the database first.")
    bodies = len(policy.other_bodies((pin.body for pin in pins), operator_body=operator_body))
    least = max(2, policy.least_checked_peers)
    owners = plural(bodies, "other owner")
    if all(FORMS[name].adds_noise for name in policy.forms):
        return ok(f"Checked hospitals have {owners}; verified runs need none.")
    aggregators = joined.settings.aggregators
    if aggregators.tally is not None and not aggregators.fault:
        said = f"Checked hospitals have {owners}; verified runs need none, others {least}."
        return ok(said)
    said = f"Checked hospitals have {owners}; a run needs {least} different ones."
    if bodies < least:
        advice = (
            f"Telephone peers, at a terminal with `pate-party peers check`: else runs are refused "
            f"({Reason.UNCHECKED_PEERS.value}). Your owner changes the number by "
            "`pate-party policy set least_checked_peers`."
        )
        return warn(said, advice)
    return ok(said)


def check_tally(joined: SiteMembership, around: PartyProbes) -> Finding:
    """Compare the pinned tally with the one that the coordinator names, and the owners."""
    membership = None
    if joined.site.has_keys and not joined.has_left:
        with suppress(JoinError):
            membership = around.membership(joined)
    standing = TallyStanding.of(joined.settings, membership)
    if standing.waiting is not None:
        said = f"Tally: {standing}."
        advice = (
            "Telephone the tally's own people, and compare its 12 words: `pate-party tally`. Until "
            f"then verified runs are refused ({Reason.TALLY.value})."
        )
        return warn(said, advice)
    if standing.pinned is None:
        return ok("No tally is known here.")
    if fault := joined.settings.aggregators.fault:
        said = f"The tally is {standing}. {fault}"
        return warn(said, f"Until then verified runs are refused ({Reason.TALLY.value}).")
    return ok(f"Tally: {standing}")


def check_certificate(joined: SiteMembership, around: PartyProbes) -> Finding:
    """Look how long the federation's CA holds."""
    try:
        ends = joined.ca_ends
    except SiteError as error:
        said = f"ca.crt cannot be read ({error.got})."
        return fail(said, "Put it back as the invitation brought it.")
    said = f"The federation's CA holds until {ends:%Y-%m-%d}."
    left = ends - datetime.fromtimestamp(around.clock(), UTC)
    if left <= timedelta(0):
        return fail(said, "The operator has to make a new federation: join that in this same site.")
    if left < timedelta(days=FEW_DAYS):
        return warn(said, "Tell the operator that it ends soon.")
    return ok(said)


def check_tasks(site: Site, around: PartyProbes) -> Finding:
    """Look whether every pool that was approved can be answered, here and by the node that runs."""
    try:
        with site.open_database() as database:
            pools = PeopleDecisions(database, clock=around.clock).decided().pools
    except PartyError as error:
        said = f"The approvals cannot be read ({error.code})."
        return fail(said, "Mend the database first.")
    found = {pool: _why_unready(site, pool) for pool in sorted(pools)}
    unready = {pool: why for pool, why in found.items() if why}
    if unready:
        listed = ", ".join(f"{pool.hex()[:16]} ({why})" for pool, why in unready.items())
        said = f"{len(unready)} of {len(pools)} approved pool(s) cannot be answered: {listed}."
        advice = (
            "The start trains teachers where there are none. For a code see the page on errors: "
            "until then every run on such a pool waits."
        )
        return warn(said, advice)
    node = known_status(site.path(FILE))
    trouble = node.trouble if node is not None and node.is_alive(now=around.clock()) else ""
    if trouble and trouble not in CANNOT_STORE:
        said = f"The node that runs has trouble ({trouble}), though the files here fit: runs wait."
        advice = (
            f"See the page on errors. If {SETTINGS_FILE} was changed since its start, restart it."
        )
        return warn(said, advice)
    return ok(f"There are teachers for all {len(pools)} approved pool(s).")


def _why_unready(site: Site, pool: bytes) -> str:
    """Say why an approved pool cannot be answered, as far as its files tell; "" if it can."""
    try:
        task = read_task(site, pool)
        if isinstance(task, EvaluationTask):
            task = task_of(site, task)
        if not site.settings.do_records_vote and not folder_of(site, task).is_dir():
            return "no teachers yet"
        require_bound(site, task)
    except Exception as error:  # a document of others: it hides no other pool
        return code_of(fault_of(error))
    return ""


def check_notifications(site: Site, around: PartyProbes) -> Finding:  # noqa: ARG001 - checks look alike
    """See `check_notices`."""
    return check_notices(site.settings.notify, site.folder)


def check_requests(site: Site, around: PartyProbes) -> Finding:
    """Look whether everything that waits for a person can be read."""
    try:
        with site.open_database() as database:
            records = PeopleDecisions(database, clock=around.clock)
            waiting = records.approvals(ApprovalState.PENDING)
    except PartyError as error:
        said = f"The requests cannot be read ({error.code})."
        return fail(said, "Mend the database first.")
    broken = [
        f"{one.subject.value} {one.digest.hex()[:16]} ({why})"
        for one in waiting
        for why in (_why_unread(site, one),)
        if why
    ]
    said = f"{plural(len(waiting), 'request')} for a person to decide on."
    if broken:
        said = f"{said} {len(broken)} cannot be read: {', '.join(broken)}."
        advice = "Reject it, or ask the operator. All others can be decided on."
        return warn(said, advice)
    return ok(said)


def _why_unread(site: Site, one: Approval) -> str:
    """Return the code of the fault of a request's terms or kept task; "" if it has none."""
    try:
        pool = one.digest
        if one.terms:
            pool = RunTerms.from_record(decode_value(one.terms)).pool_digest
        if site.path("pools", pool.hex()).exists():
            read_task(site, pool)
    except Exception as error:  # a document of others: it hides no other request
        return code_of(fault_of(error))
    return ""
