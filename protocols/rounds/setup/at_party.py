"""The setup of a run at a party: its keys, and a root with each peer."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence

from protocols import wire
from protocols.envelope import SealingKey, require_key_of, seal
from protocols.errors import (
    BrokenEnvelopeError,
    HistoryError,
    KeyConfirmationError,
    MalformedMessageError,
    RemoteProtocolError,
    SuiteError,
    UnexpectedMessageError,
    UnknownPeerError,
)
from protocols.identity import PublicIdentity
from protocols.messages import (
    Confirmations,
    Envelope,
    EnvelopeBundle,
    KeyStatement,
    RunInquiry,
    RunOffer,
    RunRecord,
    SetupClosing,
)
from protocols.pair_keys import PairRoots, confirmation, make_root
from protocols.rounds.seating import (
    COORDINATOR,
    ROLE_PARTY,
    ROLE_TALLY,
    SeatedRun,
    Seating,
    require_fresh,
    require_statement,
    setup_digest,
    verify_handed_over,
)
from protocols.run_scope import tally_of
from protocols.secure_sum import RoundForm
from protocols.wire import Signed

_HALF_BYTES = 32


class PartySetup:
    """A party's end: from the offer to confirmed roots; see `PartyRound` for its arguments."""

    def __init__(
        self,
        run: SeatedRun,
        *,
        known_peers: Mapping[bytes, PublicIdentity],
        forms: Mapping[str, RoundForm],
        suites: frozenset[str],
        tally: PublicIdentity | None,
    ) -> None:
        self._run = run
        self._tally = tally
        self._known_peers = dict(known_peers)
        self._forms = dict(forms)
        self._suites = suites
        self._sealing_key: SealingKey | None = None
        self._offer: Signed | None = None
        self._statement: Signed | None = None
        self._statements: tuple[KeyStatement, ...] = ()
        self._halves: dict[bytes, bytes] = {}
        self._unconfirmed: dict[bytes, bytes] = {}
        self._confirmations: Signed | None = None

    def require_joinable(self, signed: Signed, inquiry: RunInquiry) -> None:
        """Check of an inquiry before an offer what would be checked of the offer and its record.

        Not whether our people pinned its tally: it is for them to hear of that.
        """
        verify_handed_over(signed, self._run.coordinator)
        self._require_coordinator(inquiry.coordinator)
        form = self._form_of(inquiry)
        if inquiry.tally and not form.adds_noise:
            raise UnexpectedMessageError("this form must have no tally", peer=COORDINATOR)
        self._require_seats(inquiry.seats)
        form.require_enough(len(inquiry.seats))

    def state(self, signed: Signed, offer: RunOffer, *, now: float) -> bytes:
        """Answer an offer that is for this party with its keys for the run; return the frame."""
        self._require_coordinator(PublicIdentity(offer.coordinator_key).fingerprint)
        self._form_of(offer)
        require_fresh(offer.expires_at, now=now)
        self._sealing_key = SealingKey(offer.suite)
        statement = KeyStatement(
            offer_digest=signed.digest,
            identity_key=self._run.identity.public.key,
            sealing_key=self._sealing_key.public_bytes,
            nonce=self._run.random_bytes(32),
            role=ROLE_PARTY,
            expires_at=offer.expires_at,
            journal_counter=self._run.journal.counter,
        )
        self._offer = signed
        self._statement = wire.sign(statement, self._run.identity)
        return self._statement.frame

    def read_record(self, signed: Signed, record: RunRecord, *, now: float) -> None:
        """Check that a run's record keeps to the offer, among known parties; agree to nothing."""
        assert self._offer is not None
        offer = wire.expect(self._offer, RunOffer)
        if record.suite != offer.suite:
            raise SuiteError("a run must keep to its offer's suite", record.suite, peer=COORDINATOR)
        same = (
            record.offer_digest == self._offer.digest
            and record.coordinator == self._run.coordinator.fingerprint
            and record.form == offer.form
            and record.ring_bits == offer.ring_bits
            and record.expires_at == offer.expires_at
            and record.simulated == offer.simulated
        )
        if not same:
            raise UnexpectedMessageError("a run record must keep to its offer", peer=COORDINATOR)
        require_fresh(record.expires_at, now=now)
        form = self._forms[record.form]
        self._require_aggregators(record, form)
        if record.absent and form.has_pair_keys:
            raise UnexpectedMessageError("this form must have all of its parties", peer=COORDINATOR)
        statements = self._checked_statements(record)
        form.require_present(len(statements), parties=len(statements) + len(record.absent))
        self._statements = statements
        keys = (PublicIdentity(each.identity_key) for each in self._statements)
        identities = {seat: self._known_peers[seat] for seat in record.absent}
        identities |= {identity.fingerprint: identity for identity in keys}
        seated = dict(sorted(identities.items()))
        self._run.seating = Seating(signed.digest, record, form, seated, self._run.me)

    def _checked_statements(self, record: RunRecord) -> tuple[KeyStatement, ...]:
        assert self._statement is not None
        if self._statement.frame not in record.statements:
            raise UnknownPeerError("our own statement must be in the run record")
        stated = [wire.decode(frame) for frame in record.statements]
        statements = [wire.expect(signed, KeyStatement) for signed in stated]
        identities = [PublicIdentity(statement.identity_key) for statement in statements]
        present = [identity.fingerprint for identity in identities]
        self._require_seats(sorted((*present, *record.absent)))
        if present != sorted(present) or list(record.absent) != sorted(record.absent):
            raise UnknownPeerError("seats must be in the order of fingerprints, none twice")
        counters = self._run.journal.witnessed()
        for signed, statement, identity in zip(stated, statements, identities, strict=True):
            # Its signature first: what follows names the party that stated it.
            verify_handed_over(signed, identity)
            peer = identity.fingerprint
            require_statement(
                statement,
                peer,
                offer_digest=record.offer_digest,
                suite=record.suite,
                expires_at=record.expires_at,
            )
            if statement.journal_counter < counters.get(peer, 0):
                raise HistoryError(
                    "a party's journal must not be older than what it signed",
                    pair=(peer.hex(), COORDINATOR),  # which may have held the statement back
                )
        if len({statement.sealing_key for statement in statements}) != len(statements):
            raise UnknownPeerError("sealing keys must differ")
        return tuple(statements)

    def _require_aggregators(self, record: RunRecord, form: RoundForm) -> None:
        """Check a record's keys for reports: the pinned tally signed its own for this offer."""
        self._require_tally(form, tally_of(record))
        if not form.adds_noise:
            if record.sealing_key:
                raise UnexpectedMessageError("this form must have no reports", peer=COORDINATOR)
            return
        assert self._tally is not None
        signed = wire.decode(record.tally)
        verify_handed_over(signed, self._tally)
        require_statement(
            wire.expect(signed, KeyStatement),
            self._tally.fingerprint,
            offer_digest=record.offer_digest,
            suite=record.suite,
            expires_at=record.expires_at,
            role=ROLE_TALLY,
        )
        require_key_of(record.suite, record.sealing_key)

    def _require_tally(self, form: RoundForm, fingerprint: bytes) -> None:
        pinned = b"" if self._tally is None or not form.adds_noise else self._tally.fingerprint
        if fingerprint != pinned or (form.adds_noise and not pinned):
            raise UnknownPeerError("a run's tally must be the pinned one", peer=COORDINATOR)

    def _require_coordinator(self, fingerprint: bytes) -> None:
        if fingerprint != self._run.coordinator.fingerprint:
            raise UnknownPeerError("the coordinator must be the pinned one", peer=COORDINATOR)

    def _form_of(self, message: RunOffer | RunInquiry) -> RoundForm:
        form = self._forms.get(message.form)
        if form is None or message.ring_bits != form.ring_bits:
            raise UnexpectedMessageError(
                "the form and its ring must be known to this party", message.form, peer=COORDINATOR
            )
        if message.suite not in self._suites:
            raise SuiteError(
                "the suite must be one that this party accepts", message.suite, peer=COORDINATOR
            )
        return form

    def _require_seats(self, seats: Sequence[bytes]) -> None:
        for seat in seats:
            if seat != self._run.me and seat not in self._known_peers:
                raise UnknownPeerError("every party must be known here", peer=seat.hex())
        if list(seats) != sorted(set(seats)):
            raise UnknownPeerError("seats must be in the order of fingerprints, none twice")
        if self._run.me not in seats:
            raise UnknownPeerError("our own seat must be in the run", peer=COORDINATOR)

    def enter(self) -> None:
        """Agree to the run, and note it."""
        seating = self._run.known
        stated = {PublicIdentity(each.identity_key).fingerprint: each for each in self._statements}
        stated.pop(self._run.me)
        counters = {peer: each.journal_counter for peer, each in stated.items()}
        self._run.journal.enter(seating.note)
        self._run.journal.witness(counters)

    def seal(self) -> bytes:
        """Agree to the run: seal a half of each pair's root; return the frame.

        Raises `MalformedMessageError` where a peer's sealing key is unusable; names the peer.
        """
        seating = self._run.known
        keys = dict(zip(seating.fingerprints, self._statements, strict=True))
        frames = []
        for peer in seating.peers:
            half = self._run.random_bytes(_HALF_BYTES)
            self._halves[peer] = half
            try:
                sealed = seal(
                    half,
                    keys[peer].sealing_key,
                    suite=seating.record.suite,
                    run_id=seating.run_id,
                    sender=self._run.me,
                    receiver=peer,
                )
            except MalformedMessageError as error:
                raise error.from_peer(peer.hex()) from error
            envelope = Envelope(seating.run_id, self._run.me, peer, sealed)
            frames.append(wire.sign(envelope, self._run.identity).frame)
        self.enter()
        return wire.contain(EnvelopeBundle(seating.run_id, tuple(frames)))

    def confirm(self, bundle: EnvelopeBundle) -> bytes:
        """Open the peers' halves and confirm each root to its peer; return the frame."""
        seating, roots = self._run.known, {}
        for frame in bundle.envelopes:
            signed = wire.decode(frame)
            envelope = wire.expect(signed, Envelope)
            sender = envelope.sender
            if sender not in self._halves or sender in roots:
                raise UnexpectedMessageError("one envelope must come from each peer")
            verify_handed_over(signed, seating.identities[sender])
            if envelope.run_id != seating.run_id or envelope.receiver != self._run.me:
                # Its sender signed where it must go: the coordinator delivered it wrongly.
                raise UnexpectedMessageError(
                    "an envelope must be for this run and party", peer=COORDINATOR
                )
            try:
                roots[sender] = self._root_with(sender, envelope.sealed)
            except RemoteProtocolError as error:
                raise error.from_peer(sender.hex()) from error
        if len(roots) != len(self._halves):
            raise UnexpectedMessageError("one envelope must come from each peer", len(roots))
        self._halves.clear()
        self._sealing_key = None
        self._unconfirmed = roots
        macs = tuple(
            confirmation(roots[peer], run_id=seating.run_id, sender=self._run.me, receiver=peer)
            for peer in seating.peers
        )
        message = Confirmations(seating.run_id, self._run.me, macs)
        self._confirmations = wire.sign(message, self._run.identity)
        return self._confirmations.frame

    def _root_with(self, peer: bytes, sealed: bytes) -> bytes:
        assert self._sealing_key is not None
        run_id, me = self._run.run_id, self._run.me
        theirs = self._sealing_key.open(sealed, run_id=run_id, sender=peer, receiver=me)
        if len(theirs) != _HALF_BYTES:
            raise BrokenEnvelopeError(f"a half must have {_HALF_BYTES} bytes", len(theirs))
        return make_root({me: self._halves[peer], peer: theirs}, run_id=run_id)

    def finish(self, closing: SetupClosing) -> None:
        """Check the peers' confirmations: the run has its roots.

        Raises `KeyConfirmationError` where a MAC is wrong. It names the peer and the coordinator,
        which relayed it: the peer's signature covers more than this MAC and cannot clear either.
        """
        assert self._confirmations is not None
        seating = self._run.known
        counts = len(closing.macs), len(closing.confirmation_digests)
        if counts != (len(seating.peers), len(seating.identities)):
            raise UnexpectedMessageError("one MAC must come from each peer", len(closing.macs))
        for peer, mac in zip(seating.peers, closing.macs, strict=True):
            expected = confirmation(
                self._unconfirmed[peer], run_id=seating.run_id, sender=peer, receiver=self._run.me
            )
            if not hmac.compare_digest(mac, expected):
                raise KeyConfirmationError(
                    "both ends must hold the same root",
                    pair=(peer.hex(), COORDINATOR),
                )
        if closing.confirmation_digests[seating.seat] != self._confirmations.digest:
            raise HistoryError("our own confirmations must be listed", peer=COORDINATOR)
        self._run.roots, self._unconfirmed = PairRoots(self._run.me, self._unconfirmed), {}
        self._run.extend("setup", setup_digest(closing.confirmation_digests))

    def forget(self) -> None:
        """Drop all secrets."""
        self._halves.clear()
        self._unconfirmed.clear()
        self._sealing_key = None
