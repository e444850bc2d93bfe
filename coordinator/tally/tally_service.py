"""The service of `pate-fed tally serve`: one process for a folder, until it is told to end."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from coordinator.certificates import days_left
from coordinator.errors import CertificateError, DatabaseError
from coordinator.tally.book import TallyBook
from coordinator.tally.tally_folder import TallyFolder
from coordinator.tally.tally_server import TallyServer
from pate_fed.nodes import facts

_ERASE_S: Final = 3600
_ENDS: Final = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})

_log = logging.getLogger(__name__)


def serve_tally(folder: Path, *, on_ready: Callable[[int], None] = lambda _: None) -> None:
    """Serve a tally until the process is told to end; call `on_ready` with its port at the start.

    Call it in the main thread of a process that does nothing else: signals are its own.

    Raises:
        TallySetupError: a file of its folder cannot be read, or others may read its keys.
        CertificateError: its certificate has ended: the coordinator would not trust it.
        ServiceError: another service has the folder, or the port is taken.
        DatabaseError: its database is gone or damaged.
    """
    opened = TallyFolder.open(folder.absolute())
    key, coordinator = opened.key, opened.coordinator
    if days_left(key.certificate, now=datetime.now(UTC)) <= 0:
        raise CertificateError("the tally's certificate must be valid", "one that has ended")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
    with ExitStack() as ending:
        ending.callback(signal.pthread_sigmask, signal.SIG_SETMASK, before)
        ending.callback(os.close, opened.lock())
        database = ending.enter_context(closing(opened.database()))
        book = TallyBook(
            database,
            identity=opened.identity,
            coordinator=coordinator.identity,
            clock=time.time,
        )
        server = TallyServer(
            book,
            key=key,
            client=coordinator.certificate.encode(),
            host=opened.settings.host,
            port=opened.settings.port,
        )
        server.start()
        ending.callback(server.stop)
        _log.info("the tally of %s is served", coordinator.federation, extra=facts("served"))
        on_ready(server.port)
        while True:
            _erase(book, days=opened.settings.audit_days)
            if signal.sigtimedwait(_ENDS, _ERASE_S) is not None:
                return


def _erase(book: TallyBook, *, days: int) -> None:
    try:
        erased = book.erase_ended(days=days)
    except DatabaseError as error:
        _log.warning("ended runs could not be erased: %s", error.code)
        return
    if erased:
        _log.info("keys of %d ended runs are erased", erased, extra=facts("erased", keys=erased))
