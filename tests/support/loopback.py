"""Watches that processes speak to this machine alone: from inside Python, and from the kernel."""

from __future__ import annotations

import ast
import ipaddress
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

WATCH = Path(__file__).parent / "loopback_watch"
"""To be put on PYTHONPATH, with the file to write in LOOPBACK_WATCH."""

_OWN_NAMES = ("localhost", "127.0.0.1", "::1", "")
_ADDRESS = re.compile(
    r"sin_addr=inet_addr\(\"([^\"]+)\"\)|inet_pton\(AF_INET6, \"([^\"]+)\"",
)


@dataclass(frozen=True)
class Spoken:
    """One time that a process spoke to somebody, or wanted to."""

    process: int
    what: str
    whom: object

    @property
    def is_own(self) -> bool:
        """Whether it stays on this machine; whatever is not understood does not."""
        if self.whom is None:
            return True
        if isinstance(self.whom, bytes | str):
            text = self.whom.decode() if isinstance(self.whom, bytes) else self.whom
            return text in _OWN_NAMES or text.startswith(("/", "\0")) or _is_loopback(text)
        if isinstance(self.whom, tuple):
            return _is_loopback(str(self.whom[0]))
        return False


def heard(file: Path) -> tuple[list[str], list[Spoken]]:
    """Read what `loopback_watch` wrote: command lines of all processes, and whom they spoke to."""
    commands, spoken = [], []
    for line in file.read_text("utf-8").splitlines():
        process, what, whom = json.loads(line)
        value = ast.literal_eval(whom)
        if what == "started":
            commands.append(value)
        else:
            spoken.append(Spoken(process, what, value))
    return commands, spoken


def foreign_addresses(trace: Path) -> list[str]:
    """Return the lines of a trace of system calls that name an address beyond loopback."""
    return [line for line in trace.read_text("utf-8").splitlines() if not _stays(line)]


def addresses(trace: Path) -> list[str]:
    """Return every internet address that a trace of system calls names."""
    return [one for line in trace.read_text("utf-8").splitlines() for one in _named(line)]


def in_empty_network(counts: Path) -> list[str] | None:
    """Return what to put before a command so that it has loopback and nothing else.

    In the end the kernel's counts of that network are in a file: see `strays`. None where this
    machine does not let us make such a network.
    """
    unshare, ip = shutil.which("unshare"), shutil.which("ip")
    if unshare is None or ip is None:
        return None
    script = (
        f'{ip} link set lo up && "$@"; code=$?; '
        f"cat /proc/net/snmp /proc/net/snmp6 >{shlex.quote(str(counts))}; exit $code"
    )
    prefix = [unshare, "-rn", "sh", "-c", script, "sh"]
    return prefix if _works([*prefix, "true"]) else None


def strays(counts: Path) -> int:
    """Return how often anybody in an empty network wanted to send something beyond it.

    Whoever asks the kernel to, by whatever call, is told that there is no route, and counted.
    """
    text = counts.read_text("ascii")
    names, values = (line.split() for line in text.splitlines() if line.startswith("Ip: "))
    [of_six] = re.findall(r"^Ip6OutNoRoutes\s+(\d+)$", text, re.MULTILINE) or ["0"]
    return int(values[names.index("OutNoRoutes")]) + int(of_six)


def traced(file: Path) -> list[str] | None:
    """Return what to put before a command so that the kernel's view of it is written down.

    None where this machine does not let us trace. It sees what Python does not: gRPC's own code.
    """
    strace = shutil.which("strace")
    if strace is None:
        return None
    calls = "trace=connect,sendto,sendmsg,sendmmsg"
    prefix = [strace, "-f", "--seccomp-bpf", "-qq", "-s", "0", "-e", calls, "-o", str(file)]
    return prefix if _works([*prefix, "true"]) else None


def _works(command: list[str]) -> bool:
    return not subprocess.run(command, capture_output=True, check=False, timeout=120).returncode


def _stays(line: str) -> bool:
    return all(_is_loopback(one) for one in _named(line))


def _named(line: str) -> Iterator[str]:
    for four, six in _ADDRESS.findall(line):
        yield four or six


def _is_loopback(address: str) -> bool:
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address in _OWN_NAMES
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback
