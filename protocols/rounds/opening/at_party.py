"""Shares at a party: dealt before y, shown against a certificate."""

from __future__ import annotations

from collections.abc import Mapping

from protocols import wire
from protocols.dealing import deal, disclose
from protocols.envelope import open_shares, seal_shares
from protocols.errors import BrokenEnvelopeError, UnexpectedMessageError, WrongShareError
from protocols.messages import Dealing, Reveal, ShareBundle, Verdict
from protocols.rounds.contribution import opening_digest
from protocols.rounds.seating import COORDINATOR, SeatedRun, verify_handed_over
from protocols.wire import Signed

STAGE = "shares"


class ShareHolder:
    """One party's shares in one plan, while the roots are at its epoch. Secret, in memory only."""

    def __init__(self, run: SeatedRun, *, plan_digest: bytes) -> None:
        self._run = run
        self._plan_digest = plan_digest
        self._column = b""
        self._dealing: Signed | None = None

    @property
    def dealing(self) -> Signed:
        """The hashes that this party signed."""
        assert self._dealing is not None
        return self._dealing

    def deal(self, keys: Mapping[int, bytes], *, self_key: bytes) -> bytes:
        """Share this plan's keys among all parties, one by one, once; return the frame before y.

        `keys` are those with every other seat.
        """
        seating = self._run.known
        own = seating.seat
        dealt = deal(
            [self_key if seat == own else keys[seat] for seat in range(len(seating.identities))],
            seat=own,
            sender=seating.me,
            plan_digest=self._plan_digest,
            threshold=seating.threshold,
            random_bytes=self._run.random_bytes,
        )
        self._dealing = dealing = wire.sign(dealt.message, self._run.identity)
        envelopes = tuple(
            seal_shares(column, self._key(peer, sending=True), dealing_digest=dealing.digest)
            for peer, column in zip(seating.fingerprints, dealt.columns, strict=True)
            if peer != seating.me
        )
        self._column = dealt.columns[own]  # the others are the others' alone from here on
        return wire.contain(ShareBundle(self._plan_digest, (dealing.frame,), envelopes))

    def reveal(self, verdict: Verdict, bundle: ShareBundle) -> tuple[Reveal, tuple[bytes, ...]]:
        """Show the shares that a certified verdict allows; name the dealings that they must fit.

        Returns the message to sign, with an empty disclosure for each share that differs from its
        dealer's hashes; and these dealers. Raises `RemoteProtocolError` where the coordinator
        relayed something else; nothing was opened.
        """
        seating, survivors = self._run.known, verdict.survivors
        others = [fp for fp in survivors if fp != seating.me]
        if not len(bundle.dealings) == len(bundle.envelopes) == len(others):
            raise UnexpectedMessageError(
                "one share must come from each survivor", len(bundle.envelopes), peer=COORDINATOR
            )
        sealed = dict(zip(others, bundle.envelopes, strict=True))
        came = zip(others, bundle.dealings, strict=True)
        dealings = {dealer: self._relayed(dealer, frame) for dealer, frame in came}
        dealings[seating.me] = self.dealing
        places = {fp: seat for seat, fp in enumerate(seating.fingerprints)}
        alive = set(survivors)
        dropped = [seat for fp, seat in places.items() if fp not in alive]
        disclosures, wrong = [], []
        for dealer in survivors:
            signed, column = dealings[dealer], self._column
            try:
                if dealer != seating.me:
                    key = self._key(dealer, sending=False)
                    column = open_shares(sealed[dealer], key, dealing_digest=signed.digest)
                disclosure = disclose(
                    column,
                    wire.expect(signed, Dealing),
                    dealer=places[dealer],
                    holder=seating.seat,
                    dropped=dropped,
                )
            except (BrokenEnvelopeError, WrongShareError):
                # The coordinator is to blame if it relayed another message than the dealer's.
                verify_handed_over(signed, seating.identities[dealer])
                # One dealer that cheats does not void the batch: the other shares will do.
                wrong.append(dealer)
                disclosures.append(b"")
                continue
            disclosures.append(disclosure)
        # A coordinator that shows another dealing cannot say that this party cheated.
        digests = [dealings[dealer].digest for dealer in survivors]
        opening = opening_digest(wire.digest_of(verdict), digests)
        return Reveal(opening, seating.me, tuple(disclosures)), tuple(wrong)

    def _relayed(self, dealer: bytes, frame: bytes) -> Signed:
        """Read a survivor's hashes; its signature is checked only where a share does not fit."""
        signed = wire.decode(frame)
        dealing = wire.expect(signed, Dealing)
        fits = (
            dealing.sender == dealer
            and dealing.plan_digest == self._plan_digest
            and dealing.is_among(len(self._run.known.identities))
        )
        if not fits:
            raise UnexpectedMessageError(
                "a dealing must be its survivor's, of this plan", peer=COORDINATOR
            )
        return signed

    def _key(self, peer: bytes, *, sending: bool) -> bytes:
        roots = self._run.roots
        derive = roots.sending_key if sending else roots.receiving_key
        return derive(peer, plan_digest=self._plan_digest, stage=STAGE)

    def __repr__(self) -> str:
        return f"ShareHolder(parties={len(self._run.known.identities)})"
