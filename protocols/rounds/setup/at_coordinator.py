"""The setup of a run at the coordinator: it collects the parties' messages, and relays them."""

from __future__ import annotations

from protocols import wire
from protocols.errors import HistoryError, UnexpectedMessageError, UnknownPeerError, WrongStateError
from protocols.messages import (
    Confirmations,
    Envelope,
    EnvelopeBundle,
    KeyStatement,
    Ready,
    Refusal,
    RunOffer,
    RunRecord,
    SetupClosing,
)
from protocols.rounds.coordinator_journal import SetupFinished
from protocols.rounds.live_run import LiveRun
from protocols.rounds.seating import require_run, require_statement, setup_digest
from protocols.rounds.states import CoordinatorState
from protocols.wire import Signed


class CoordinatorSetup:
    """The coordinator's end: collects statements, envelopes and confirmations, and relays them."""

    def __init__(self, run: LiveRun, offer: Signed) -> None:
        self._run = run
        self._confirmation_frames: tuple[bytes, ...] = ()
        self.offer = offer

    @property
    def signed_record(self) -> Signed:
        """The run record, signed; `WrongStateError` before it is made."""
        if self._run.record is None:
            raise WrongStateError("a run must be recorded")
        return self._run.record

    @property
    def record(self) -> RunRecord:
        """The run record; see `signed_record`."""
        return wire.expect(self.signed_record, RunRecord)

    def check_statement(
        self, statement: KeyStatement, sender: bytes, *, least_counter: int
    ) -> None:
        """Check a party's keys for this offer.

        Its journal's counter is not below `least_counter`, which it signed before.
        """
        offer = wire.expect(self.offer, RunOffer)
        require_statement(
            statement,
            sender,
            offer_digest=self.offer.digest,
            suite=offer.suite,
            expires_at=offer.expires_at,
        )
        if statement.journal_counter < least_counter:
            raise HistoryError(
                "a party's journal must not be older than what it signed", peer=sender.hex()
            )

    def make_record(
        self,
        *,
        terms: bytes,
        colluders: int,
        dropouts: int,
        sealing_key: bytes = b"",
        tally: bytes = b"",
    ) -> bytes:
        """Fix the run under its terms and return its record, once each party stated its keys.

        Parties that the run is set up without are absent in it.

        `colluders` may collude with the coordinator, `dropouts` may be lost; the rest is as in the
        `RunRecord`. Without pair keys each party is ready with it.
        """
        run, offer = self._run, wire.expect(self.offer, RunOffer)
        run.exchange.require(CoordinatorState.RECORDED)
        present = tuple(seat for seat in run.seats if run.exchange.message_of(seat) is not None)
        record = RunRecord(
            offer_digest=self.offer.digest,
            coordinator=run.identity.fingerprint,
            statements=tuple(statement.frame for statement in run.exchange.collected()),
            form=offer.form,
            ring_bits=offer.ring_bits,
            suite=offer.suite,
            threshold=len(run.seats) - dropouts,
            colluders=colluders,
            dropouts=dropouts,
            expires_at=offer.expires_at,
            simulated=offer.simulated,
            sealing_key=sealing_key,
            tally=tally,
            absent=tuple(seat for seat in run.seats if seat not in present),
            terms=terms,
        )
        run.record = wire.sign(record, run.identity)
        run.extend("run record", run.record.digest)
        if not run.form.has_pair_keys:
            run.exchange.begin(CoordinatorState.CONFIRMED, present)
        return run.record.frame

    def check_bundle(self, bundle: EnvelopeBundle, sender: bytes) -> None:
        """Check a sender's envelopes: the receiver of a bad one then knows whom to blame."""
        require_run(bundle.run_id, self._run.run_id)
        receivers = []
        for frame in bundle.envelopes:
            signed = wire.decode(frame)
            envelope = wire.expect(signed, Envelope)
            signed.verify(self._run.parties[sender])
            if envelope.sender != sender or envelope.run_id != self._run.run_id:
                raise UnexpectedMessageError("an envelope must be its sender's, of this run")
            receivers.append(envelope.receiver)
        if receivers != [seat for seat in self._run.seats if seat != sender]:
            raise UnexpectedMessageError("one envelope must be for each peer", len(receivers))

    def check_confirmations(self, message: Confirmations) -> None:
        """Check that a party's confirmations have one MAC for each peer."""
        require_run(message.run_id, self._run.run_id)
        if len(message.macs) != len(self._run.seats) - 1:
            raise UnexpectedMessageError("one MAC must be for each peer", len(message.macs))

    def deliver(self) -> dict[bytes, bytes]:
        """Return, by receiver, the frame with the envelopes addressed to it, once all are here."""
        run = self._run
        run.exchange.require(CoordinatorState.DELIVERED)
        boxes: dict[bytes, list[bytes]] = {seat: [] for seat in run.seats}
        for seat, signed in zip(run.seats, run.exchange.collected(), strict=True):
            bundle = wire.expect(signed, EnvelopeBundle)
            peers = [peer for peer in run.seats if peer != seat]
            for receiver, frame in zip(peers, bundle.envelopes, strict=True):
                boxes[receiver].append(frame)
        return {
            seat: wire.contain(EnvelopeBundle(run.run_id, tuple(box)))
            for seat, box in boxes.items()
        }

    def close(self) -> dict[bytes, bytes]:
        """Return, by receiver, the frame with its peers' confirmations, once all are here."""
        run = self._run
        run.exchange.require(CoordinatorState.CONFIRMED)
        confirmations = run.exchange.collected()
        messages = [wire.expect(signed, Confirmations) for signed in confirmations]
        digests = tuple(signed.digest for signed in confirmations)
        self._confirmation_frames = tuple(signed.frame for signed in confirmations)
        frames = {}
        for place, seat in enumerate(run.seats):
            # A sender's MACs leave its own seat out, so later seats stand one place earlier.
            macs = tuple(
                message.macs[place - (sender_place < place)]
                for sender_place, message in enumerate(messages)
                if sender_place != place
            )
            closing = SetupClosing(run.run_id, macs, digests)
            frames[seat] = wire.sign(closing, run.identity).frame
        run.extend("setup", setup_digest(digests))
        return frames

    def finish(self) -> None:
        """Note that every party is ready: from here on the run goes on after a restart."""
        run = self._run
        offer, record = self.offer.frame, self.signed_record.frame
        ready = run.exchange.frames_of(run.seats)
        run.do(SetupFinished(offer, record, self._confirmation_frames, ready))

    def recognize(self, frame: bytes) -> bytes:
        """Tell which party answered a run record that was sent again; changes nothing.

        A party that is still in the run repeats its answer. Any other party refuses. Both sign.
        Anything else is a `RemoteProtocolError`.
        """
        signed = wire.decode(frame)
        match signed.message:
            case EnvelopeBundle(run_id=run_id, envelopes=envelopes) if envelopes:
                require_run(run_id, self._run.run_id)
                signed = wire.decode(envelopes[0])
                sender = wire.expect(signed, Envelope).sender
            case Ready(run_id=run_id, sender=sender):
                require_run(run_id, self._run.run_id)
            case Refusal():
                sender = signed.message.sender
            case _:
                raise UnexpectedMessageError(
                    "an answer must be that to a run record", type(signed.message).__name__
                )
        if sender not in self._run.parties:
            raise UnknownPeerError("an answer must be a party's")
        signed.verify(self._run.parties[sender])
        return sender
