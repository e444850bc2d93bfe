"""A PostgreSQL of one's own, on a socket in a folder that goes away with it."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, NullPool, create_engine
from sqlalchemy.exc import OperationalError

PATIENCE_S = 180
_USER = "pate"
ASKED = "asked"
"""A user whom the server asks for a password, if there is one of this name; others it believes."""

SHUT_OUT = "shut_out"
"""A user whom it lets in with none."""


def binaries() -> Path | None:
    """The folder of the newest PostgreSQL of this machine, if it has one."""
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).resolve().parent
    folders = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    return max(folders, key=lambda folder: float(folder.parent.name), default=None)


@dataclass
class Cluster:
    """A server that runs."""

    folder: Path
    _numbers: Iterator[int] = field(default_factory=count)

    def url(self, database: str = "postgres") -> str:
        return f"postgresql+psycopg://{_USER}@/{database}?host={self.folder}"

    def let_in(self, user: str, *, password: str) -> None:
        """Make a user that logs in."""
        engine = create_engine(self.url(), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.exec_driver_sql(f"DROP ROLE IF EXISTS {user}")
            connection.exec_driver_sql(f"CREATE ROLE {user} LOGIN PASSWORD '{password}'")
        engine.dispose()

    def new_database(self) -> str:
        """Make an empty database; return its URL."""
        name = f"test_{next(self._numbers)}"
        engine = create_engine(self.url(), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {name}")
        engine.dispose()
        return self.url(name)

    def new_schema(self) -> str:
        """Make an empty schema; return the URL of a database that begins in it.

        To us it is an empty database, which takes the server a hundred times as long.
        """
        name = f"test_{next(self._numbers)}"
        self._shared.exec_driver_sql(f"CREATE SCHEMA {name}")
        return f"{self.url()}&options=-csearch_path%3D{name}"

    @cached_property
    def _shared(self) -> Connection:
        return create_engine(self.url(), isolation_level="AUTOCOMMIT", poolclass=NullPool).connect()

    def close(self) -> None:
        """Let go of its connection."""
        if "_shared" in self.__dict__:
            self._shared.close()


@contextmanager
def running(bin_folder: Path) -> Iterator[Cluster]:
    """Start a server, as somebody who is not root: it refuses to be."""
    with tempfile.TemporaryDirectory(prefix="pg-") as name:
        folder = Path(name)
        run_as = _run_as(folder)
        data = folder / "data"
        make = [bin_folder / "initdb", "-D", data, "-U", _USER, "-A", "trust", "--no-sync"]
        make += ["-E", "UTF8", "--locale=C"]
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL, cwd=folder, **run_as)
        rules = data / "pg_hba.conf"
        believed = rules.read_text(encoding="utf-8")
        asked = f"local all {ASKED} scram-sha-256\nlocal all {SHUT_OUT} reject\n"
        rules.write_text(asked + believed, encoding="utf-8")
        # Nobody but us can reach it, and it need not survive a power cut.
        options = {
            "listen_addresses": "",
            "unix_socket_directories": str(folder),
            "fsync": "off",
            "autovacuum": "off",
            "logging_collector": "off",
        }
        flags = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen(
                [bin_folder / "postgres", "-D", data, *flags], stderr=log, cwd=folder, **run_as
            )
        try:
            cluster = Cluster(folder)
            _wait_for(cluster, server)
            yield cluster
            cluster.close()
        finally:
            server.send_signal(signal.SIGQUIT)  # at once: nothing of it is needed any more
            server.wait(PATIENCE_S)


def _run_as(folder: Path) -> dict[str, Any]:
    if os.geteuid() != 0:
        return {}
    names = {entry.pw_name: entry for entry in pwd.getpwall()}
    user = names.get("postgres", names["nobody"])
    os.chown(folder, user.pw_uid, user.pw_gid)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _wait_for(cluster: Cluster, server: subprocess.Popen[bytes]) -> None:
    engine = create_engine(cluster.url())
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            with engine.connect():
                break
        except OperationalError:
            assert server.poll() is None, (cluster.folder / "log").read_text()
            assert time.monotonic() < end
            time.sleep(0.05)
    engine.dispose()
