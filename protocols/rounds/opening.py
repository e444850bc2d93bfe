"""The opening of a sum that fewer than all parties gave: shares dealt, shown and joined; both ends.

Against the certificate for a set U (`verdicts`) each party of U shows its shares of the keys that
are still in the sum of U: of a survivor the self mask and its keys with parties that dropped out,
never a key between survivors, never the self mask of a party that dropped out.

A holder knows a dealer's hashes by their digest, without which the shares' envelope does not open.
Where a share does not fit, the dealer's word stands against the holder's (and, for the holder, the
coordinator's): the pair is named, never one of them alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from protocols import wire
from protocols.dealing import Labels, column_bytes, deal, disclose, read_disclosure
from protocols.envelope import TAG_BYTES, open_shares, seal_shares
from protocols.errors import (
    BrokenEnvelopeError,
    ConflictingMessageError,
    TooFewSharesError,
    UnexpectedMessageError,
    WrongShareError,
    WrongStateError,
)
from protocols.fields import KIB
from protocols.identity import PublicIdentity
from protocols.messages import Dealing, Reveal, ShareBundle, Verdict
from protocols.rounds.contribution import Contribution, opening_digest
from protocols.rounds.seating import COORDINATOR, SeatedRun, verify_handed_over
from protocols.secure_sum import SecureSum, SignedKey
from protocols.shamir import Elements, Shamir, elements_to_secrets
from protocols.wire import Signed

STAGE = "shares"
_FRAME_ROOM = 128
"""Bytes of hashes and of framing for each party in a bundle or a reveal."""


# A party's shares ---------------------------------------------------------------------------------


class ShareHolder:
    """One party's shares in one plan. Secret, in memory only, gone with the plan.

    The roots of the run are at the plan's epoch.
    """

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

        Args:
            keys: Key with every other seat.
            self_key: This party's self mask.
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

        Returns:
            The message to sign, with an empty disclosure for each share that differs from its
            dealer's hashes; and these dealers.

        Raises:
            RemoteProtocolError: the coordinator relayed something else; nothing was opened.
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


# The coordinator's shares ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ShareFault:
    """A share that was dropped, and who may be at fault.

    Attributes:
        dealer: Fingerprint of the party that dealt the share.
        holder: Fingerprint of the party that held it.
        named: Dealer and holder where the holder says that it got no share as signed: one word
            against the other. The holder alone where it showed a wrong share, since an honest one
            checks before it shows.
    """

    dealer: bytes
    holder: bytes
    named: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, repr=False)
class _Dealt:
    """A dealer's hashes, and its sealed share for each peer."""

    signed: Signed
    message: Dealing
    envelopes: Mapping[bytes, bytes]


