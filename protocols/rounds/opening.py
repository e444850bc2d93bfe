"""How the coordinator opens a sum that fewer than all parties gave: their shares, checked.

Until the survivors are fixed it keeps what each party dealt, which it cannot open itself. Then it
hands every survivor its shares, and joins what enough of them reveal. A share that is not what
its dealer signed is dropped, and somebody is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from protocols import wire
from protocols.dealing import Labels, column_bytes, read_disclosure
from protocols.errors import (
    ConflictingMessageError,
    TooFewSharesError,
    UnexpectedMessageError,
    WrongShareError,
    WrongStateError,
)
from protocols.identity import PublicIdentity
from protocols.messages import KIB, Dealing, Reveal, ShareBundle
from protocols.rounds.contribution import Contribution, opening_digest
from protocols.secure_sum import SecureSum, SignedKey
from protocols.shamir import Elements, Shamir, elements_to_secrets
from protocols.share_envelope import TAG_BYTES
from protocols.wire import Signed

_FRAME_ROOM = 128
"""Bytes of hashes and of framing for each party in a bundle or a reveal."""


@dataclass(frozen=True, slots=True)
class ShareFault:
    """A share that was dropped, and who is to be asked about it.

    Attributes:
        dealer: Fingerprint of the party whose share it was.
        holder: Fingerprint of the party that held it.
        named: The dealer where the holder says that it got none as signed; the holder where it
            showed another one, since a holder checks before it shows.
    """

    dealer: bytes
    holder: bytes
    named: bytes


@dataclass(frozen=True, slots=True, repr=False)
class _Dealt:
    """What a dealer sent for its peers."""

    signed: Signed
    message: Dealing
    envelopes: Mapping[bytes, bytes]


class SumOpening:
    """The shares of one plan, from the first dealer to the opened sum.

    Args:
        form: Secure sum, one that survives drop-outs.
        seats: Fingerprints of all parties, in seat order.
        plan_digest: The plan.
    """

    def __init__(self, form: SecureSum, *, seats: tuple[bytes, ...], plan_digest: bytes) -> None:
        self._form = form
        self._seats = seats
        self._plan_digest = plan_digest
        self._dealt: dict[bytes, _Dealt] = {}
        self._survivor_set: Signed | None = None
        self._survivors: tuple[bytes, ...] = ()
        self._dropped: list[int] = []
        self._shares: dict[bytes, dict[int, Elements]] = {}
        self._reveals: dict[bytes, bytes] = {}
        self._opening_digest = b""
        self._faults: list[ShareFault] = []

    @property
    def is_fixed(self) -> bool:
        """Whether the survivors are fixed."""
        return self._survivor_set is not None

    @property
    def survivors(self) -> tuple[bytes, ...]:
        """The survivors, in seat order; none before they are fixed."""
        return self._survivors

    @property
    def faults(self) -> tuple[ShareFault, ...]:
        """Shares that were dropped."""
        return tuple(self._faults)

    @property
    def most_bytes(self) -> int:
        """Bound on what a dealer sends beside its y, and on what a holder reveals."""
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
        """Keep what a party dealt.

        Args:
            bundle: What came.
            sender: Fingerprint of the party.
            identity: Its identity.
            known_digest: Digest of its dealing that others heard of before a restart, if any.

        Raises:
            ConflictingMessageError: it dealt otherwise before.
            BadSignatureError: it did not sign its hashes.
            UnexpectedMessageError: not of this plan, or not one share for each peer.
        """
        if len(bundle.dealings) != 1:
            raise UnexpectedMessageError("a bundle must have its sender's dealing", "others")
        signed = wire.decode(bundle.dealings[0])
        dealing = wire.expect(signed, Dealing)
        # So that a holder who meets a bad signature knows that it was not relayed in faith.
        signed.verify(identity)
        fits = (
            bundle.plan_digest == dealing.plan_digest == self._plan_digest
            and dealing.sender == sender
            and dealing.is_among(len(self._seats))
            and len(bundle.envelopes) == len(self._seats) - 1
            and {len(envelope) for envelope in bundle.envelopes} == {self._envelope_bytes}
        )
        if not fits:
            raise UnexpectedMessageError("shares must be of this plan, one for each peer", "others")
        if known_digest not in (b"", signed.digest):
            raise ConflictingMessageError("a party must deal once for a plan", "otherwise")
        peers = [seat for seat in self._seats if seat != sender]
        envelopes = dict(zip(peers, bundle.envelopes, strict=True))
        self._dealt[sender] = _Dealt(signed, dealing, envelopes)

    # Revealing --------------------------------------------------------------------------------

    def fix(self, survivor_set: Signed, survivors: tuple[bytes, ...]) -> dict[bytes, list[bytes]]:
        """Fix the survivors, all of whom dealt; return the frames that each of them needs.

        Raises:
            WrongStateError: they are fixed already.
        """
        if self.is_fixed:
            raise WrongStateError("survivors must be fixed once", "a second time")
        self._survivor_set = survivor_set
        self._survivors = survivors
        self._dropped = [place for place, seat in enumerate(self._seats) if seat not in survivors]
        self._shares = {dealer: {} for dealer in survivors}
        self._opening_digest = opening_digest(
            survivor_set.digest, [self._dealt[dealer].signed.digest for dealer in survivors]
        )
        return {holder: [survivor_set.frame, self._bundle_for(holder)] for holder in survivors}

    def _bundle_for(self, holder: bytes) -> bytes:
        dealt = [self._dealt[dealer] for dealer in self._survivors if dealer != holder]
        bundle = ShareBundle(
            self._plan_digest,
            tuple(one.signed.frame for one in dealt),
            tuple(one.envelopes[holder] for one in dealt),
        )
        return wire.contain(bundle)

    def take_reveal(self, signed: Signed) -> None:
        """Keep the shares of a `Reveal` that are what their dealers signed, and note the others.

        Raises:
            UnexpectedMessageError: not for this survivor set, or of other dealings than those that
                were relayed: a holder is named for what it signed that it used.
        """
        assert self.is_fixed
        reveal = wire.expect(signed, Reveal)
        if reveal.opening_digest != self._opening_digest:
            raise UnexpectedMessageError(
                "shares must be for the survivor set, of the dealings that were relayed", "another"
            )
        if len(reveal.disclosures) != len(self._survivors):
            raise UnexpectedMessageError("one disclosure must be of each survivor", "others")
        self._reveals[reveal.sender] = signed.digest
        holder = self._seats.index(reveal.sender)
        for dealer, disclosed in zip(self._survivors, reveal.disclosures, strict=True):
            if not disclosed:
                self._faults.append(ShareFault(dealer, reveal.sender, named=dealer))
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
                self._faults.append(ShareFault(dealer, reveal.sender, named=reveal.sender))

    def contribution_of(self, party: bytes, *, vector_digest: bytes) -> Contribution:
        """Say what a party whose y came signed for this plan until now."""
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
                    "shares must join to the secret that was signed", "another", peer=dealer.hex()
                )
        return secrets

    @property
    def _envelope_bytes(self) -> int:
        return column_bytes(len(self._seats)) + TAG_BYTES

    def __repr__(self) -> str:
        return f"SumOpening(dealt={len(self._dealt)}, survivors={len(self._survivors)})"
