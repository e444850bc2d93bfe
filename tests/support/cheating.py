"""A coordinator that cheats: it speaks to real parties, tells each what it likes, and adds up."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from protocols import wire
from protocols.dealing import Dealt, read_disclosure
from protocols.envelope import open_shares
from protocols.errors import FalseCertificateError, VerdictError
from protocols.fields import DIGEST_BYTES, Message
from protocols.masked import MaskedSum
from protocols.messages import (
    Certificate,
    Dealing,
    MaskedVector,
    Reveal,
    SetProposal,
    ShareBundle,
    Verdict,
    VerdictMacs,
)
from protocols.prg import expand
from protocols.ring import Words
from protocols.rounds import PartyRound, PartyState
from protocols.rounds.contribution import Contribution
from protocols.rounds.opening.at_party import STAGE
from protocols.rounds.verdicts import verdict_macs
from protocols.secure_sum import SecureSum
from protocols.shamir import Shamir, elements_to_secrets, split_shares
from tests.support import reference_sharing as sharing
from tests.support.rounds import EXPIRES_AT, NOW, ready_run

Place = tuple[int, int]
"""Dealer's seat, and the seat that its secret is with: its own for the self mask."""


def dealt_otherwise(dealt: Dealt, *, dealer: int, holder: int, shares: bytes) -> Dealt:
    """A dealing that gives one holder other shares, and signs them."""
    message = dealt.message
    bare = sharing.Dealing(message.plan_digest, message.salt, dealer)
    columns, roots = list(dealt.columns), sharing.cut(message.column_roots, 32)
    columns[holder] = sharing.column_of(bare, shares, holder)
    roots[holder] = sharing.root_of_shares(bare, shares, holder)
    return Dealt(replace(message, column_roots=b"".join(roots)), tuple(columns))