class ShareCollector:
    """The shares of one plan at the coordinator, from the first dealing to the opened sum.

    Attributes:
        faults: Shares that were dropped.
    """

    def __init__(self, form: SecureSum, *, seats: tuple[bytes, ...], plan_digest: bytes) -> None:
        self._form = form
        self._seats = seats
        self._plan_digest = plan_digest
        self._dealt: dict[bytes, _Dealt] = {}
        self._survivors: tuple[bytes, ...] = ()
        self._dropped: list[int] = []
        self._shares: dict[bytes, dict[int, Elements]] = {}
        self._reveals: dict[bytes, bytes] = {}
        self._opening_digest = b""
        self.faults: tuple[ShareFault, ...] = ()

    @property
    def is_fixed(self) -> bool:
        """Whether the survivors are fixed."""
        return bool(self._survivors)

    @property
    def most_bytes(self) -> int:
        """Bound on a dealer's bytes beside its y, and on a holder's disclosures."""
        return len(self._seats) * (self._envelope_bytes + _FRAME_ROOM) + 4 * KIB

    # Dealing ----------------------------------------------------------------------------------

    def has_dealt(self, sender: bytes) -> bool:
        """Whether a party's shares are here."""
        return sender in self._dealt

    def take_dealing(
        self,
        bundle: ShareBundle,
        *,
        sender: bytes,
        identity: PublicIdentity,
        known_digest: bytes = b"",
    ) -> None:
        """Keep a party's dealing; `known_digest` is its digest from before a restart, if any.

        Raises:
            ConflictingMessageError: it dealt otherwise before.
            BadSignatureError: it did not sign its hashes.
            UnexpectedMessageError: not of this plan, or not one share for each peer.
        """
        if len(bundle.dealings) != 1:
            raise UnexpectedMessageError("a bundle must have its sender's dealing")
        signed = wire.decode(bundle.dealings[0])
        dealing = wire.expect(signed, Dealing)
        # A holder that meets a bad signature may then blame the coordinator.
        signed.verify(identity)
        fits = (
            bundle.plan_digest == dealing.plan_digest == self._plan_digest
            and dealing.sender == sender
            and dealing.is_among(len(self._seats))
            and len(bundle.envelopes) == len(self._seats) - 1
            and {len(envelope) for envelope in bundle.envelopes} == {self._envelope_bytes}
        )
        if not fits:
            raise UnexpectedMessageError("shares must be of this plan, one for each peer")
        if known_digest not in (b"", signed.digest):
            raise ConflictingMessageError("a party must deal once for a plan")
        peers = [seat for seat in self._seats if seat != sender]
        envelopes = dict(zip(peers, bundle.envelopes, strict=True))
        self._dealt[sender] = _Dealt(signed, dealing, envelopes)

    # Revealing --------------------------------------------------------------------------------

    def fix(self, verdict: Verdict) -> dict[bytes, bytes]:
        """Fix the survivors, all of whom dealt; return the shares that each of them needs.

        Raises:
            WrongStateError: they are fixed already.
        """
        if self.is_fixed:
            raise WrongStateError("survivors must be fixed once")
        self._survivors = survivors = verdict.survivors
        self._dropped = [place for place, seat in enumerate(self._seats) if seat not in survivors]
        self._shares = {dealer: {} for dealer in survivors}
        self._opening_digest = opening_digest(
            wire.digest_of(verdict), [self._dealt[dealer].signed.digest for dealer in survivors]
        )
        return {holder: self.bundle_for(holder) for holder in survivors}

    def bundle_for(self, holder: bytes) -> bytes:
        """Return the frame with the shares that the other survivors dealt to a holder."""
        dealt = [self._dealt[dealer] for dealer in self._survivors if dealer != holder]
        bundle = ShareBundle(
            self._plan_digest,
            tuple(one.signed.frame for one in dealt),
            tuple(one.envelopes[holder] for one in dealt),
        )
        return wire.contain(bundle)

    def take_reveal(self, signed: Signed) -> None:
        """Keep the shares of a `Reveal` that fit their dealers' hashes, and note the others.

        Raises:
            UnexpectedMessageError: not for the certified set, or of other dealings than the relayed
                ones: a holder is named for the dealings that it signed.
        """
        assert self.is_fixed
        reveal = wire.expect(signed, Reveal)
        if reveal.opening_digest != self._opening_digest:
            raise UnexpectedMessageError(
                "shares must be for the certified set, of the dealings that were relayed"
            )
        if len(reveal.disclosures) != len(self._survivors):
            raise UnexpectedMessageError(
                "one disclosure must be of each survivor", len(reveal.disclosures)
            )
        self._reveals[reveal.sender] = signed.digest
        holder = self._seats.index(reveal.sender)
        for dealer, disclosed in zip(self._survivors, reveal.disclosures, strict=True):
            if not disclosed:
                self._drop(dealer, reveal.sender, named=(dealer, reveal.sender))
                continue
            try:
                self._shares[dealer][holder] = read_disclosure(
                    disclosed,
                    self._dealt[dealer].message,
                    dealer=self._seats.index(dealer),
                    holder=holder,
                    dropped=self._dropped,
                )
            except WrongShareError:
                self._drop(dealer, reveal.sender, named=(reveal.sender,))

    def _drop(self, dealer: bytes, holder: bytes, *, named: tuple[bytes, ...]) -> None:
        self.faults = (*self.faults, ShareFault(dealer, holder, named))

    def contribution_of(self, party: bytes, *, vector_digest: bytes) -> Contribution:
        """Return the digests of a party's signed messages so far, given that of its y."""
        dealing = self._dealt[party].signed.digest
        return Contribution(vector_digest, dealing, self._reveals.get(party, b""))

    # Opening ----------------------------------------------------------------------------------

    def streams(self) -> list[SignedKey]:
        """Join the keys of all streams that are still in the total.

        Raises:
            TooFewSharesError: a survivor's secrets have fewer good shares than open them.
            WrongShareError: a survivor's shares open something else than it signed; names it.
        """
        survivors = [self._seats.index(dealer) for dealer in self._survivors]
        secrets = self._join()
        return [
            (sign, secrets[dealer][place])
            for dealer, place, sign in self._form.leftovers(survivors, parties=len(self._seats))
        ]

    def _join(self) -> dict[int, dict[int, bytes]]:
        """Every survivor's opened secrets, by its seat and the place of the secret."""
        threshold = self._form.threshold(len(self._seats))
        shamir = Shamir(threshold, len(self._seats))
        # Dealers with the same holders are joined together: mostly these are all.
        groups: dict[tuple[int, ...], list[bytes]] = {}
        for dealer, shares in self._shares.items():
            if len(shares) < threshold:
                raise TooFewSharesError(received=len(shares), threshold=threshold)
            groups.setdefault(tuple(sorted(shares)[:threshold]), []).append(dealer)
        secrets = {}
        for holders, dealers in groups.items():
            rows = [[self._shares[dealer][holder] for dealer in dealers] for holder in holders]
            joined = shamir.join(np.array(rows), holders=holders)
            for dealer, elements in zip(dealers, joined, strict=True):
                secrets[self._seats.index(dealer)] = self._checked(dealer, elements)
        return secrets

    def _checked(self, dealer: bytes, elements: Elements) -> dict[int, bytes]:
        seat, dealing = self._seats.index(dealer), self._dealt[dealer].message
        labels = Labels.of(dealing, dealer=seat)
        try:
            secrets = dict(zip((seat, *self._dropped), elements_to_secrets(elements), strict=True))
        except WrongShareError as error:
            raise error.from_peer(dealer.hex()) from error
        for place, secret in secrets.items():
            if labels.of_secret(place, secret) != dealing.secret_hash(place):
                raise WrongShareError(
                    "shares must join to the secret that was signed", peer=dealer.hex()
                )
        return secrets

    @property
    def _envelope_bytes(self) -> int:
        return column_bytes(len(self._seats)) + TAG_BYTES

    def __repr__(self) -> str:
        return f"ShareCollector(dealt={len(self._dealt)}, survivors={len(self._survivors)})"
