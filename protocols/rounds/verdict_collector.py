"""The verdicts that the coordinator holds on one plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from protocols import wire
from protocols.errors import ConflictingMessageError, UnexpectedMessageError
from protocols.identity import PublicIdentity
from protocols.messages import Certificate, Verdict, VerdictMacs
from protocols.wire import Signed


class VerdictCollector:
    """The verdicts that the coordinator holds on one plan; `threshold` equal ones prove it."""

    def __init__(
        self, plan_digest: bytes, *, identities: Mapping[bytes, PublicIdentity], threshold: int
    ) -> None:
        self._plan_digest = plan_digest
        self._identities = identities
        self._threshold = threshold
        self._given: dict[bytes, tuple[Verdict, bytes]] = {}
        self._macs: dict[bytes, tuple[bytes, ...]] = {}

    def take_macs(self, message: VerdictMacs, sender: bytes) -> None:
        """Keep the MACs with which a party authenticates the verdict that it sends next."""
        fits = message.plan_digest == self._plan_digest and all(message.macs)
        if not fits or len(message.macs) != len(self._identities) - 1:
            raise UnexpectedMessageError(
                "a verdict must have one MAC for each peer", len(message.macs)
            )
        self._macs[sender] = message.macs

    def take(self, signed: Signed, sender: bytes) -> None:
        """Keep a party's verdict, whose signature was verified; its first one stands."""
        verdict = wire.expect(signed, Verdict)
        if verdict.plan_digest != self._plan_digest:
            raise UnexpectedMessageError("a verdict must be on the open plan")
        earlier = self._given.get(sender)
        if earlier is not None and earlier[0] != verdict:
            raise ConflictingMessageError(
                "a party must give one verdict on a plan", peer=sender.hex()
            )
        self._given[sender] = verdict, signed.signature

    def of(self, survivors: Sequence[bytes]) -> tuple[bytes, ...]:
        """Return the parties that gave the verdict for a set (none: to close), in seat order."""
        wanted = Verdict(self._plan_digest, tuple(survivors))
        return tuple(
            seat for seat in self._identities if self._given.get(seat, (None,))[0] == wanted
        )

    def certificate(self, survivors: Sequence[bytes]) -> Certificate | None:
        """Return the certificate for a set, or to close the plan; None while it lacks verdicts."""
        signers = self.of(survivors)
        if len(signers) < self._threshold:
            return None
        signers = signers[: self._threshold]
        signatures = tuple(self._given[signer][1] for signer in signers)
        return Certificate(self._plan_digest, tuple(survivors), signers, signatures)

    def proofs(self, certificate: Certificate) -> dict[bytes, bytes]:
        """Return, by survivor, the frame that proves to it that enough parties agreed.

        The frame has the MACs of these parties. If too few sent MACs it is the certificate.
        """
        survivors = certificate.survivors
        agreed = {seat for seat in self.of(survivors) if seat in self._macs}
        if len(agreed) < self._threshold:
            return dict.fromkeys(survivors, wire.contain(certificate))
        seats = tuple(self._identities)
        return {
            holder: wire.contain(
                VerdictMacs(
                    self._plan_digest,
                    tuple(
                        self._macs[peer][place - (peer_place < place)] if peer in agreed else b""
                        for peer_place, peer in enumerate(seats)
                        if peer != holder
                    ),
                )
            )
            for place, holder in enumerate(seats)
            if holder in survivors
        }

    def __repr__(self) -> str:
        return f"VerdictCollector(given={len(self._given)})"
