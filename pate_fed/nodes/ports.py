"""Ports and addresses of this machine."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable
from typing import Final, TypeVar

from pate_fed.errors import InvalidSettingError, Shown

LAST_PORT: Final = 2**16 - 1

_MOST_HOST_LETTERS: Final = 253
_PART: Final = r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)"
_HOST_NAME: Final = re.compile(rf"{_PART}(?:\.{_PART})*\.?")

S = TypeVar("S", bound=socket.socket)

Fault = Callable[[str, Shown], Exception]
"""Makes an error from a rule and the value that broke it."""


def listen(host: str, port: int, *, fault: Fault) -> socket.socket:
    """Open a port, where an early caller waits; raise a `fault` if it cannot be had."""
    listener = bound(socket.socket(family_of(host)), host, port, fault=fault)
    listener.listen()
    return listener


def bound(listener: S, host: str, port: int, *, fault: Fault) -> S:
    """Bind a socket to a port; raise a `fault` if it cannot be had."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Accepted connections inherit it: otherwise the body of an answer waits for the other end's
    # acknowledgement of its head, 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise fault(f"port {port} of {host} must be ours to have", error.strerror) from error
    return listener


def why_not_ours(host: str, port: int) -> str:
    """Return why a port of a host cannot be had; "" if it can."""
    try:
        listen(host, port, fault=InvalidSettingError).close()
    except InvalidSettingError as error:
        return error.got
    return ""


def family_of(host: str) -> socket.AddressFamily:
    """Return the family of an address."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def in_brackets(host: str) -> str:
    """Return a host as it stands in front of a port."""
    return f"[{host}]" if ":" in host else host


def is_loopback(host: str) -> bool:
    """Tell whether an address is reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def host_and_port(text: str) -> tuple[str, int] | None:
    """Read "host:port", an IPv6 address in brackets; None if it is none."""
    host, _, port = text.rpartition(":")
    is_port = port.isascii() and port.isdecimal() and 0 < int(port) <= LAST_PORT
    is_bracketed = host.startswith("[") and host.endswith("]")
    plain = host[1:-1] if is_bracketed else host
    if not is_port or is_bracketed is not (":" in plain) or not is_host(plain):
        return None
    return plain, int(port)


def is_host(text: str) -> bool:
    """Tell whether a text can be a host: an IP address, or a name of letters that DNS has."""
    if is_name(text):
        return len(text) <= _MOST_HOST_LETTERS and _HOST_NAME.fullmatch(text) is not None
    try:
        return bool(ipaddress.ip_address(text))
    except ValueError:
        return False


def is_name(host: str) -> bool:
    """Tell whether a host is looked up: an address ends in a number, or has colons."""
    return ":" not in host and not host.rpartition(".")[2].isdecimal()
