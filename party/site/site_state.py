"""How a site stands: paused or not, its settings, its memberships; each change is on record once.

A change and its record in the audit log are one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Connection, Row, bindparam, select

from party.errors import ApprovalError, StorageDamagedError
from party.storage import PartyDatabase, SiteAuditLog
from party.storage.site_audit_log import SiteAct
from party.storage.site_schema import SiteStateRow
from pate_fed.nodes.audit_log import Fact
from pate_fed.nodes.database import put
from protocols.identity import PublicIdentity

_PAUSE, _MEMBERSHIP, _WITNESS = "pause", "membership ", "witness"
_NOTE = select(SiteStateRow).where(SiteStateRow.name == bindparam("name"))


class SiteState:
    """What holds at a site, in its database. Without a person's name, no decision is noted."""

    def __init__(
        self,
        database: PartyDatabase,
        *,
        clock: Callable[[], float],
        origin: str = "command line",
    ) -> None:
        self._database = database
        self._log = SiteAuditLog(database)
        self._clock = clock
        self._origin = origin

    def pause(self, *, by: str) -> None:
        """Refuse everything new from now on."""
        require_somebody(by)
        self._note(SiteAct.PAUSED, _PAUSE, "paused", {}, by=by)

    def resume(self, *, by: str) -> None:
        """Take part again."""
        require_somebody(by)
        self._note(SiteAct.RESUMED, _PAUSE, "resumed", {}, by=by)

    def paused(self) -> tuple[str, float] | None:
        """Return who paused the site, and when in Unix seconds; None where it is not paused."""
        with self._database.transaction() as connection:
            row = _note_in(connection, _PAUSE)
            return (row.changed_by, row.changed_at) if row and is_paused(connection) else None

    def note_page(self, *, by: str) -> None:
        """Put on record that somebody opened the hospital's page."""
        require_somebody(by)
        self._note(SiteAct.PAGE_OPENED, "page", "opened", {}, by=by, is_decision=True)

    def note_table(self, digest: str, *, by: str | None = None, data_set: str = "") -> None:
        """Put on record that another table is registered; by nobody where the node finds it."""
        if by is not None:
            require_somebody(by)
        if digest:
            detail: dict[str, Fact] = {"digest": bytes.fromhex(digest)}
            if data_set:
                detail["data_set"] = data_set
            # The node may find it in use before its person is noted.
            is_decision = by is not None
            self._note(
                SiteAct.DATA_CHANGED,
                f"table {data_set}".rstrip(),
                digest,
                detail,
                by=by or "",
                is_decision=is_decision,
            )

    def note_taken(self, kind: SiteAct, detail: Mapping[str, Fact], *, by: str) -> None:
        """Put on record that somebody takes something out of the site, before they have it."""
        require_somebody(by)
        self._log.append(kind, {**detail, "by": by, "from": self._origin}, at=self._clock())

    def note_settings(self, *, file: bytes) -> None:
        """Put on record which settings hold, by their file's digest, if they are others."""
        self._note(SiteAct.SETTINGS_CHANGED, "settings", file.hex(), {"digest": file})

    def note_rule(self, rule: str, value: str, *, file: bytes, by: str, before: str = "") -> None:
        """Put on record that somebody set a rule in the settings, whose `file` has a digest."""
        require_somebody(by)
        detail: dict[str, Fact] = {
            "digest": file,
            "rule": rule,
            "value": value,
            "before": before,
            "after": value,
        }
        self._note(
            SiteAct.SETTINGS_CHANGED, "settings", file.hex(), detail, by=by, is_decision=True
        )

    def note_joined(self, membership: str, *, federation: bytes, identity: PublicIdentity) -> None:
        """Put on record which federation this hospital asked to join, and as whom."""
        self._note(
            SiteAct.JOINED,
            _MEMBERSHIP + membership,
            f"joined {federation.hex()} as {identity.fingerprint.hex()}",
            {
                "membership": membership,
                "federation": federation,
                "fingerprint": identity.fingerprint,
            },
        )

    def note_left(self, membership: str, *, by: str) -> None:
        """Put on record that the keys of a membership are about to be removed."""
        detail: dict[str, Fact] = {"membership": membership}
        self._note(SiteAct.LEFT, _MEMBERSHIP + membership, "left", detail, by=by)

    def note_halt(self, counter: int) -> None:
        """Put on record that the journal stopped, because somebody saw a later one."""
        self._note(SiteAct.JOURNAL_HALTED, "halt", str(counter), {"counter": counter})

    def note_witness(self, count: int, head: bytes) -> None:
        """Put on record that the coordinator holds a head that our log does not continue."""
        value = f"{count}:{head.hex()}"
        detail: dict[str, Fact] = {"records": count, "head": head}
        self._note(SiteAct.CONTRADICTED, _WITNESS, value, detail)

    def witness(self) -> tuple[tuple[int, bytes], ...]:
        """Return the head, if any, that contradicts our audit log: records, link of the last."""
        with self._database.transaction() as connection:
            return witness_in(connection)

    def _note(
        self,
        kind: SiteAct,
        name: str,
        value: str,
        detail: Mapping[str, Fact],
        *,
        by: str = "",
        is_decision: bool = False,
    ) -> None:
        """Put a change on record; a decision is one though nothing changes by it."""
        with self._database.transaction() as connection:
            row = _note_in(connection, name)
            if row is not None and row.value == value and not is_decision:
                return
            at = self._clock()
            new = {"name": name, "value": value, "changed_by": by, "changed_at": at}
            put(connection, SiteStateRow, new)
            known: dict[str, Fact] = {"before": "" if row is None else row.value, "after": value}
            self.record(connection, kind, {**known, **detail}, at=at, by=by)

    def record(
        self,
        connection: Connection,
        act: SiteAct,
        facts: Mapping[str, Fact],
        *,
        at: float,
        by: str = "",
    ) -> None:
        """Put an act on record in a transaction, and by whom and from where if it is a person's."""
        who: dict[str, Fact] = {"by": by, "from": self._origin} if by else {}
        self._log.append(act, {**facts, **who}, at=at, connection=connection)


def require_somebody(by: str) -> None:
    """Refuse a decision that nobody answers for."""
    if not (by.strip() and by.isprintable()):
        raise ApprovalError("a decision must be somebody's")


def is_paused(connection: Connection) -> bool:
    """Tell whether the site takes no part for now."""
    row = _note_in(connection, _PAUSE)
    return row is not None and row.value != "resumed"  # an unreadable value is a pause


def witness_in(connection: Connection) -> tuple[tuple[int, bytes], ...]:
    """Return the head, if any, that contradicts our audit log: records, link of the last."""
    row = _note_in(connection, _WITNESS)
    if row is None:
        return ()
    count, _, head = row.value.partition(":")
    try:
        return ((int(count), bytes.fromhex(head)),)
    except ValueError as error:
        raise StorageDamagedError("a head must be as it was noted") from error


def _note_in(connection: Connection, name: str) -> Row[Any] | None:
    return connection.execute(_NOTE, {"name": name}).one_or_none()
