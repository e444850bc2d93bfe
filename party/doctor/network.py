"""Checks of the way to the coordinator: proxy, name, connection, TLS, clock.

Each check needs the findings of the one before: from the first that fails on, the others are not
made.
"""

from __future__ import annotations

import base64
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial

from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256

from party.doctor.probes import PartyProbes
from party.errors import JoinError
from party.site.membership import CA_FILE, SiteMembership, place_of
from party.site.proxy import Proxy, proxy_to
from pate_fed.nodes import FAIL, WARN, Check, made_check
from pate_fed.nodes.checks import Finding, fail, ok, warn

NAMES = ("proxy", "name", "connection", "tls", "clock")
MOST_AHEAD_S = 5.0
"""Flower accepts a signature dated this far ahead, and no further."""
MOST_BEHIND_S = 280.0
"""Flower and enrollment accept messages up to 300 s old; the way takes some of them."""
SOME_SKEW_S = 3.0
"""A server's date is in whole seconds, and updated once a second: it may look two seconds old."""
FEW_DAYS = 30

_MAX_ANSWER_BYTES = 16 * 1024
# OpenSSL's X509_V_ERR_...
_NOT_YET_VALID, _EXPIRED, _OTHER_HOST, _OTHER_ADDRESS = 9, 10, 62, 64


class _StopError(Exception):
    """The way ends here."""

    def __init__(self, said: str, advice: str) -> None:
        super().__init__(said)
        self.finding = fail(said, advice)


def check_network(joined: SiteMembership, around: PartyProbes) -> Iterator[Check]:
    """Check the way to the coordinator step by step."""
    steps, has_ended = _Way(joined, around).findings(), False
    for name in NAMES:
        if has_ended:
            yield Check(name, WARN, "Not looked at: the way ended before.", "See above.")
            continue
        found = made_check(name, partial(next, steps))
        has_ended = found.state == FAIL
        yield found


