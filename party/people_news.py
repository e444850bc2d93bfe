"""What this hospital's people are told by message: a run or a pool waits for their decision."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial

from party.owner import OpenSite, opened_records
from party.site.people_decisions import Approval, ApprovalState, Subject
from party.site.site import Site
from pate_fed.nodes.notices import Notice, Notifier
from pate_fed.nodes.terminal import minute
from pate_fed.wording import epsilon_text


def tell_people(site: Site, stopped: threading.Event) -> None:
    """Tell of all that begins to wait, until told to stop."""
    with opened_records(site) as opened:
        Notifier(
            site.settings.notify,
            site.folder,
            node=site.settings.party,
            look=partial(_waiting, opened),
        ).run(stopped)


def _waiting(opened: OpenSite) -> Iterator[Notice]:
    wanted = Subject.RUN if opened.site.settings.approval == "each run" else Subject.POOL
    for one in opened.decisions.approvals(ApprovalState.PENDING):
        if one.subject is wanted:
            key = f"{one.subject} {one.coordinator.hex()} {one.digest.hex()}"
            yield Notice(key, f"{one.subject} waits", partial(_words, opened, one))


def _words(opened: OpenSite, approval: Approval) -> tuple[str, list[str]]:
    """Say what is asked, by public facts alone; names and the purpose are the operator's words."""
    found = opened.proposal(approval)
    terms, cost, digest = found.terms, found.cost, approval.digest.hex()[:16]
    name = f"{approval.subject} {digest if terms is None else terms.name}"
    lines = [f"{found.federation} asks: {name}"]
    if terms is not None:
        lines.append(f"Purpose, in the operator's words: {terms.purpose or 'none stated'}")
    if cost is not None and terms is not None:
        unit = "patient" if terms.unit == "record" else "hospital"
        lines.append(
            f"Cost: epsilon {epsilon_text(cost.run_epsilon)} at most, at delta {cost.delta:g}, "
            f"for one {unit}"
        )
    lines += [
        f"Asked: {minute(approval.asked_at)}. A run waits for a day, if its operator set no other "
        "time.",
        f"Decide on this hospital's page, or by `pate-party approve {digest}`.",
    ]
    return f"{name} waits for your decision", lines
