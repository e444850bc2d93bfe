"""The console's process beside a service: `pate-fed serve --console` keeps it, and it ends with it.

`python -P -m coordinator.console.process HOME HOST PORT` is started by `coordinator.cli.people`.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from contextlib import closing
from pathlib import Path

from coordinator.console.server import serve
from coordinator.errors import CoordinatorError
from coordinator.operator import Coordinator
from pate_fed.nodes import wait_for_parent_to_end, write_logs_as_json

_log = logging.getLogger(__name__)


def main() -> None:
    """Serve until our parent ends."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # our parent blocks signals
    write_logs_as_json("coordinator")
    threading.Thread(target=_follow_parent, daemon=True).start()
    folder, host, port = sys.argv[1:]
    try:
        with closing(Coordinator.open(Path(folder))) as coordinator:
            serve(coordinator, host=host, port=int(port))
    except CoordinatorError as error:
        _log.error("[%s] %s", error.code, error)
        sys.exit(1)


def _follow_parent() -> None:
    wait_for_parent_to_end()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
