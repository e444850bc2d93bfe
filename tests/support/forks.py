"""The server from which tests fork processes. Python keeps one of them, with one list to load."""

from __future__ import annotations

from multiprocessing import get_context

FORKS = get_context("forkserver")

_VICTIMS = ("tests.support.database_victim", "tests.support.storage_victim")
_FEDERATIONS = (
    "tests.support.process_federation",
    "tests.support.known_prices",
    # The product loads these once a run ends, which is in every life of a coordinator.
    *("skops.io", "matplotlib.figure", "scipy.optimize", "pydantic_settings"),
)


def load_before_forking(*, federations: bool) -> None:
    """Say what is loaded before the first fork.

    Args:
        federations: Whether whole federations of processes will be forked: that takes seconds.
    """
    FORKS.set_forkserver_preload([*_VICTIMS, *(_FEDERATIONS if federations else ())])
