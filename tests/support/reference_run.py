"""A second reader of whole runs: from the frames and private keys of a vector to the opened sum.

From the wire format's page alone. It takes frames, private keys and nothing that was computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from cryptography.exceptions import InvalidTag

from tests.support import reference_frames as frames
from tests.support import reference_sharing as sharing
from tests.support import reference_sum as sums
from tests.support.reference_crypto import hpke_open_x25519
from tests.support.reference_frames import Refused, fingerprint, public_of, read_frame, require
from tests.support.reference_sharing import Dealing, Element
from tests.support.reference_terms import read_batch_terms, read_run_terms

Row = dict[str, Any]


class RunReader:
    """What all parties and the coordinator of a run together can read.

    Args:
        run: A vector; of the parties' secrets only the private keys are used.
        now: Unix time, in seconds.
    """

    def __init__(self, run: Row, *, now: int = 1_000) -> None:
        self._now = now
        self._run, self._setup, self._batch = run, run["setup"], run["batch"]
        self._sealing = [bytes.fromhex(row["sealing_private"]) for row in run["parties"]]
        self._coordinator = public_of(bytes.fromhex(run["coordinator"]["identity_private"]))
        self._read_setup()
        self._read_plan()

    # Setup --------------------------------------------------------------------------------------

    def _read_setup(self) -> None:
        offer = self._of_coordinator(frames.OFFER, self._setup["offer"])
        require(offer.fields[0] == self._coordinator, "the offer names the pinned key")
        record = self._of_coordinator(frames.RECORD, self._setup["record"])
        statements, form, ring, suite = record.fields[2:6]
        require(record.fields[:2] == [offer.digest, fingerprint(self._coordinator)], "the offer's")
        require([form, ring, suite] == offer.fields[2:5], "as it was offered")
        require(record.fields[9:11] == offer.fields[5:7], "as it was offered")
        self._expires_at = record.fields[9]
        require([s.hex() for s in statements] == self._setup["statements"], "what was said")
        self.identities = []
        for statement in statements:
            key = read_frame(statement, frames.STATEMENT).fields[1]
            said = read_frame(statement, frames.STATEMENT, signer=key).fields
            require([said[0], *said[4:6]] == [offer.digest, "party", self._expires_at], "for it")
            self.identities.append(key)
        self.fingerprints = [fingerprint(key) for key in self.identities]
        require(self.fingerprints == sorted(set(self.fingerprints)), "in the order of fingerprints")
        self.run_id, self.form, self.threshold = record.digest, form, record.fields[6]
        require(record.fields[11:14] == [b"", b"", []], "no second aggregator, nobody absent")
        self.terms = read_run_terms(record.fields[14])
        confirmed = [
            read_frame(bytes.fromhex(frame), frames.CONFIRMATIONS, signer=key)
            for frame, key in zip(self._setup["confirmations"], self.identities, strict=True)
        ]
        self.setup_digest = frames.digest_of_values("setup", [one.digest for one in confirmed])
        self.head = frames.next_head(frames.EMPTY_HEAD, "run record", self.run_id)
        self.head = frames.next_head(self.head, "setup", self.setup_digest)
        for seat, one in enumerate(confirmed):
            self._check_confirmations(seat, one.fields)
            self._check_closing(seat, [other.fields[2] for other in confirmed], confirmed)
        self._check_heads()

    def _check_confirmations(self, seat: int, fields: list[Any]) -> None:
        peers = self._peers(seat)
        me = self.fingerprints[seat]
        macs = [
            sums.confirmation(self.root(seat, peer), self.run_id, me, self.fingerprints[peer])
            for peer in peers
        ]
        require(fields == [self.run_id, me, macs], "both ends hold the same roots")

    def _check_closing(
        self, seat: int, macs: list[list[bytes]], confirmed: list[frames.Frame]
    ) -> None:
        fields = self._of_coordinator(frames.SETUP_CLOSING, self._setup["closings"][seat]).fields
        for_me = [macs[peer][self._peers(peer).index(seat)] for peer in self._peers(seat)]
        require(fields == [self.run_id, for_me, [one.digest for one in confirmed]], "what all said")

    def _check_heads(self) -> None:
        for seat, frame in enumerate(self._setup["readies"]):
            key = self.identities[seat]
            ready = read_frame(bytes.fromhex(frame), frames.READY, signer=key)
            expected = [self.run_id, self.fingerprints[seat], "setup", self.head]
            require(ready.fields[:4] == expected, "all remember the same setup")

    def _peers(self, seat: int) -> list[int]:
        return [peer for peer in range(len(self.identities)) if peer != seat]

    @cached_property
    def _envelopes(self) -> dict[tuple[int, int], bytes]:
        """Frames of envelopes by sender and receiver."""
        found = {}
        for receiver, frame in enumerate(self._setup["envelopes_to"]):
            run, envelopes = read_frame(bytes.fromhex(frame), frames.ENVELOPES).fields
            require(run == self.run_id, "of this run")
            require(len(envelopes) == len(self._peers(receiver)), "one from each peer")
            for sender, envelope in zip(self._peers(receiver), envelopes, strict=True):
                found[sender, receiver] = envelope
        return found

    def envelope_bundle_of(self, seat: int) -> bytes:
        """The bundle that a sender's envelopes came in."""
        sent = [self._envelopes[seat, peer] for peer in self._peers(seat)]
        return frames.write_frame(frames.ENVELOPES, [self.run_id, sent])

    def half(self, sender: int, receiver: int) -> bytes:
        envelope = read_frame(
            self._envelopes[sender, receiver], frames.ENVELOPE, signer=self.identities[sender]
        )
        ends = [self.fingerprints[sender], self.fingerprints[receiver]]
        require(envelope.fields[:3] == [self.run_id, *ends], "for this run and pair")
        info = b"pate-fed/1/envelope\0pair root\0" + self.run_id + b"".join(ends)
        try:
            half = hpke_open_x25519(envelope.fields[3], self._sealing[receiver], info=info)
        except InvalidTag as error:
            raise Refused("an envelope opens for its run, sender and receiver") from error
        require(len(half) == 32, "a half has 32 bytes")
        return half

    def root(self, one: int, other: int, *, epoch: int = 0) -> bytes:
        root = sums.pair_root(
            self.run_id,
            (self.fingerprints[one], self.half(one, other)),
            (self.fingerprints[other], self.half(other, one)),
        )
        return sums.ratcheted(root, epoch)

    # A batch ------------------------------------------------------------------------------------

    def _read_plan(self) -> None:
        plan = self._of_coordinator(frames.PLAN, self._batch["plan"])
        run, self.epoch, _, head, self.words, expires_at, terms = plan.fields
        require(1 <= self.epoch <= 64, "the first plan's epoch")
        require(self._now < expires_at <= self._expires_at, "a plan ends with its run")
        require([run, head] == [self.run_id, self.head], "a plan follows its run")
        asked = read_batch_terms(terms)
        require(asked["run"] == self.terms, "under the terms of the run")
        require(len(asked["indices"]) * self.terms["classes"] == self.words, "as many words")
        self.plan_digest = plan.digest

    def stream_key(self, one: int, other: int) -> bytes:
        root = self.root(one, other, epoch=self.epoch)
        return sums.stream_key(
            root, self.plan_digest, self.fingerprints[one], self.fingerprints[other]
        )

    @cached_property
    def ys(self) -> dict[int, bytes]:
        found = {}
        for seat, frame in self._batch["vectors"].items():
            key = self.identities[int(seat)]
            vector = read_frame(bytes.fromhex(frame), frames.VECTOR, signer=key)
            plan, sender, y = vector.fields
            require([plan, sender] == [self.plan_digest, self.fingerprints[int(seat)]], "of it")
            require(len(y) == 4 * self.words, "of its length")
            found[int(seat)] = y
        return found

    def opened_sum(self) -> list[int]:
        if self.form == "additive":
            return sums.opened_sum(self.ys)
        secrets = self.opened_secrets()
        return sums.opened_sum({seat: self.ys[seat] for seat in secrets}, secrets)

    def vector_of(self, seat: int) -> list[int]:
        """The vector under one y, which only somebody with all private keys can read."""
        keys = [
            (-sums.sign_of(seat, peer), self.stream_key(seat, peer)) for peer in self._peers(seat)
        ]
        if self.form == "masked":
            keys.append((-1, self.opened_secrets()[seat][seat]))
        words = sums.with_streams(sums.read_words(self.ys[seat]), keys)
        return [(word + 2**31) % 2**32 - 2**31 for word in words]

    def opened_secrets(self) -> dict[int, dict[int, bytes]]:
        """What the reveals open: by survivor its b at its own seat, its keys with the lost."""
        _, survivors, _ = self._opened_set
        shares: dict[int, dict[int, dict[int, Element]]] = {seat: {} for seat in survivors}
        for holder, frame in self._batch["reveals"].items():
            for dealer, opened in self.disclosed_in(bytes.fromhex(frame), int(holder)).items():
                shares[dealer][int(holder)] = opened
        dealings = self._dealings()
        return {
            dealer: self._joined(dealings[dealer], by_holder)
            for dealer, by_holder in shares.items()
        }

    def _joined(
        self, dealing: Dealing, by_holder: Mapping[int, Mapping[int, Element]]
    ) -> dict[int, bytes]:
        require(len(by_holder) >= self.threshold, "enough shares")
        holders = sorted(by_holder)[: self.threshold]
        secrets = {}
        for seat in by_holder[holders[0]]:
            joined = sharing.join({holder: by_holder[holder][seat] for holder in holders})
            secrets[seat] = sharing.write_secret(joined)
            signed = dealing.secret_hashes[seat]
            require(
                dealing.hash_of_secret(seat, secrets[seat]) == signed,
                f"the secrets of {dealing.seat} are those that it signed",
            )
        return secrets

    # The masked form ------------------------------------------------------------------------------

    def proposed(self, frame: bytes, *, holder: int) -> list[int]:
        """Seats of a proposed set to which a holder may agree; none where the plan is closed."""
        fields = self._of_coordinator(frames.PROPOSAL, frame.hex()).fields
        require(fields[:2] == [self.run_id, self.plan_digest], "of this run and plan")
        seats = self._seats_of(fields[2])
        require(not seats or len(seats) >= self.threshold, "enough")
        require(not seats or holder in seats, "a set that the holder is in")
        return seats

    def _seats_of(self, listed: list[bytes]) -> list[int]:
        seats = [seat for seat, one in enumerate(self.fingerprints) if one in listed]
        require(listed == [self.fingerprints[seat] for seat in seats], "seats, in order")
        return seats

    def verdict_digest(self, seats: list[int]) -> bytes:
        """Digest of the verdict for a set, or with no seats for a closed plan."""
        listed = [self.fingerprints[seat] for seat in seats]
        return frames.digest_of_fields(frames.VERDICT, [self.plan_digest, listed])

    def verdict_of(self, frame: bytes, seat: int) -> list[int]:
        """Seats of the set in a verdict, which a seat signed; none where the plan is closed."""
        plan, listed = read_frame(frame, frames.VERDICT, signer=self.identities[seat]).fields
        require(plan == self.plan_digest, "on this plan")
        return self._seats_of(listed)

    def certified(self, frame: bytes) -> list[int]:
        """Seats of the set that a certificate proves; none where it proves the plan closed."""
        plan, listed, by, signatures = read_frame(frame, frames.CERTIFICATE).fields
        require(plan == self.plan_digest, "on this plan")
        seats, signers = self._seats_of(listed), self._seats_of(by)
        require(not seats or len(seats) >= self.threshold, "enough in the set")
        require(not seats or set(signers) <= set(seats), "signed by its own")
        require(len(signers) >= self.threshold, "enough verdicts")
        require(len(signatures) == len(signers), "a signature of each")
        digest = self.verdict_digest(seats)
        for seat, signature in list(zip(signers, signatures, strict=True))[: self.threshold]:
            signer = self.identities[seat]
            frames.require_signature(frames.VERDICT, digest, signature, signer=signer)
        return seats

    def require_agreed(self, frame: bytes, holder: int, *, agreed: list[int]) -> None:
        """Check that a holder's MACs prove its own verdict: enough others gave the same."""
        plan, macs = read_frame(frame, frames.VERDICT_MACS).fields
        require(plan == self.plan_digest, "on this plan")
        require(len(macs) == len(self._peers(holder)), "one of each peer, or none")
        digest = self.verdict_digest(agreed)
        by = [
            peer
            for peer, mac in zip(self._peers(holder), macs, strict=True)
            if peer in agreed
            and mac == sharing.verdict_mac(self._verdict_key(peer, holder), digest)
        ]
        require(len([holder, *by]) >= self.threshold, "enough verdicts")

    def macs_of(self, frame: bytes, seat: int) -> list[bytes]:
        """The MACs of a seat's verdict, one for each peer."""
        plan, macs = read_frame(frame, frames.VERDICT_MACS).fields
        require(plan == self.plan_digest, "on this plan")
        require(len(macs) == len(self._peers(seat)) and b"" not in macs, "one for each peer")
        return list(macs)

    def _verdict_key(self, sender: int, receiver: int) -> bytes:
        root = self.root(sender, receiver, epoch=self.epoch)
        ends = self.fingerprints[sender], self.fingerprints[receiver]
        return sharing.verdict_key(root, self.plan_digest, *ends)

    @cached_property
    def _opened_set(self) -> tuple[bytes, list[int], list[int]]:
        """Digest of the verdict to open, survivors, lost."""
        given = {int(seat): bytes.fromhex(text) for seat, text in self._batch["verdicts"].items()}
        alive = self.verdict_of(*next((frame, seat) for seat, frame in given.items()))
        for seat, frame in given.items():
            require(self.verdict_of(frame, seat) == alive, "all say the same")
            self.proposed(bytes.fromhex(self._batch["proposal"]), holder=seat)
        require(len(given) >= self.threshold, "enough verdicts")
        for seat, text in self._batch["macs_to"].items():
            self.require_agreed(bytes.fromhex(text), int(seat), agreed=alive)
        lost = [seat for seat in range(len(self.identities)) if seat not in alive]
        return self.verdict_digest(alive), alive, lost

    # Settlements ----------------------------------------------------------------------------------

    def settled(
        self, frame: bytes, holder: int, *, entries: list[bytes], agreed: list[int] | None = None
    ) -> list[int] | None:
        """Seats whose sum a settlement releases, or None where it is void.

        Args:
            frame: The settlement.
            holder: Seat that reads it.
            entries: What it may say of this seat: all that it signed, or all but its reveal.
            agreed: Seats of the set to which this seat agreed; None or no seats for no set.
        """
        fields = self._of_coordinator(frames.SETTLEMENT, frame.hex()).fields
        run, plan, state, words, listed, refusals, certificate, _ = fields
        require([run, plan, words] == [self.run_id, self.plan_digest, self.words], "of the plan")
        require(state in ("released", "void"), "released or void")
        require(len(listed) == len(self.identities), "an entry for each seat")
        present = [seat for seat, entry in enumerate(listed) if entry]
        masked, released = self.form == "masked", state == "released"
        require(not certificate or masked, "no certificate in the additive form")
        proven = self.certified(certificate) if certificate else None
        if released:
            require(not refusals and len(present) >= self.threshold, "of enough, none refused")
            require(not masked or present == proven, "a release is of the certified set")
            require(not agreed or present == agreed, "a release is of the set it agreed to")
        left_out = not listed[holder] and (masked or not released)
        require(listed[holder] in entries or left_out, "what this seat signed")
        return present if released else None

    def head_after(self, frame: bytes) -> bytes:
        """Head of the transcript after this plan and its settlement."""
        settlement = self._of_coordinator(frames.SETTLEMENT, frame.hex())
        head = frames.next_head(self.head, "plan", self.plan_digest)
        if settlement.fields[6]:
            verdict = self.verdict_digest(self.certified(settlement.fields[6]))
            head = frames.next_head(head, "verdict", verdict)
        return frames.next_head(head, "settlement", settlement.digest)

    # Shares ---------------------------------------------------------------------------------------

    def dealing_in(self, frame: bytes, dealer: int) -> Dealing:
        """The dealing of a bundle to the coordinator."""
        plan, dealings, envelopes = read_frame(frame, frames.SHARES).fields
        parties = len(self.identities)
        require(plan == self.plan_digest and len(dealings) == 1, "one dealing of this plan")
        sizes = {32 + sharing.SHARE_BYTES * parties + 16}
        require(len(envelopes) == parties - 1 and set(map(len, envelopes)) == sizes, "one to each")
        return self._dealing(dealings[0], dealer, signed=True)

    def _dealings(self) -> dict[int, Dealing]:
        given = {int(seat): bytes.fromhex(text) for seat, text in self._batch["bundles"].items()}
        return {seat: self.dealing_in(frame, seat) for seat, frame in given.items()}

    def _dealing(self, frame: bytes, dealer: int, *, signed: bool) -> Dealing:
        signer = self.identities[dealer] if signed else None
        plan, sender, salt, hashes, roots = read_frame(frame, frames.DEALING, signer=signer).fields
        require([plan, sender] == [self.plan_digest, self.fingerprints[dealer]], "its own")
        require(len(hashes) == len(roots) == 32 * len(self.identities), "one for each seat")
        return Dealing(plan, salt, dealer, sharing.cut(hashes, 32), sharing.cut(roots, 32))

    def columns_of(self, frame: bytes, holder: int) -> dict[int, bytes]:
        """The good columns of a bundle to a holder, by dealer."""
        plan, dealings, envelopes = read_frame(frame, frames.SHARES).fields
        others = [seat for seat in self._opened_set[1] if seat != holder]
        require(plan == self.plan_digest, "of this plan")
        require(len(dealings) == len(envelopes) == len(others), "one from each survivor")
        columns = {}
        for dealer, dealt, sealed in zip(others, dealings, envelopes, strict=True):
            dealing = self._dealing(dealt, dealer, signed=False)
            digest = read_frame(dealt, frames.DEALING).digest
            try:
                column = sharing.open_column(self._column_key(dealer, holder), sealed, digest)
                sharing.check_column(dealing, column, holder, self._opened_set[2])
            except Refused:
                # Whose fault it is: the coordinator's, unless the dealer signed this.
                self._dealing(dealt, dealer, signed=True)
                continue
            columns[dealer] = column
        return columns

    def _column_key(self, dealer: int, holder: int) -> bytes:
        root = self.root(dealer, holder, epoch=self.epoch)
        ends = self.fingerprints[dealer], self.fingerprints[holder]
        return sharing.column_key(root, self.plan_digest, *ends)

    @cached_property
    def _dealing_digests(self) -> dict[int, bytes]:
        """Of the dealings that were relayed, by dealer."""
        found = {}
        for seat, bundle in self._batch["bundles"].items():
            [frame] = read_frame(bytes.fromhex(bundle), frames.SHARES).fields[1]
            found[int(seat)] = read_frame(frame, frames.DEALING).digest
        return found

    @cached_property
    def opening_digest(self) -> bytes:
        """What every holder signs that it opens shares for."""
        digest, survivors, _ = self._opened_set
        dealt = [self._dealing_digests[seat] for seat in survivors]
        return frames.digest_of_values("opening", [digest, dealt])

    def contribution(self, seat: int, *, without_reveal: bool = False) -> bytes:
        """A seat's entry in the settlement; its y must have come."""
        vector = read_frame(bytes.fromhex(self._batch["vectors"][str(seat)]), frames.VECTOR).digest
        if self.form == "additive":
            return vector
        revealed = b""
        if not without_reveal:
            frame = bytes.fromhex(self._batch["reveals"][str(seat)])
            revealed = read_frame(frame, frames.REVEAL).digest
        bound = [vector, self._dealing_digests[seat], revealed]
        return frames.digest_of_values("contribution", bound)

    def disclosed_in(self, frame: bytes, holder: int) -> dict[int, dict[int, Element]]:
        """The good shares that a holder reveals, by dealer and by seat of the secret."""
        signer = self.identities[holder]
        told, sender, disclosures = read_frame(frame, frames.REVEAL, signer=signer).fields
        _, survivors, lost = self._opened_set
        expected = [self.opening_digest, self.fingerprints[holder]]
        require([told, sender] == expected, "for this verdict and these dealings")
        require(len(disclosures) == len(survivors), "one of each survivor")
        opened = {}
        for dealer, disclosed in zip(survivors, disclosures, strict=True):
            dealing = self._dealings()[dealer]
            try:
                opened[dealer] = sharing.read_disclosure(dealing, disclosed, holder, lost)
            except Refused:
                continue
        return opened

    def _of_coordinator(self, number: int, frame: str) -> frames.Frame:
        return read_frame(bytes.fromhex(frame), number, signer=self._coordinator)
