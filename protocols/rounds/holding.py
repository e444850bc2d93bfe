"""A party's two parts in opening a sum: it deals shares of its keys, and holds those of others.

A holder knows a dealer's hashes by their digest, without which the shares' envelope does not open:
whoever holds the pair's root sealed it. Only where something does not fit does the dealer's
signature tell whose fault it is, the dealer's or the coordinator's.

What it opens is fixed by one survivor set: of a survivor the self mask, and its keys with those
who dropped out. Never a key between survivors, never a self mask of who dropped out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from protocols import wire
from protocols.dealing import Dealt, deal, disclose
from protocols.errors import (
    BadSignatureError,
    BrokenEnvelopeError,
    UnexpectedMessageError,
    WrongShareError,
)
from protocols.identity import PublicIdentity, SigningIdentity
from protocols.messages import Dealing, Reveal, ShareBundle, SurvivorSet
from protocols.pair_keys import PairRoots
from protocols.rounds.contribution import opening_digest
from protocols.share_envelope import open_shares, seal_shares
from protocols.wire import Signed

STAGE = "shares"
COORDINATOR = "coordinator"


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
        """Digest of what this party dealt; empty before `deal`."""
        return self._dealing_digest

    def reveal(self, survivor_set: Signed, bundle: ShareBundle) -> tuple[Reveal, tuple[bytes, ...]]:
        """Open what a survivor set allows, and say what the shares were held against.

        Args:
            survivor_set: The one `SurvivorSet` of this plan, checked.
            bundle: What the other survivors dealt.

        Returns:
            The message to sign, a disclosure empty where what came is not what its dealer signed;
            and who these dealers are.

        Raises:
            RemoteProtocolError: the coordinator relayed what it must not; nothing was opened.
        """
        survivors = wire.expect(survivor_set, SurvivorSet).survivors
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
                # The coordinator is to blame if it did not relay what the dealer signed.
                self._require_signed(dealer, dealings[dealer])
                # One dealer that cheats must not void the batch: the others' shares do.
                wrong.append(dealer)
                disclosures.append(b"")
                continue
            disclosures.append(disclosure)
        digests = [
            self._dealing_digest if dealer == self._me else dealings[dealer].digest
            for dealer in survivors
        ]
        # Whoever shows another dealing of one of them cannot say that this party cheated.
        opening = opening_digest(survivor_set.digest, digests)
        return Reveal(opening, self._me, tuple(disclosures)), tuple(wrong)

    def _own_column(self) -> tuple[bytes, Dealing]:
        assert self._own is not None
        (column,) = self._own.columns
        return column, self._own.message

    def _relayed(self, dealer: bytes, frame: bytes) -> Signed:
        """Read a survivor's hashes. The coordinator checks what it relays."""
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

    def _require_signed(self, dealer: bytes, dealing: Signed) -> None:
        try:
            dealing.verify(self._seats[dealer])
        except BadSignatureError as error:
            raise error.from_peer(COORDINATOR) from error

    def _key(self, peer: bytes, *, sending: bool) -> bytes:
        derive = self._roots.sending_key if sending else self._roots.receiving_key
        return derive(peer, phase_digest=self._plan_digest, stage=STAGE)

    @property
    def _seat(self) -> int:
        return self._fingerprints.index(self._me)

    def __repr__(self) -> str:
        return f"ShareHolder(parties={len(self._seats)})"