class Cheat:
    """One batch in the hands of a coordinator that cheats, perhaps with some of the parties.

    Args:
        vectors: What the parties hold, in seat order.
        form: Secure sum.
        colluders: Seats that tell the coordinator all they have.

    Attributes:
        by_macs: Whether parties are shown MACs of the others' verdicts, not their signatures.
    """

    by_macs = False

    def __init__(
        self,
        vectors: Sequence[NDArray[np.int64]],
        *,
        form: Callable[[], SecureSum] = MaskedSum,
        colluders: Collection[int] = (),
    ) -> None:
        self.run = ready_run(len(vectors), form=form)
        self.colluders = set(colluders)
        self.parties = [self.run.parties[fp] for fp in self.run.coordinator.seats]
        self.plan = self.run.open_plan(len(vectors[0]))
        self.plan_digest = wire.decode(self.plan).digest
        self.bundles: list[ShareBundle] = []
        self.ys: list[Words] = []
        self.frames: list[list[bytes]] = []
        for seat, (party, vector) in enumerate(zip(self.parties, vectors, strict=True)):
            party.receive(self.plan, now=NOW)
            self.frames.append(list(party.contribute(vector)))
            bundle, y = (wire.decode(frame) for frame in self.frames[seat])
            self.bundles.append(wire.expect(bundle, ShareBundle))
            body = wire.expect(y, MaskedVector).body
            self.ys.append(self.run.form.ring.from_bytes(body))
        self.verdicts: dict[int, tuple[tuple[bytes, ...], bytes]] = {}
        self.macs: dict[int, VerdictMacs] = {}
        self._reveals: dict[int, bytes] = {}
        self._shares: dict[Place, dict[int, NDArray[np.int64]]] = {}
        for seat in self.colluders:
            self._take_all_of(seat)

    @property
    def honest(self) -> list[int]:
        return [seat for seat in range(len(self.parties)) if seat not in self.colluders]

    def fingerprint(self, seat: int) -> bytes:
        return self.run.coordinator.seats[seat]

    def signed(self, message: Message) -> bytes:
        return wire.sign(message, self.run.coordinator_identity).frame

    def chosen(self, survivors: Collection[int]) -> tuple[bytes, ...]:
        return tuple(self.fingerprint(seat) for seat in sorted(survivors))

    def proposal(self, survivors: Collection[int]) -> bytes:
        """Propose to open a set, or with none of them to close the plan."""
        run_id = self.run.coordinator.run_id
        return self.signed(SetProposal(run_id, self.plan_digest, self.chosen(survivors)))

    def ask(self, seat: int, survivors: Collection[int]) -> Verdict:
        """Propose a set to an honest party; take the verdict that it signs."""
        *macs, frame = self.parties[seat].receive(self.proposal(survivors), now=NOW).replies
        assert len(macs) == bool(survivors)
        if macs:
            self.macs[seat] = wire.expect(wire.decode(macs[0]), VerdictMacs)
        signed = wire.decode(frame)
        verdict = wire.expect(signed, Verdict)
        self.verdicts[seat] = verdict.survivors, signed.signature
        return verdict

    def agree(self, survivors: Collection[int]) -> None:
        """Propose a set to all honest parties of it; to close the plan, to all honest parties."""
        for seat in self.honest:
            if seat in survivors or not survivors:
                self.ask(seat, survivors)

    def signature(self, seat: int, message: Message) -> bytes:
        """What a colluder signs: anything."""
        return wire.sign(message, self.run.identities[self.fingerprint(seat)]).signature

    def signers(self, survivors: Collection[int]) -> dict[int, bytes]:
        """Signatures over one verdict: of the honest parties that gave it, and of all colluders."""
        chosen = self.chosen(survivors)
        given = {seat: sig for seat, (told, sig) in self.verdicts.items() if told == chosen}
        for seat in self.colluders:
            if seat in survivors or not survivors:
                given[seat] = self.signature(seat, Verdict(self.plan_digest, chosen))
        return dict(sorted(given.items()))

    def can_certify(self, survivors: Collection[int]) -> bool:
        """Whether there are enough signatures over one verdict."""
        return len(self.signers(survivors)) >= self.run.form.threshold(len(self.parties))

    def certificate(self, survivors: Collection[int]) -> bytes:
        """All signatures over one verdict, be they enough or not."""
        given = self.signers(survivors)
        message = Certificate(
            self.plan_digest,
            self.chosen(survivors),
            self.chosen(given),
            tuple(given.values()),
        )
        return wire.contain(message)

    def envelope(self, dealer: int, holder: int) -> bytes:
        return self.bundles[dealer].envelopes[holder - (dealer < holder)]

    def bundle(self, survivors: Collection[int], holder: int) -> bytes:
        others = [seat for seat in sorted(survivors) if seat != holder]
        dealings = tuple(self.bundles[seat].dealings[0] for seat in others)
        envelopes = tuple(self.envelope(seat, holder) for seat in others)
        return wire.contain(ShareBundle(self.plan_digest, dealings, envelopes))

    def proof(self, holder: int, survivors: Collection[int]) -> bytes:
        """MACs for one party of all verdicts for a set, be they enough or not."""
        seats = self.run.coordinator.seats
        verdict = Verdict(self.plan_digest, self.chosen(survivors))
        macs = []
        for seat in range(len(seats)):
            place = holder - (seat < holder)
            if seat == holder:
                continue
            if seat in self.colluders:
                peers = [peer for peer in seats if peer != seats[seat]]
                roots = self.parties[seat].roots
                macs.append(verdict_macs(verdict, peers=peers, roots=roots).macs[place])
            elif self.verdicts.get(seat, ((), b""))[0] == verdict.survivors:
                macs.append(self.macs[seat].macs[place])
            else:
                macs.append(b"")
        return wire.contain(VerdictMacs(self.plan_digest, tuple(macs)))

    def tell(self, holder: int, survivors: Collection[int]) -> Reveal:
        """Show a party that enough others gave its verdict; take what it reveals."""
        party = self.parties[holder]
        shown = self.proof(holder, survivors) if self.by_macs else self.certificate(survivors)
        assert not party.receive(shown, now=NOW).replies
        (frame,) = party.receive(self.bundle(survivors, holder), now=NOW).replies
        self._reveals[holder] = wire.decode(frame).digest
        reveal = wire.expect(wire.decode(frame), Reveal)
        dropped = [seat for seat in range(len(self.parties)) if seat not in survivors]
        for dealer, data in zip(sorted(survivors), reveal.disclosures, strict=True):
            shares = read_disclosure(
                data, self.dealing(dealer), dealer=dealer, holder=holder, dropped=dropped
            )
            for place, share in zip((dealer, *dropped), shares, strict=True):
                self._shares.setdefault((dealer, place), {})[holder] = share
        return reveal

    def open(self, survivors: Collection[int]) -> None:
        """Open a set with all honest parties of it, as an honest coordinator does."""
        self.agree(survivors)
        for holder in self.honest:
            if holder in survivors:
                self.tell(holder, survivors)

    def tell_two_stories(self, victim: int, stories: Mapping[int, bool]) -> list[list[int]]:
        """Get all verdicts and shares that two stories give.

        Args:
            victim: Seat of which the stories are.
            stories: By honest seat, whether it is told that the victim survived.

        Returns:
            The sets that opened.
        """
        everyone = list(range(len(self.parties)))
        sets = {True: everyone, False: [seat for seat in everyone if seat != victim]}
        told = {}
        for holder, survived in stories.items():
            if holder == victim and not survived:  # it agrees to no set without itself
                with pytest.raises(VerdictError):
                    self.ask(holder, sets[survived])
            else:
                self.ask(holder, sets[survived])
                told[holder] = sets[survived]
        opened = [survivors for survivors in sets.values() if self.can_certify(survivors)]
        for holder, survivors in told.items():
            if survivors in opened:
                self.tell(holder, survivors)
            else:
                with pytest.raises(FalseCertificateError):
                    self.tell(holder, survivors)
                # Wrong MACs are a peer's, perhaps; a wrong certificate is the coordinator's.
                left = PartyState.JUDGED if self.by_macs else PartyState.STOPPED
                assert self.parties[holder].state is left
        return opened

    def entry(self, seat: int) -> bytes:
        """What a settlement must say of a party: all that it signed."""
        vector = wire.decode(self.frames[seat][1]).digest
        dealing = wire.decode(self.bundles[seat].dealings[0]).digest
        return Contribution(vector, dealing, self._reveals.get(seat, b"")).digest

    def dealing(self, dealer: int) -> Dealing:
        return wire.expect(wire.decode(self.bundles[dealer].dealings[0]), Dealing)

    def _take_all_of(self, colluder: int) -> None:
        """Open every column that a colluder holds."""
        party = self.parties[colluder]
        for dealer in range(len(self.parties)):
            if dealer != colluder:
                column = self.column(party, dealer)
                for place, share in enumerate(split_shares(column[DIGEST_BYTES:])):
                    self._shares.setdefault((dealer, place), {})[colluder] = share

    def column(self, party: PartyRound, dealer: int) -> bytes:
        holder = self.parties.index(party)
        key = party.roots.receiving_key(
            self.fingerprint(dealer), plan_digest=self.plan_digest, stage=STAGE
        )
        digest = wire.digest_of(self.dealing(dealer))
        return open_shares(self.envelope(dealer, holder), key, dealing_digest=digest)

    # What comes of it -------------------------------------------------------------------------

    def held(self, dealer: int, place: int) -> int:
        """Shares of a secret that the coordinator holds."""
        return len(self._shares.get((dealer, place), {}))

    def secret(self, dealer: int, place: int) -> bytes | None:
        """A secret, if enough shares are there."""
        parties = len(self.parties)
        threshold = self.run.form.threshold(parties)
        shares = self._shares.get((dealer, place), {})
        if len(shares) < threshold:
            return None
        holders = sorted(shares)[:threshold]
        rows = np.array([shares[holder][None] for holder in holders])
        return elements_to_secrets(Shamir(threshold, parties).join(rows, holders=holders))[0]

    def streams(self, seat: int) -> Mapping[int, bytes | None]:
        """Key of each stream in a seat's y, by the seat it is with; None where it stays closed."""
        keys: dict[int, bytes | None] = {seat: self.secret(seat, seat)}
        for peer in range(len(self.parties)):
            if peer == seat:
                continue
            if peer in self.colluders:
                roots = self.parties[peer].roots
                keys[peer] = roots.keys_for(self.plan_digest)[self.fingerprint(seat)]
            else:
                keys[peer] = self.secret(seat, peer) or self.secret(peer, seat)
        return keys

    def closed(self, seat: int) -> set[int]:
        """Streams of a seat's y that the coordinator cannot take off."""
        return {peer for peer, key in self.streams(seat).items() if key is None}

    def residual(self, seat: int) -> Words:
        """A seat's y without the streams that the coordinator can take off."""
        ring = self.run.form.ring
        left = self.ys[seat].copy()
        for peer, key in self.streams(seat).items():
            if key is not None:
                stream = expand(key, len(left), ring=ring, keystream=self.run.form.keystream)
                left = left - stream if peer >= seat else left + stream
        return left


EXPIRED = float(EXPIRES_AT)
