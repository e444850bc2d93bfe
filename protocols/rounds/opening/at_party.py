"""Shares at a party: dealt before y, shown against a certificate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from protocols import wire
from protocols.dealing import Dealt, deal, disclose
from protocols.errors import (
    BrokenEnvelopeError,
    UnexpectedMessageError,
    WrongShareError,
)
from protocols.identity import PublicIdentity, SigningIdentity
from protocols.messages import (
    Dealing,
    Reveal,
    ShareBundle,
    Verdict,
)
from protocols.pair_keys import PairRoots
from protocols.rounds.contribution import opening_digest
from protocols.rounds.seating import COORDINATOR, verify_handed_over
from protocols.share_envelope import open_shares, seal_shares
from protocols.wire import Signed

STAGE = "shares"


class ShareHolder:
    """One party's shares in one plan. Secret, in memory only, gone with the plan.

    Args:
        identity: The party's identity.
        seats: All parties in seat order, by fingerprint.
        plan_digest: The plan.
        roots: The party's roots, at the plan's epoch.
    """

    def __init__(
        self,
        identity: SigningIdentity,
        *,
        seats: Mapping[bytes, PublicIdentity],
        plan_digest: bytes,
        roots: PairRoots,
    ) -> None:
        self._identity = identity
        self._me = identity.fingerprint
        self._seats = dict(seats)
        self._fingerprints = tuple(seats)
        self._plan_digest = plan_digest
        self._roots = roots
        self._own: Dealt | None = None
        self._dealing_digest = b""

    def deal(
        self,
        keys: Mapping[int, bytes],
        *,
        self_key: bytes,
        threshold: int,
        random_bytes: Callable[[int], bytes],
    ) -> bytes:
        """Share this plan's keys among all parties, one by one; once.

        Args:
            keys: Key with every other seat.
            self_key: This party's self mask.
            threshold: Shares that open one.
            random_bytes: Cryptographic random numbers.

        Returns:
            The frame to send in front of y.
        """
        own = self._seat
        seats = range(len(self._fingerprints))
        dealt = deal(
            [self_key if seat == own else keys[seat] for seat in seats],
            seat=own,
            sender=self._me,
            plan_digest=self._plan_digest,
            threshold=threshold,
            random_bytes=random_bytes,
        )
        dealing = wire.sign(dealt.message, self._identity)
        self._dealing_digest = dealing.digest
        envelopes = tuple(
            seal_shares(
                dealt.columns[seat],
                self._key(peer, sending=True),
                dealing_digest=dealing.digest,
            )
            for seat, peer in enumerate(self._fingerprints)
            if peer != self._me
        )
        # The other columns are the others' alone from here on.
        self._own = dealt = replace(dealt, columns=(dealt.columns[own],))
        return wire.contain(ShareBundle(self._plan_digest, (dealing.frame,), envelopes))

    @property
    def dealing_digest(self) -> bytes:
        """Digest of this party's dealing; empty before `deal`."""
        return self._dealing_digest

    def reveal(self, verdict: Verdict, bundle: ShareBundle) -> tuple[Reveal, tuple[bytes, ...]]:
        """Show the shares that a certified verdict allows; name the dealings that they must fit.

        Args:
            verdict: The certified verdict of this plan, this party's own.
            bundle: Dealings and shares of the other survivors.

        Returns:
            The message to sign, with an empty disclosure for each share that differs from its
            dealer's hashes; and these dealers.

        Raises:
            RemoteProtocolError: the coordinator relayed something else; nothing was opened.
        """
        survivors = verdict.survivors
        others = [fp for fp in survivors if fp != self._me]
        if not len(bundle.dealings) == len(bundle.envelopes) == len(others):
            raise UnexpectedMessageError(
                "one share must come from each survivor", len(bundle.envelopes), peer=COORDINATOR
            )
        came = dict(zip(others, zip(bundle.dealings, bundle.envelopes, strict=True), strict=True))
        dealings = {dealer: self._relayed(dealer, frame) for dealer, (frame, _) in came.items()}
        alive = set(survivors)
        dropped = [seat for seat, fp in enumerate(self._fingerprints) if fp not in alive]
        disclosures, wrong = [], []
        places = {fp: seat for seat, fp in enumerate(self._fingerprints)}
        holder = places[self._me]
        for dealer in survivors:
            try:
                if dealer == self._me:
                    column, dealing = self._own_column()
                else:
                    column, dealing = self._column_from(dealer, came[dealer][1], dealings[dealer])
                disclosure = disclose(
                    column, dealing, dealer=places[dealer], holder=holder, dropped=dropped
                )
            except (BrokenEnvelopeError, WrongShareError):
                # The coordinator is to blame if it relayed another message than the dealer's.
                verify_handed_over(dealings[dealer], self._seats[dealer])
                # One dealer that cheats does not void the batch: the other shares will do.
                wrong.append(dealer)
                disclosures.append(b"")
                continue
            disclosures.append(disclosure)
        digests = [
            self._dealing_digest if dealer == self._me else dealings[dealer].digest
            for dealer in survivors
        ]
        # A coordinator that shows another dealing cannot say that this party cheated.
        opening = opening_digest(wire.digest_of(verdict), digests)
        return Reveal(opening, self._me, tuple(disclosures)), tuple(wrong)

    def _own_column(self) -> tuple[bytes, Dealing]:
        assert self._own is not None
        (column,) = self._own.columns
        return column, self._own.message

    def _relayed(self, dealer: bytes, frame: bytes) -> Signed:
        """Read a survivor's hashes. The coordinator checks every message before relaying it."""
        signed = wire.decode(frame)
        dealing = wire.expect(signed, Dealing)
        fits = (
            dealing.sender == dealer
            and dealing.plan_digest == self._plan_digest
            and dealing.is_among(len(self._seats))
        )
        if not fits:
            raise UnexpectedMessageError(
                "a dealing must be its survivor's, of this plan", "another", peer=COORDINATOR
            )
        return signed

    def _column_from(self, dealer: bytes, sealed: bytes, dealing: Signed) -> tuple[bytes, Dealing]:
        key = self._key(dealer, sending=False)
        column = open_shares(sealed, key, dealing_digest=dealing.digest)
        return column, wire.expect(dealing, Dealing)

    def _key(self, peer: bytes, *, sending: bool) -> bytes:
        derive = self._roots.sending_key if sending else self._roots.receiving_key
        return derive(peer, plan_digest=self._plan_digest, stage=STAGE)

    @property
    def _seat(self) -> int:
        return self._fingerprints.index(self._me)

    def __repr__(self) -> str:
        return f"ShareHolder(parties={len(self._seats)})"
