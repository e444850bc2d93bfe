"""A hardened systemd unit for a hospital's node.

The node speaks to one address outside and to itself on loopback, writes to one folder, and needs
nothing else of the machine. The unit states this, and systemd enforces it.
"""

from __future__ import annotations

import pwd
import re
from dataclasses import dataclass
from pathlib import Path

from party.errors import UnitError
from pate_fed.nodes import write_file
from pate_fed.regular_files import read_regular

DEFAULT_UNIT = Path("/etc/systemd/system/pate-party.service")
ENVIRONMENT_FILE = "service.env"
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}\$?")
_MARK = "# Written by `pate-party service install`."

_TEXT = """\
{mark}
[Unit]
Description=A hospital's node of a pate_fed federation
Wants=network-online.target
After=network-online.target time-sync.target
# After a kill the coordinator turns a node away for a minute: systemd must not give up meanwhile.
StartLimitIntervalSec=0

[Service]
Type=exec
User={user}
ExecStart={python} -P -m party.cli start --site {argument}
# HTTPS_PROXY and NO_PROXY, if needed; 0600, for a proxy's address may hold a password.
EnvironmentFile=-{environment}
Restart=always
RestartSec=15
# What is being charged is written down before the node goes.
KillSignal=SIGTERM
KillMode=mixed
TimeoutStopSec=90

# A crash must not write keys or votes to disk.
LimitCORE=0
UMask=0077
NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=strict
ProtectHome=read-only
ReadWritePaths={site}
PrivateTmp=yes
PrivateDevices=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
LockPersonality=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RemoveIPC=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
SystemCallErrorNumber=EPERM
# Not MemoryDenyWriteExecute: torch writes machine code for the processor that it finds.

[Install]
WantedBy=multi-user.target
"""


@dataclass(frozen=True, slots=True)
class ServiceUnit:
    """The values of a unit; its user is neither root nor nobody."""

    python: Path
    site: Path
    user: str

    def __post_init__(self) -> None:
        for path in (self.python, self.site):
            if not path.is_absolute() or not str(path).isprintable():
                raise UnitError("a unit's paths must be absolute and printable", repr(str(path)))
        if not _USER.fullmatch(self.user):
            raise UnitError("a unit's user must be a name of this machine", repr(self.user))
        if self.user in ("root", "nobody"):
            raise UnitError(
                f"a node must not run as {self.user}: name a user of its own with --user", self.user
            )

    @property
    def text(self) -> str:
        """The unit."""
        return _TEXT.format(
            mark=_MARK,
            user=self.user,
            python=_quoted(self.python, in_command=True),
            site=_quoted(self.site, in_command=False),
            argument=_quoted(self.site, in_command=True),
            environment=_escaped(self.site / ENVIRONMENT_FILE),
        )

    def require_user(self) -> None:
        """Refuse a user that is not on this machine, or does not own the site's folder."""
        try:
            user = pwd.getpwnam(self.user)
        except KeyError as error:
            raise UnitError(
                "a unit's user must be on this machine: make it first, or name another with --user",
                repr(self.user),
            ) from error
        if user.pw_uid == 0:
            raise UnitError("a node must not run as root", f"{self.user!r}, who is root")
        if owner_of(self.site) != user.pw_uid:
            raise UnitError(
                f"the site's folder must be {self.user}'s, who has to read its keys: "
                f"`chown -R {self.user} {self.site}`, or name its owner with --user",
            )

    def install(self, path: Path = DEFAULT_UNIT) -> None:
        """Write the unit; one that somebody else wrote is not overwritten."""
        try:
            if path.exists() and not read_regular(path).startswith(_MARK.encode()):
                raise UnitError(f"{path.name} must be a new file or our own")
            write_file(path, self.text.encode(), mode=0o644)
        except (OSError, UnicodeDecodeError) as error:
            raise UnitError(
                f"{path} must be writable (as root), or use --print", type(error).__name__
            ) from error


def owner_of(path: Path) -> int:
    """Return the number of the user who owns a folder."""
    return path.stat().st_uid


def _escaped(path: Path) -> str:
    return str(path).replace("%", "%%")


def _quoted(path: Path, *, in_command: bool) -> str:
    """Write a path so that systemd takes it as exactly one word."""
    text = _escaped(path).replace("\\", "\\\\").replace('"', '\\"')
    if in_command:
        text = text.replace("$", "$$")
    return f'"{text}"'
