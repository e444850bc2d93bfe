"""How a hospital joins: over TLS to the CA that the invitation names, signed, checked, once.

The coordinator's word about peers is hearsay: `party.site.peers` keeps the checks of our own
people. httpx and the database are loaded when they are used: most commands need neither.
"""

from __future__ import annotations

import logging
import os
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Final

from party.errors import JoinError, PartyError, ResultsError
from party.site.membership import CA_FILE, SiteMembership, place_of
from party.site.proxy import Proxy, proxy_to
from pate_fed.nodes.owner_files import as_fault
from pate_fed.version import __version__
from protocols import wire
from protocols.errors import MalformedMessageError, ProtocolError
from protocols.identity import PublicIdentity
from protocols.invitation import read_audit_head
from protocols.membership_messages import (
    JoinRequest,
    Membership,
    MembershipQuery,
    PoolQuery,
    ResultsQuery,
)

if TYPE_CHECKING:
    import httpx

    from party.storage import SentLog

PREFIX = "/v1/fleet/pate-fed/"
MAX_POOL_BYTES = 2**27
MAX_ANSWER_BYTES = 8 * 2**20
_TIMEOUT_S = 30.0
_log = logging.getLogger(__name__)

_NO_VOTES: Final[Mapping[str, int]] = {}


class CoordinatorDoor:
    """The coordinator's public port, as a hospital uses it outside of runs.

    Every call raises `JoinError` where the coordinator cannot be reached, is another one, or
    refuses us. Without `transport` a socket carries requests, by `HTTPS_PROXY`. They are noted in
    `sent`, or in the site's database, opened for each.
    """

    def __init__(
        self,
        joined: SiteMembership,
        *,
        clock: Callable[[], float],
        transport: httpx.BaseTransport | None = None,
        sent: SentLog | None = None,
    ) -> None:
        import httpx  # noqa: PLC0415

        self._joined = joined
        self._clock = clock
        self._sent = sent
        self._identity = joined.identity
        self._client = httpx.Client(
            base_url=f"https://{joined.settings.address}",
            timeout=_TIMEOUT_S,
            transport=transport or _transport(joined),
            follow_redirects=False,
            trust_env=False,  # the proxy is found as the doctor finds it
            headers={"accept-encoding": "identity"},
        )

    def join(self, token: bytes) -> Membership:
        """Ask to join."""
        request = JoinRequest(
            coordinator=self._joined.coordinator.fingerprint,
            token=token,
            party_name=self._joined.settings.party,
            identity_key=self._identity.public.key,
            node_key=self._joined.node_public_key,
            asked_at=int(self._clock()),
        )
        return self._membership("join", wire.sign(request, self._identity).frame)

    def membership(
        self,
        *,
        audit_head: bytes = b"",
        goes_on_from: bytes = b"",
        votes: Mapping[str, int] = _NO_VOTES,
    ) -> Membership:
        """Ask for the state of the request, and for the other members.

        `audit_head` is the head of our audit log, signed by `sign_head`, for the coordinator to
        keep, `goes_on_from` SHA-256 of the head that it returned before, if our log holds that one.
        Only then does it keep a newer one. Both may be empty. `votes` are those that our node casts
        on each query, by data set: it alone says so, because it holds every plan to that number.
        """
        named = {name: number for name, number in votes.items() if name}
        query = MembershipQuery(
            self._joined.coordinator.fingerprint,
            self._identity.fingerprint,
            int(self._clock()),
            audit_head,
            goes_on_from,
            __version__,
            votes.get("", 0),
            tuple(sorted(named)),
            tuple(named[name] for name in sorted(named)),
        )
        return self._membership("membership", wire.sign(query, self._identity).frame)

    def fetch_pool(self, digest: bytes) -> bytes:
        """Fetch the file of a pool of public queries; the caller checks its digest."""
        content = bytearray()
        for piece in self._pieces("pool", PoolQuery, digest):
            content += piece
            if len(content) > MAX_POOL_BYTES:
                raise JoinError(f"a pool must have at most {MAX_POOL_BYTES} bytes")
        return bytes(content)

    def results_pieces(self, run: bytes, file: str) -> Iterator[bytes]:
        """Fetch one file of a run's results, piece by piece; the caller counts its bytes."""
        return self._pieces("results", ResultsQuery, run, file)

    def _pieces(
        self, name: str, kind: Callable[..., PoolQuery | ResultsQuery], *asked: bytes | str
    ) -> Iterator[bytes]:
        """Fetch something piece by piece, until an empty one; each is asked for by its offset."""
        ours, offset = (self._joined.coordinator.fingerprint, self._identity.fingerprint), 0
        while True:
            query = kind(*ours, *asked, offset, int(self._clock()))
            piece = self._post(name, wire.sign(query, self._identity).frame)
            if not piece:
                return
            yield piece
            offset += len(piece)

    def _membership(self, name: str, frame: bytes) -> Membership:
        try:
            signed = wire.decode(self._post(name, frame))
            signed.verify(self._joined.coordinator)
            answer = wire.expect(signed, Membership)
        except ProtocolError as error:
            raise JoinError(
                "the answer must be signed by the coordinator that invited us"
            ) from error
        if answer.party != self._identity.fingerprint:
            raise JoinError("the answer must be for us")
        _require_sound(answer, self._joined.coordinator)
        if answer.audit_head:
            self._require_ours(answer.audit_head)
        return answer

    def _require_ours(self, audit_head: bytes) -> None:
        try:
            read_audit_head(audit_head, self._identity.public)
        except ProtocolError as error:
            raise JoinError("an audit head that is given back must be ours") from error

    def _post(self, name: str, frame: bytes) -> bytes:
        import httpx  # noqa: PLC0415

        self._note(frame)
        try:
            with self._client.stream("POST", PREFIX + name, content=frame) as answer:
                content = self._content(answer)
        except httpx.HTTPError as error:
            raise JoinError(
                f"the coordinator at {self._joined.settings.address} must be reachable: "
                "`pate-party doctor` names the fault",
                type(error).__name__,
            ) from error
        if answer.status_code == httpx.codes.TOO_MANY_REQUESTS:
            raise JoinError(
                "the coordinator must not be asked so often from this address: wait a minute",
                f"status {answer.status_code}",
            )
        if answer.status_code == httpx.codes.NOT_FOUND and name == "results":
            raise ResultsError(
                "the run must have ended with labels, and this hospital must have taken part: ask "
                "again later",
                "none for us",
            )
        if answer.status_code != httpx.codes.OK:
            must = (
                "the coordinator must expect this request: an invitation is good once, and for a "
                "time; ask the operator for another"
                if name == "join"
                else "the coordinator must know this hospital and agree on the time: "
                "`pate-party doctor`, else ask the operator"
            )
            is_refusal = answer.status_code == httpx.codes.FORBIDDEN
            raise JoinError(must, f"status {answer.status_code}", is_refusal=is_refusal)
        return content

    def _note(self, frame: bytes) -> None:
        """Note a request that leaves. A database that cannot be used stops none: it may ask why."""
        from party.storage import SentLog  # noqa: PLC0415

        to, at = self._joined.coordinator.fingerprint, self._clock()
        try:
            if self._sent is not None:
                self._sent.note_request(frame, to=to, at=at)
                return
            with self._joined.site.open_database() as database:
                SentLog(database).note_request(frame, to=to, at=at)
        except PartyError as error:
            _log.warning("a request that leaves cannot be noted: %s", error.code)

    def _content(self, answer: httpx.Response) -> bytes:
        """Read an answer, up to the size of our largest one: it may never end."""
        if answer.headers.get("content-encoding", "identity") != "identity":
            raise JoinError(  # it could be any size unpacked
                "an answer of the coordinator must come as it is", "a packed one"
            )
        content = bytearray()
        for piece in answer.iter_bytes():
            content += piece
            if len(content) > MAX_ANSWER_BYTES:
                raise JoinError(
                    f"an answer of the coordinator must have at most {MAX_ANSWER_BYTES} bytes",
                )
        return bytes(content)

    def close(self) -> None:
        """Let go of the connection."""
        self._client.close()


