"""This hospital's audit log at the command line: list, export, verify."""

from __future__ import annotations

import os

from party.cli.terminal import DEFAULT_SITE, SiteOption, decider, tell
from party.errors import JoinError, PartyUsageError
from party.owner import open_records
from party.site.site import Site
from pate_fed.nodes.audit_commands import (
    HeadOption,
    LastOption,
    OutOption,
    export_all,
    read_heads,
    show_newest,
    show_verified,
)
from pate_fed.nodes.command_line import Commands

audit_app = Commands("The log of this hospital's decisions and answers.")


@audit_app.command("list")
def list_entries(last: LastOption = 20, site: SiteOption = DEFAULT_SITE) -> None:
    """Show the newest entries: who did what, when, from where, before and after."""
    with open_records(site) as opened:
        show_newest(opened.log, last)


@audit_app.command()
def export(out: OutOption, site: SiteOption = DEFAULT_SITE) -> None:
    """Check the log, then write all entries to a new file. It holds names: keep it private."""
    from party.storage.site_audit_log import SiteAct  # noqa: PLC0415 - keeps --help fast

    with open_records(site) as opened:
        opened.log.verify()
        if os.path.lexists(out):
            raise PartyUsageError("--out must be a new file in an existing folder")
        what = {"what": "audit log", "to": str(out)}
        opened.decisions.state.note_taken(SiteAct.EXPORTED, what, by=decider(None))
        export_all(opened.log, out, fault=PartyUsageError)


@audit_app.command()
def verify(head: HeadOption = None, site: SiteOption = DEFAULT_SITE) -> None:
    """Check that no entry of the audit log was changed, moved or removed; print its head.

    This asks each coordinator for the newest head that it holds: a cut or rewritten log does not
    continue it. `--head` does the same for a head that you kept.
    """
    from party.storage.site_audit_log import sign_head  # noqa: PLC0415 - keeps --help fast

    kept = read_heads(head, fault=PartyUsageError)
    with open_records(site) as opened:
        known = _witnessed(opened.site)
        held = {one.name: known.get(one.name) for one in opened.site.current}
        keys = opened.site.identity if opened.site.has_keys else None
        show_verified(
            opened.log,
            [*kept, *known.values()],
            more={
                "signed": "" if keys is None else sign_head(*opened.log.end, keys).hex(),
                "witnessed": {name: one and one[0] for name, one in held.items()},
            },
            said=[
                f"Coordinator of {name} holds "
                f"{'no head: it was not compared' if one is None else f'of {one[0]} entries'}"
                for name, one in held.items()
            ],
        )


def _witnessed(site: Site) -> dict[str, tuple[int, bytes]]:
    from party.site.joining import ask_membership  # noqa: PLC0415
    from protocols.invitation import read_audit_head  # noqa: PLC0415 - keeps --help fast

    found: dict[str, tuple[int, bytes]] = {}
    for one in site.current if site.has_keys else ():
        try:
            frame = ask_membership(one).audit_head
        except JoinError as error:
            tell(f"The coordinator of {one.name} was not asked: {error.code}")
            continue
        if frame:
            head = read_audit_head(frame, site.identity.public)
            found[one.name] = head.records, head.head
    return found
