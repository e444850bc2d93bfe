"""An approval from the page: teachers are trained beside it, for that takes minutes."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, replace

from party.decision.proposals import Request
from party.errors import TeachersError, fault_line, fault_of
from party.owner import OpenSite
from party.site.people_decisions import require_decision

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ApprovalInWork:
    """How the last approval of this page stands; `total` is 0 before a teacher is trained."""

    digest: str
    done: int = 0
    total: int = 0
    is_over: bool = False
    fault: str = ""


class Approvals:
    """Approves one request after another, each in a thread of its own; keeps the newest."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.newest: ApprovalInWork | None = None

    def start(self, opened: OpenSite, request: Request, *, by: str, reason: str) -> None:
        """Begin an approval of a request without fault, one at a time; returns at once."""
        require_decision(by=by, reason=reason)
        request.require_no_fault()
        with self._lock:
            if self.newest is not None and not self.newest.is_over:
                raise TeachersError("one approval must be in work at a time: wait a minute")
            self.newest = ApprovalInWork(request.approval.digest.hex())

        def work() -> None:
            fault = ""
            try:
                opened.approve(request, by=by, reason=reason, tell=self._tell)
            except Exception as error:
                fault = fault_line(fault_of(error))
                _log.error("an approval failed: %s", fault)
            self._change(is_over=True, fault=fault)

        threading.Thread(target=work, name="approval", daemon=True).start()

    def _tell(self, done: int, total: int) -> None:
        self._change(done=done, total=total)

    def _change(self, **changes: object) -> None:
        with self._lock:
            assert self.newest is not None
            self.newest = replace(self.newest, **changes)  # type: ignore[arg-type]
