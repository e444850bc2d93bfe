"""The proxy between this machine and the coordinator, as the environment names it.

All traffic of a hospital goes this way, and the doctor goes it first: both must agree on the proxy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import proxy_bypass_environment  # type: ignore[attr-defined]  # no stub of it

from party.errors import JoinError
from pate_fed.nodes.ports import is_host

_USUAL_PORT = 8080
# Of two that are set, the first counts; a setting for plain HTTP alone is not ours.
_VARIABLES = ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")


@dataclass(frozen=True, slots=True, repr=False)
class Proxy:
    """An HTTP proxy that carries connections by CONNECT; its login is secret, or None."""

    variable: str
    host: str
    port: int
    login: tuple[str, str] | None

    @property
    def place(self) -> str:
        """Host and port, as they are written in an address."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __repr__(self) -> str:
        return f"Proxy({self.place})"


def proxy_to(host: str, environment: Mapping[str, str]) -> Proxy | None:
    """Return the proxy that connections to a host go through; None if they go straight out."""
    variable = next((name for name in _VARIABLES if environment.get(name)), "")
    exempt = {"no": environment.get("no_proxy") or environment.get("NO_PROXY") or ""}
    if not variable or proxy_bypass_environment(host, exempt):
        return None
    text = environment[variable]
    found = _split(text if "://" in text else f"http://{text}")
    if found is None or found.hostname is None:
        # Its text may hold a password.
        raise JoinError(f"{variable} must be http://host:port, or not set")
    login = None
    if found.username is not None:
        login = unquote(found.username), unquote(found.password or "")
    return Proxy(variable, found.hostname, found.port or _USUAL_PORT, login)


def _split(address: str) -> SplitResult | None:
    try:
        found = urlsplit(address)
        is_good = found.scheme == "http" and found.port != 0 and is_host(found.hostname or "")
    except ValueError:
        return None
    return found if is_good else None