def ask_membership(joined: SiteMembership) -> Membership:
    """Ask the coordinator once for this hospital's membership and the other members."""
    with closing(CoordinatorDoor(joined, clock=time.time)) as door:
        return door.membership()


def way_out(address: str) -> Proxy | None:
    """Return the proxy to a coordinator; refuses one, or an address, that leads nowhere."""
    return proxy_to(place_of(address)[0], os.environ)


def _transport(joined: SiteMembership) -> httpx.HTTPTransport:
    import httpx  # noqa: PLC0415

    proxy = way_out(joined.settings.address)
    # This CA and no other: the machine's own trusted CAs are not asked.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    with as_fault(JoinError, f"{CA_FILE} must be as the invitation brought it"):
        context.load_verify_locations(cafile=str(joined.path(CA_FILE)))
    carried = None if proxy is None else httpx.Proxy(f"http://{proxy.place}", auth=proxy.login)
    return httpx.HTTPTransport(verify=context, proxy=carried, trust_env=False)


def _require_sound(answer: Membership, coordinator: PublicIdentity) -> None:
    """Refuse a dishonest answer: people would compare words of the wrong hospital."""
    if answer.state not in ("requested", "member", "suspended", "revoked"):
        raise JoinError("a hospital is 'requested', 'member', 'suspended' or 'revoked'")
    names, keys = answer.peer_names, answer.peer_keys
    if not len(names) == len(keys) == len(set(names)) == len(set(keys)):
        raise JoinError("every peer must have one name and one key")
    try:
        tally = answer.tally
    except MalformedMessageError as error:
        raise JoinError("a tally must have a name and a key") from error
    if tally is not None and tally.identity == coordinator:
        raise JoinError("a tally must have another key than the coordinator")
