"""Runs what is typed in forks of one process that has loaded everything: a start takes seconds.

``python -m tests.support.typed_commands FOLDER OUT`` writes `pate-fed` and `pate-party` into a
folder, plays the demonstration so that it finds them first, and ends as it does. Whatever runs on,
like a service, is started as always: its number, its children and its signals are its own.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path

RUNS_ON = ("serve", "start", "run")
"""Commands that are processes of their own."""

_LOADED = (
    *("coordinator.cli.command", "coordinator.operator", "coordinator.flower.superlink_client"),
    *("coordinator.cli.federation", "party.cli.command", "party.owner", "party.service"),
    *(
        "party.site.own_table",
        "party.site.training",
        "pate_fed.report",
        "skops.io",
        "matplotlib.figure",
    ),
)
_MOST_BYTES = 2**20
_CLIENT = """#!{python}
import json, os, socket, sys
if set(sys.argv[1:3]) & set({runs_on}):
    from {module}.cli import main
    main()
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    said = json.dumps(["{module}", sys.argv, os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(server, [len(said).to_bytes(4, "big")], [0, 1, 2])
    server.sendall(said)
    code = server.recv(1)
sys.exit(code[0] if code else 70)
"""


def write_programs(folder: Path, address: str) -> None:
    """Write programs that let the server at an address run what they are asked."""
    for name, module in (("pate-fed", "coordinator"), ("pate-party", "party")):
        path = folder / name
        values = {"python": sys.executable, "module": module, "address": address}
        path.write_text(_CLIENT.format(**values, runs_on=RUNS_ON), encoding="utf-8")
        path.chmod(0o755)


def answer(client: socket.socket) -> None:
    """Run one command with its caller's output, folder and variables; tell its exit code."""
    head, files, _, _ = socket.recv_fds(client, 4, 3)
    said = b""
    while len(said) < int.from_bytes(head, "big"):
        said += client.recv(_MOST_BYTES)
    module, arguments, folder, variables = json.loads(said)
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    sys.argv = arguments
    code: object = 0
    try:
        import_module(f"{module}.cli").main()
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
        code = 70
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    client.sendall(bytes([code if isinstance(code, int) else 1]))


def serve(server: socket.socket) -> None:
    """Answer each caller in a process of its own, without end."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    while True:
        client, _ = server.accept()
        with client:
            if not os.fork():
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                server.close()
                try:
                    answer(client)
                finally:
                    os._exit(0)


def play_demo(folder: Path, out: Path) -> None:
    """Play it with the programs of a folder: beside what it takes for its interpreter."""
    sys.executable = str(folder / "python")
    from coordinator.demo import play  # noqa: PLC0415 - it reads the line above

    play(out)


def main(folder: Path, out: Path) -> None:
    """Serve until the demonstration has ended."""
    for name in _LOADED:
        import_module(name)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "typed"))
        server.listen()
        write_programs(folder, str(folder / "typed"))
        serving = os.fork()
        if not serving:
            with suppress(KeyboardInterrupt):
                serve(server)
            os._exit(0)
    try:
        play_demo(folder, out)
    finally:
        os.kill(serving, signal.SIGKILL)
        os.waitpid(serving, 0)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
