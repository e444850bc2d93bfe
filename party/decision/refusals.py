"""The refusals on record: each once, and a limited number per day.

The coordinator can offer any number of different runs: its offers must not fill the hospital's
disk. A refusal without a record is still a refusal.
"""

from __future__ import annotations

from enum import StrEnum

from party.storage import SiteAuditLog
from party.storage.site_audit_log import SiteAct
from pate_fed.nodes.audit_log import Facts
from protocols.values import digest_of_values

MOST_A_DAY = 100
"""Further refusals of one day leave one record for all."""

_DAY_S = 86_400
_LABEL = "refusal on record"
_KINDS = (SiteAct.RUN_REFUSED, SiteAct.BATCH_REFUSED)


class Refusals:
    """The refusals in a site's audit log.

    Raises:
        StorageError, BrokenAuditLogError: it cannot be read.
    """

    def __init__(self, log: SiteAuditLog) -> None:
        self._log = log
        self._known: set[bytes] = set()
        self._day = self._today = 0
        for record in log.entries():
            if record.act in _KINDS:
                self._count(_digest(record.act, record.facts), at=record.at / 1000)
            elif record.act is SiteAct.REFUSALS_LEFT_OUT:
                self._count(b"", at=record.at / 1000)

    def note(self, kind: SiteAct, detail: Facts, *, at: float) -> None:
        """Put a refusal on record, unless it is there already or the day is full.

        Raises:
            StorageError: it could not be stored.
        """
        digest = _digest(kind, detail)
        if digest in self._known:
            return
        today = self._today if self._day == _day_of(at) else 0
        if today < MOST_A_DAY:
            self._log.append(kind, detail, at=at)
            self._count(digest, at=at)
        elif today == MOST_A_DAY:
            self._log.append(SiteAct.REFUSALS_LEFT_OUT, {"after": MOST_A_DAY}, at=at)
            self._count(b"", at=at)

    def _count(self, digest: bytes, *, at: float) -> None:
        if self._day != _day_of(at):
            self._day, self._today = _day_of(at), 0
        self._today += 1
        if digest:
            self._known.add(digest)


def _digest(kind: StrEnum, detail: Facts) -> bytes:
    return digest_of_values(_LABEL, [kind.value, dict(detail)])


def _day_of(at: float) -> int:
    return int(at // _DAY_S)
