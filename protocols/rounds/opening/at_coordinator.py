"""Shares at the coordinator: collected, compared with their dealings, and joined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from protocols import wire
from protocols.dealing import Labels, column_bytes, read_disclosure
from protocols.envelope import TAG_BYTES
from protocols.errors import (
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
from protocols.secure_sum import SecureSum, SignedKey
from protocols.shamir import Elements, Shamir, elements_to_secrets
from protocols.wire import Signed

_FRAME_ROOM = 128
"""Bytes of hashes and of framing for each party in a bundle or a reveal."""


@dataclass(frozen=True, slots=True)
class ShareFault:
    """A share that was dropped, and who may be at fault, by fingerprint.

    `named` are dealer and holder where the holder says that it got no share as signed: one word
    against the other. The holder alone where it showed a wrong share, since an honest one checks
    before it shows.
    """

    dealer: bytes
    holder: bytes
    named: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, repr=False)
class _Dealt:
    signed: Signed
    message: Dealing
    envelopes: Mapping[bytes, bytes]


class ShareCollector:
    """The shares of one plan at the coordinator, from the first dealing to the opened sum."""

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
        """Fix the survivors, all of whom dealt, once; return the shares that each of them needs."""
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

        It is for the certified set, of the relayed dealings: a holder is named for the dealings
        that it signed.
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

        Raises `TooFewSharesError`, or `WrongShareError`, which names a survivor whose shares open
        something else than it signed.
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
