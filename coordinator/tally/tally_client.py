"""The coordinator's way to its tally: two calls, over TLS with pinned certificates."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import grpc

from coordinator.certificates import KeyedCertificate
from coordinator.errors import TallyRefusedError, TallyUnreachableError
from coordinator.tally.calls import CHANNEL_OPTIONS, CHECK, STATE, TALLY_SERVICE
from coordinator.tally.cards import TallyCard
from coordinator.tally.heads import HEAD_KEY, HeadMemory, coordinator_behind, tally_behind
from protocols.errors import MalformedMessageError
from protocols.identity import PublicIdentity

_TIMEOUT_S: Final = 120.0
_CODE: Final = re.compile(r"PF-\d{3}")


class TallyClient:
    """Calls one tally.

    Both calls raise `TallyUnreachableError` where another try may succeed, and `TallyRefusedError`
    where the same call is refused again.

    Args:
        card: The pinned one.
        key: The coordinator's for its tally: key and certificate.
        timeout_s: Longest wait for an answer.
        note: Told after each call the code of its fault; "" where the tally answered.
        heads: What this end remembers of the tally.
    """

    def __init__(
        self,
        card: TallyCard,
        key: KeyedCertificate,
        *,
        timeout_s: float = _TIMEOUT_S,
        note: Callable[[str], None] = lambda _: None,
        heads: HeadMemory | None = None,
    ) -> None:
        self._card, self._timeout_s, self._note = card, timeout_s, note
        self._heads = heads or HeadMemory.volatile()
        self._credentials = grpc.ssl_channel_credentials(
            card.certificate.encode(), key.private_key, key.certificate
        )

    @property
    def identity(self) -> PublicIdentity:
        """The tally's."""
        return self._card.identity

    def state(self, offer: bytes) -> bytes:
        """Return the frame of its `KeyStatement` for the frame of a signed `RunOffer`."""
        return self._call(STATE, offer)

    def check(self, packet: bytes) -> bytes:
        """Return its answer's frame for a packet of run record, plan and request."""
        return self._call(CHECK, packet)

    def is_there(self, *, timeout_s: float) -> bool:
        """Tell whether the pinned tally takes our connection within so many seconds."""
        options = (*CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1))
        with grpc.secure_channel(self._card.address, self._credentials, options) as channel:
            try:
                grpc.channel_ready_future(channel).result(timeout_s)
            except grpc.FutureTimeoutError:
                return False
        return True

    def _call(self, name: str, request: bytes) -> bytes:
        with self._heads.turn:
            try:
                said = self._asked(name, request)
            except TallyRefusedError:
                self._note("")
                raise
            except TallyUnreachableError as error:
                self._note(error.code)
                raise
            self._note("")
        return said

    def _asked(self, name: str, request: bytes) -> bytes:
        carried = self._heads.read()
        # A channel that lost its other end waits longer and longer: each call has a fresh one.
        options = (*CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1))
        with grpc.secure_channel(self._card.address, self._credentials, options) as channel:
            try:
                said, call = channel.unary_unary(f"/{TALLY_SERVICE}/{name}").with_call(
                    request,
                    timeout=self._timeout_s,
                    metadata=((HEAD_KEY, carried.to_bytes()),),
                )
            except grpc.RpcError as error:
                raise self._fault(error) from error
        self._heads.take(carried, dict(call.trailing_metadata()).get(HEAD_KEY, b""))
        answer: bytes = said
        return answer

    def _fault(self, error: grpc.RpcError) -> TallyUnreachableError | TallyRefusedError:
        status, text = error.code(), error.details() or ""
        for behind in (tally_behind(), coordinator_behind()):
            if status is grpc.StatusCode.FAILED_PRECONDITION and text == behind.code:
                return behind
        if status is grpc.StatusCode.FAILED_PRECONDITION and _CODE.fullmatch(text):
            return TallyRefusedError(
                "the tally must agree: ask its people what its log says", reason=text
            )
        if status is grpc.StatusCode.RESOURCE_EXHAUSTED:
            must = "a packet must have the size that the tally takes"
            return TallyRefusedError(must, reason=MalformedMessageError.code)
        got = text if _CODE.fullmatch(text) else status.name
        return TallyUnreachableError(f"the tally at {self._card.address} must answer", got)
