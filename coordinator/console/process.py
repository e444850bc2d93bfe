"""The console's process beside a service: `pate-fed serve --console` keeps it, and it ends with it.

`python -P -m coordinator.console.process HOME HOST PORT` is started by `coordinator.cli.people`.
"""

from __future__ import annotations

import logging
import sys
from contextlib import closing
from pathlib import Path

from coordinator.console.server import serve
from coordinator.errors import CoordinatorError
from coordinator.operator import Coordinator
from pate_fed.nodes.kept_child import become_child

_log = logging.getLogger(__name__)


def main() -> None:
    """Serve until our parent ends."""
    become_child("coordinator")
    folder, host, port = sys.argv[1:]
    try:
        with closing(Coordinator.open(Path(folder))) as coordinator:
            serve(coordinator, host=host, port=int(port))
    except CoordinatorError as error:
        _log.error("[%s] %s", error.code, error)
        sys.exit(1)


if __name__ == "__main__":
    main()
