"""Flower's SuperNode as a process of its own that ends with its parent.

The parent holds our standard input open: when that closes, whatever killed the parent, nothing of
the party is left that could be taken for a party.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from flwr.supernode.cli.flower_supernode import flower_supernode


def main() -> None:
    """Run it with the arguments of the command line, which `party.flower_runtime` makes."""
    threading.Thread(target=_follow_parent, daemon=True).start()
    flower_supernode()


def _follow_parent() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