@dataclass(frozen=True, slots=True)
class _Way:
    joined: SiteMembership
    around: PartyProbes

    @property
    def _target(self) -> tuple[str, int]:
        return place_of(self.joined.settings.address)

    def findings(self) -> Iterator[Finding]:
        try:
            yield from self._steps()
        except _StopError as error:
            yield error.finding

    def _steps(self) -> Iterator[Finding]:
        host, port = self._target
        proxy = self._proxy(host)
        if proxy is None:
            yield ok("Connections go straight out, through no proxy.")
        else:
            yield ok(f"Connections go through the proxy {proxy.place}.")
        yield self._look_up(host if proxy is None else proxy.host, port, proxy)
        with closing(self._open(proxy)):
            yield ok(f"{host}:{port} answers.")
        verified = self._verified(proxy)
        with closing(verified):
            yield self._tls(verified)
            yield self._compare_clocks(verified)

    def _proxy(self, host: str) -> Proxy | None:
        try:
            return proxy_to(host, self.around.environment)
        except JoinError as error:
            advice = "Ask your IT for the proxy's address."
            raise _StopError(f"{error}.", advice) from error

    def _look_up(self, host: str, port: int, proxy: Proxy | None) -> Finding:
        try:
            addresses = self.around.resolve(host, port)
        except OSError as error:
            said = f"The name {host} cannot be looked up ({type(error).__name__})."
            advice = "Ask your IT whether this machine may look up names outside."
            if proxy is not None:
                advice = f"It is the proxy's, from {proxy.variable}: ask your IT for the right one."
            raise _StopError(said, advice) from error
        if host in addresses:
            return ok(f"{host} is an address: no name needs to be looked up.")
        return ok(f"{host} is {addresses[0]}.")

    def _open(self, proxy: Proxy | None) -> socket.socket:
        host, port = self._target
        first = (host, port) if proxy is None else (proxy.host, proxy.port)
        try:
            connection = self.around.connect(*first)
        except OSError as error:
            kind = type(error).__name__
            said = f"No connection to {host}:{port} ({kind})."
            advice = f"Ask your IT to let this machine out to {host}, TCP port {port}."
            if proxy is not None:
                said = f"No connection to the proxy {proxy.place} ({kind})."
                advice = (
                    f"Ask your IT whether that is the right proxy ({proxy.variable} names it) and "
                    "whether it runs: nothing was asked of the coordinator yet."
                )
            raise _StopError(said, advice) from error
        if proxy is not None:
            try:
                self._through(connection, proxy)
            except BaseException:
                connection.close()
                raise
        return connection

    def _through(self, connection: socket.socket, proxy: Proxy) -> None:
        host, port = self._target
        there = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        lines = [f"CONNECT {there} HTTP/1.1", f"Host: {there}"]
        if proxy.login is not None:
            login = base64.b64encode(":".join(proxy.login).encode()).decode()
            lines.append(f"Proxy-Authorization: Basic {login}")
        try:
            connection.sendall("\r\n".join([*lines, "", ""]).encode())
            words = _read_head(connection).split(b"\r\n", 1)[0].split()
        except OSError as error:
            words = [type(error).__name__.encode()]
        if len(words) < 2 or words[1] != b"200":
            status = words[1].decode("ascii", "replace") if len(words) > 1 else "nothing"
            raise _StopError(
                f"The proxy does not let us through to {host}:{port}: it answers {status}.",
                f"Ask your IT to let the proxy CONNECT to {host}:{port}.",
            )

    def _verified(self, proxy: Proxy | None) -> ssl.SSLSocket:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_verify_locations(cafile=str(self.joined.path(CA_FILE)))
        connection = self._open(proxy)
        try:
            return context.wrap_socket(connection, server_hostname=self._target[0])
        except ssl.SSLCertVerificationError as error:
            connection.close()
            raise self._untrusted(error, proxy) from error
        except OSError as error:
            connection.close()
            raise _StopError(
                f"No TLS 1.2 or later is spoken there ({type(error).__name__}).",
                "Ask the operator for the right address; ask your IT whether something "
                "stands between.",
            ) from error

    def _untrusted(self, error: ssl.SSLCertVerificationError, proxy: Proxy | None) -> _StopError:
        if error.verify_code in (_NOT_YET_VALID, _EXPIRED):
            now = datetime.fromtimestamp(self.around.clock(), UTC)
            return _StopError(
                "The coordinator's certificate is not valid at this time, or this machine's clock "
                f"is wrong: it says {now:%Y-%m-%d %H:%M} UTC.",
                "If the clock is right, ask the operator to renew the server's certificate.",
            )
        if error.verify_code in (_OTHER_HOST, _OTHER_ADDRESS):
            return _StopError(
                f"The certificate is the federation's, and not for {self._target[0]}.",
                "Ask the operator for a certificate that names this address.",
            )
        host, port = self._target
        return _StopError(
            f"The certificate that came is not the federation's: {self._shown(proxy)}. Probably a "
            "proxy or firewall opens the connection to look inside (TLS inspection), or this is "
            "not the coordinator.",
            f"Ask your IT to exempt {host}, TCP port {port}, from TLS inspection: the certificate "
            "must come from the coordinator unchanged. Do not trust that other CA instead.",
        )

    def _shown(self, proxy: Proxy | None) -> str:
        """Report whose certificate came, and its issuer; nothing is sent over this connection."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        try:
            with (
                closing(self._open(proxy)) as connection,
                context.wrap_socket(connection, server_hostname=self._target[0]) as shown,
            ):
                found = _certificate(shown)
                issuer = found.issuer.rfc4514_string()
        except (OSError, ValueError, _StopError) as error:
            return f"its issuer cannot be read ({type(error).__name__})"
        name = "".join(c if c.isprintable() else " " for c in issuer)[:200]
        return f"it is issued by '{name}', and its SHA-256 is {found.fingerprint(SHA256()).hex()}"

    def _tls(self, verified: ssl.SSLSocket) -> Finding:
        ends = _certificate(verified).not_valid_after_utc
        left = ends - datetime.fromtimestamp(self.around.clock(), UTC)
        said = (
            f"{verified.version()}, by the federation's CA and no other; "
            f"the certificate holds until {ends:%Y-%m-%d}."
        )
        if left < timedelta(days=FEW_DAYS):
            return warn(said, "Tell the operator to renew the server's certificate.")
        return ok(said)

    def _compare_clocks(self, verified: ssl.SSLSocket) -> Finding:
        host, port = self._target
        request = f"GET /health HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n"
        before = self.around.clock()
        try:
            verified.sendall(request.encode())
            theirs = _date_in(_read_head(verified))
        except (OSError, ValueError, TypeError) as error:
            return warn(
                f"The coordinator does not tell the time ({type(error).__name__}).",
                "See that this machine's clock is set by NTP.",
            )
        # The answer was dated between the two times: a slow answer is no fault of a clock.
        ahead = max(before - theirs, 0.0) + min(self.around.clock() - theirs, 0.0)
        if ahead > 0:
            said = f"This machine's clock is {ahead:.0f} s ahead of the coordinator's."
        else:
            said = f"This machine's clock is {-ahead:.0f} s behind the coordinator's."
        if ahead > MOST_AHEAD_S or ahead < -MOST_BEHIND_S:
            return fail(said, "Set it by NTP: its messages are refused.")
        if abs(ahead) > SOME_SKEW_S:
            return warn(said, "Set it by NTP.")
        return ok("This machine's clock agrees with the coordinator's.")


def _certificate(connection: ssl.SSLSocket) -> x509.Certificate:
    der = connection.getpeercert(binary_form=True)
    if der is None:
        raise ValueError("no certificate")
    return x509.load_der_x509_certificate(der)


def _read_head(connection: socket.socket) -> bytes:
    head = b""
    while b"\r\n\r\n" not in head and len(head) < _MAX_ANSWER_BYTES:
        piece = connection.recv(4096)
        if not piece:
            break
        head += piece
    return head


def _date_in(head: bytes) -> float:
    for line in head.decode("latin-1").split("\r\n"):
        name, _, value = line.partition(":")
        if name.strip().lower() == "date":
            return parsedate_to_datetime(value.strip()).timestamp()
    raise ValueError("no date")
