"""Writes vectors of whole runs: every frame and key from the offer to the opened sum.

From second implementations only, as `make_protocol_vectors`. Envelopes are those of the suite
without ML-KEM, whose ephemeral keys can be given, so that every byte is the same each time.
Run from the repository root: ``python -m tests.support.make_run_vectors``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from tests.support import make_spoiled_setup as setup
from tests.support import make_spoiled_shares as spoiled
from tests.support import make_spoiled_verdicts as verdicts
from tests.support import reference_frames as frames
from tests.support import reference_sharing as sharing
from tests.support import reference_sum as sums
from tests.support.make_format_vectors import some_bytes
from tests.support.make_protocol_vectors import write_vectors
from tests.support.make_terms_vectors import RUN_TERMS
from tests.support.reference_cbor import cbor
from tests.support.reference_crypto import counter_stream, hpke_seal_x25519
from tests.support.reference_frames import (
    fingerprint,
    public_of,
    read_frame,
    signature_over,
    write_frame,
)
from tests.support.reference_sharing import Dealing, cut, write_share

Row = dict[str, Any]
SUITE = "x25519-hkdf-sha256-aes-256-gcm"
EXPIRES_AT = 10_000
COORDINATOR = some_bytes("run: coordinator")
RESULTS = {
    "additive": {"labels": [2, -1], "outcomes": [0, 1]},
    "masked": {"labels": [2, 0], "outcomes": [0, 0]},
}
"""What the one batch of a run released, by its form."""


class Run:
    """A run of one form: its secrets from labels, its frames from the page."""

    def __init__(self, form: str, terms: Row, *, parties: int, lost: int | None = None) -> None:
        self.form, self.terms, self.lost = form, terms, lost
        self.label = f"{form} run: "
        self.identities = sorted(
            (self.secret(f"identity {place}") for place in range(parties)),
            key=lambda private: fingerprint(public_of(private)),
        )
        self.seats = range(parties)
        self.fingerprints = [fingerprint(public_of(private)) for private in self.identities]
        self.threshold = sharing.threshold_of(parties) if form == "masked" else parties
        self.survivors = [seat for seat in self.seats if seat != lost]
        self.dropped = [seat for seat in self.seats if seat == lost]
        self.head = frames.EMPTY_HEAD
        self._set_up()
        self._plan()
        self._first_exchange()
        if form == "masked":
            self._deal()
            self._agree()
            self._reveal()
            self._close()
        self._settle()

    def secret(self, name: str, size: int = 32) -> bytes:
        return some_bytes(self.label + name, size)

    def half(self, seat: int, peer: int) -> bytes:
        return self.secret(f"half of {seat} for {peer}")

    def peers(self, seat: int) -> list[int]:
        return [peer for peer in self.seats if peer != seat]

    # Setup --------------------------------------------------------------------------------------

    def _set_up(self) -> None:
        offered = [
            public_of(COORDINATOR), self.secret("nonce"), self.form, 32, SUITE, EXPIRES_AT, True,
        ]  # fmt: skip
        self.offer = write_frame(frames.OFFER, offered, COORDINATOR)
        offer = frames.digest_of_fields(frames.OFFER, offered)
        self.sealing = [self.secret(f"sealing {seat}") for seat in self.seats]
        publics = [
            X25519PrivateKey.from_private_bytes(key).public_key().public_bytes_raw()
            for key in self.sealing
        ]
        self.statements = [
            write_frame(
                frames.STATEMENT,
                [
                    offer, public_of(identity), publics[seat], self.secret(f"nonce {seat}"),
                    "party", EXPIRES_AT, 0,
                ],
                identity,
            )
            for seat, identity in enumerate(self.identities)
        ]  # fmt: skip
        dropouts = len(self.seats) - self.threshold
        colluders = 2 * self.threshold - len(self.seats) - 1 if self.form == "masked" else 1
        recorded = [
            offer, fingerprint(public_of(COORDINATOR)), self.statements, self.form, 32, SUITE,
            self.threshold, colluders, dropouts, EXPIRES_AT, True, b"", b"", [], cbor(self.terms),
        ]  # fmt: skip
        self.record = write_frame(frames.RECORD, recorded, COORDINATOR)
        self.run_id = frames.digest_of_fields(frames.RECORD, recorded)
        self._append("run record", self.run_id)
        self.envelopes = [
            [self._envelope(seat, peer, publics[peer]) for peer in self.peers(seat)]
            for seat in self.seats
        ]
        self.roots = {
            (seat, peer): self._root(seat, peer)
            for seat in self.seats
            for peer in self.seats[seat + 1 :]
        }
        self.macs = [
            [
                sums.confirmation(
                    self.root(seat, peer),
                    self.run_id,
                    self.fingerprints[seat],
                    self.fingerprints[peer],
                )
                for peer in self.peers(seat)
            ]
            for seat in self.seats
        ]
        confirmed = [[self.run_id, self.fingerprints[s], self.macs[s]] for s in self.seats]
        self.confirmations = [
            write_frame(frames.CONFIRMATIONS, confirmed[seat], self.identities[seat])
            for seat in self.seats
        ]
        digests = [frames.digest_of_fields(frames.CONFIRMATIONS, one) for one in confirmed]
        self.closings = [
            write_frame(
                frames.SETUP_CLOSING,
                [
                    self.run_id,
                    [self.macs[peer][self.peers(peer).index(seat)] for peer in self.peers(seat)],
                    digests,
                ],
                COORDINATOR,
            )
            for seat in self.seats
        ]
        self._append("setup", frames.digest_of_values("setup", digests))
        self.readies = [
            write_frame(
                frames.READY,
                [self.run_id, self.fingerprints[seat], "setup", self.head, 1],
                self.identities[seat],
            )
            for seat in self.seats
        ]
        self.head_after_setup = self.head

    def _envelope(self, seat: int, peer: int, public: bytes) -> bytes:
        sender, receiver = self.fingerprints[seat], self.fingerprints[peer]
        info = b"pate-fed/1/envelope\0pair root\0" + self.run_id + sender + receiver
        ephemeral = self.secret(f"ephemeral of {seat} for {peer}")
        sealed = hpke_seal_x25519(self.half(seat, peer), public, info=info, ephemeral=ephemeral)
        fields = [self.run_id, sender, receiver, sealed]
        return write_frame(frames.ENVELOPE, fields, self.identities[seat])

    def _root(self, seat: int, peer: int) -> bytes:
        return sums.pair_root(
            self.run_id,
            (self.fingerprints[seat], self.half(seat, peer)),
            (self.fingerprints[peer], self.half(peer, seat)),
        )

    def root(self, seat: int, peer: int, *, epoch: int = 0) -> bytes:
        return sums.ratcheted(self.roots[min(seat, peer), max(seat, peer)], epoch)

    def envelopes_to(self, seat: int) -> bytes:
        box = [self.envelopes[peer][self.peers(peer).index(seat)] for peer in self.peers(seat)]
        return write_frame(frames.ENVELOPES, [self.run_id, box])

    def _append(self, kind: str, digest: bytes) -> None:
        self.head = frames.next_head(self.head, kind, digest)

    # A batch ------------------------------------------------------------------------------------

    def _plan(self) -> None:
        asked = {"run": self.terms, "indices": [4, 0], "predictions_digest": b""}
        self.words = 2 * self.terms["classes"]
        planned = [self.run_id, 1, 0, self.head, self.words, EXPIRES_AT, cbor(asked)]
        self.plan = write_frame(frames.PLAN, planned, COORDINATOR)
        self.plan_digest = frames.digest_of_fields(frames.PLAN, planned)
        self._append("plan", self.plan_digest)

    def _first_exchange(self) -> None:
        self.keys = {
            pair: sums.stream_key(
                self.root(*pair, epoch=1), self.plan_digest, *(self.fingerprints[s] for s in pair)
            )
            for pair in self.roots
        }
        self.own_keys = [self.secret(f"b of {seat}") for seat in self.seats]
        self.vectors = [
            [int.from_bytes(word, "big") % 61 - 20 for word in cut(raw, 4)]
            for raw in (self.secret(f"x of {seat}", 4 * self.words) for seat in self.seats)
        ]
        self.vectors[0][0], self.vectors[0][1] = 2**31 - 1, -(2**31)
        masked = self.form == "masked"
        self.ys = {
            seat: sums.y_of(
                self.vectors[seat],
                seat,
                {peer: self.key(seat, peer) for peer in self.peers(seat)},
                self.own_keys[seat] if masked else None,
            )
            for seat in self.survivors
        }
        self.vector_frames = {
            seat: write_frame(
                frames.VECTOR,
                [self.plan_digest, self.fingerprints[seat], y],
                self.identities[seat],
            )
            for seat, y in self.ys.items()
        }

    def key(self, seat: int, peer: int) -> bytes:
        return self.keys[min(seat, peer), max(seat, peer)]

    def secrets_of(self, seat: int) -> list[bytes]:
        """What the dealer in a seat shares, in the order of seats."""
        return [self.own_keys[s] if s == seat else self.key(seat, s) for s in self.seats]

    # The masked form's shares ---------------------------------------------------------------------

    def coefficients(self, seat: int) -> list[list[list[int]]]:
        """Of each power of x from 1 on, of each secret, of each of its 16 polynomials."""
        numbers = iter(cut(self.secret(f"polynomials of {seat}", 4 * 5000), 4))
        return [
            [
                [int.from_bytes(next(numbers), "little") % 65537 for _ in range(16)]
                for _ in self.seats
            ]
            for _ in range(self.threshold - 1)
        ]

    def shares(self, seat: int) -> list[bytes]:
        """The shares of each holder, one behind the other."""
        by_power = self.coefficients(seat)
        secrets = [sharing.read_secret(secret) for secret in self.secrets_of(seat)]
        return [
            b"".join(
                write_share(sharing.share_of(secret, [power[s] for power in by_power], holder))
                for s, secret in enumerate(secrets)
            )
            for holder in self.seats
        ]

    def dealing(self, seat: int) -> Dealing:
        bare = Dealing(self.plan_digest, self.secret(f"salt of {seat}"), seat)
        hashes = [bare.hash_of_secret(s, one) for s, one in enumerate(self.secrets_of(seat))]
        shares = enumerate(self.shares(seat))
        roots = [sharing.root_of_shares(bare, held, holder) for holder, held in shares]
        return Dealing(bare.plan, bare.salt, seat, hashes, roots)

    def columns(self, seat: int) -> list[bytes]:
        """What is sealed for each holder."""
        dealing, shares = self.dealing(seat), enumerate(self.shares(seat))
        return [sharing.column_of(dealing, held, holder) for holder, held in shares]

    def dealing_fields(self, one: Dealing) -> list[Any]:
        sender = self.fingerprints[one.seat]
        return [one.plan, sender, one.salt, b"".join(one.secret_hashes), b"".join(one.roots)]

    def column_key(self, dealer: int, holder: int, *, epoch: int = 1) -> bytes:
        root = self.root(dealer, holder, epoch=epoch)
        ends = self.fingerprints[dealer], self.fingerprints[holder]
        return sharing.column_key(root, self.plan_digest, *ends)

    def _deal(self) -> None:
        dealings = {seat: self.dealing(seat) for seat in self.survivors}
        self.dealing_frames = {
            seat: write_frame(frames.DEALING, self.dealing_fields(one), self.identities[seat])
            for seat, one in dealings.items()
        }
        self.dealt = {
            seat: read_frame(frame, frames.DEALING).digest
            for seat, frame in self.dealing_frames.items()
        }
        self.sealed = {
            (seat, holder): sharing.seal_column(
                self.column_key(seat, holder), self.dealt[seat], self.columns(seat)[holder]
            )
            for seat in self.survivors
            for holder in self.peers(seat)
        }
        self.bundles = {
            seat: write_frame(
                frames.SHARES,
                [
                    self.plan_digest,
                    [self.dealing_frames[seat]],
                    [self.sealed[seat, holder] for holder in self.peers(seat)],
                ],
            )
            for seat in self.survivors
        }

    # Verdicts -------------------------------------------------------------------------------------

    def listed(self, seats: Iterable[int]) -> list[bytes]:
        return [self.fingerprints[seat] for seat in seats]

    def proposal(self, seats: Iterable[int]) -> bytes:
        """The coordinator proposes to open a set, or with no seats to close the plan."""
        fields = [self.run_id, self.plan_digest, self.listed(seats)]
        return write_frame(frames.PROPOSAL, fields, COORDINATOR)

    def verdict(self, seats: Iterable[int]) -> list[Any]:
        return [self.plan_digest, self.listed(seats)]

    def verdict_frame(self, seats: Iterable[int], *, by: int) -> bytes:
        return write_frame(frames.VERDICT, self.verdict(seats), self.identities[by])

    def certificate(self, seats: Sequence[int], *, signers: Sequence[int]) -> bytes:
        told = self.verdict(seats)
        signatures = [
            signature_over(frames.VERDICT, told, self.identities[seat]) for seat in signers
        ]
        return write_frame(frames.CERTIFICATE, [*told, self.listed(signers), signatures])

    def _agree(self) -> None:
        alive = self.survivors
        self.proposed = self.proposal(alive)
        self.verdicts = {seat: self.verdict_frame(alive, by=seat) for seat in alive}
        self.verdict_digest = frames.digest_of_fields(frames.VERDICT, self.verdict(alive))
        self.certified = self.certificate(alive, signers=alive[: self.threshold])
        self.macs_of = {
            seat: self.verdict_macs([self.verdict_mac(seat, peer) for peer in self.peers(seat)])
            for seat in alive
        }
        self.macs_to = {seat: self.verdict_macs(self.macs_for(seat)) for seat in alive}

    def verdict_key(self, sender: int, receiver: int, *, epoch: int = 1) -> bytes:
        root = self.root(sender, receiver, epoch=epoch)
        ends = self.fingerprints[sender], self.fingerprints[receiver]
        return sharing.verdict_key(root, self.plan_digest, *ends)

    def verdict_mac(self, sender: int, receiver: int) -> bytes:
        return sharing.verdict_mac(self.verdict_key(sender, receiver), self.verdict_digest)

    def macs_for(self, holder: int) -> list[bytes]:
        """The MACs for a holder: one of each peer, none of a lost one."""
        return [
            self.verdict_mac(peer, holder) if peer in self.survivors else b""
            for peer in self.peers(holder)
        ]

    def verdict_macs(self, macs: list[bytes]) -> bytes:
        return write_frame(frames.VERDICT_MACS, [self.plan_digest, macs])

    def _reveal(self) -> None:
        dealt = [self.dealt[seat] for seat in self.survivors]
        self.opening_digest = frames.digest_of_values("opening", [self.verdict_digest, dealt])
        self.bundles_to = {holder: self.bundle_to(holder) for holder in self.survivors}
        self.disclosures = {
            holder: [
                sharing.disclosure(
                    self.dealing(seat), self.columns(seat)[holder], holder, self.dropped
                )
                for seat in self.survivors
            ]
            for holder in self.survivors
        }
        self.reveals = {
            holder: write_frame(
                frames.REVEAL,
                [self.opening_digest, self.fingerprints[holder], disclosed],
                self.identities[holder],
            )
            for holder, disclosed in self.disclosures.items()
        }

    def _close(self) -> None:
        """What would have come instead, had the coordinator proposed to close the plan."""
        self.closing = self.proposal([])
        self.closing_verdicts = {seat: self.verdict_frame([], by=seat) for seat in self.seats}
        self.closed = self.certificate([], signers=list(self.seats)[: self.threshold])
        entries = [
            self.contribution(seat, reveal=b"") if seat in self.survivors else b""
            for seat in self.seats
        ]
        self.void = self.settlement("void", entries, certificate=self.closed, result=b"")

    # Settlement -----------------------------------------------------------------------------------

    def entries(self) -> list[bytes]:
        return [self.contribution(seat) if seat in self.survivors else b"" for seat in self.seats]

    def settlement(
        self,
        state: str,
        entries: list[bytes],
        *,
        certificate: bytes,
        result: bytes,
        private: bytes = COORDINATOR,
    ) -> bytes:
        fields = [
            self.run_id, self.plan_digest, state, self.words, entries, [], certificate, result,
        ]  # fmt: skip
        return write_frame(frames.SETTLEMENT, fields, private)

    def _settle(self) -> None:
        certificate = self.certified if self.form == "masked" else b""
        self.settled = self.settlement(
            "released", self.entries(), certificate=certificate, result=cbor(RESULTS[self.form])
        )
        if certificate:
            self._append("verdict", self.verdict_digest)
        self.settlement_digest = read_frame(self.settled, frames.SETTLEMENT).digest
        self._append("settlement", self.settlement_digest)

    def contribution(self, seat: int, *, reveal: bytes | None = None) -> bytes:
        vector = read_frame(self.vector_frames[seat], frames.VECTOR).digest
        if self.form == "additive":
            return vector
        if reveal is None:
            reveal = read_frame(self.reveals[seat], frames.REVEAL).digest
        return frames.digest_of_values("contribution", [vector, self.dealt[seat], reveal])

    def bundle_to(self, holder: int) -> bytes:
        others = [seat for seat in self.survivors if seat != holder]
        return write_frame(
            frames.SHARES,
            [
                self.plan_digest,
                [self.dealing_frames[seat] for seat in others],
                [self.sealed[seat, holder] for seat in others],
            ],
        )

    @property
    def sum(self) -> list[int]:
        totals = zip(*(self.vectors[seat] for seat in self.survivors), strict=True)
        return [(sum(total) + 2**31) % 2**32 - 2**31 for total in totals]

    # As JSON --------------------------------------------------------------------------------------

    def row(self) -> Row:
        return {
            "run_id": self.run_id.hex(),
            "coordinator": {
                "identity_private": COORDINATOR.hex(),
                "fingerprint": fingerprint(public_of(COORDINATOR)).hex(),
                "nonce": self.secret("nonce").hex(),
            },
            "parties": [self._party(seat) for seat in self.seats],
            "pairs": [self._pair(*pair) for pair in self.roots],
            "transcript_heads": {
                "after_setup": self.head_after_setup.hex(),
                "after_plan": frames.next_head(
                    self.head_after_setup, "plan", self.plan_digest
                ).hex(),
                "after_settlement": self.head.hex(),
            },
            "setup": {
                "offer": self.offer.hex(),
                "statements": [frame.hex() for frame in self.statements],
                "record": self.record.hex(),
                "envelopes_to": [self.envelopes_to(seat).hex() for seat in self.seats],
                "confirmations": [frame.hex() for frame in self.confirmations],
                "closings": [frame.hex() for frame in self.closings],
                "readies": [frame.hex() for frame in self.readies],
            },
            "batch": {
                "plan": self.plan.hex(),
                "plan_digest": self.plan_digest.hex(),
                "vectors": {str(seat): frame.hex() for seat, frame in self.vector_frames.items()},
                **(self._opening() if self.form == "masked" else {}),
                "settlement": self.settled.hex(),
            },
            "sum": self.sum,
        }

    def _party(self, seat: int) -> Row:
        row = {
            "seat": seat,
            "identity_private": self.identities[seat].hex(),
            "fingerprint": self.fingerprints[seat].hex(),
            "sealing_private": self.sealing[seat].hex(),
            "nonce": self.secret(f"nonce {seat}").hex(),
            "halves": {str(peer): self.half(seat, peer).hex() for peer in self.peers(seat)},
            "x": self.vectors[seat],
            "y": self.ys[seat].hex() if seat in self.ys else None,
        }
        if self.form == "masked":
            row["b"] = self.own_keys[seat].hex()
            row["salt"] = self.secret(f"salt of {seat}").hex()
            row["coefficients"] = [
                [write_share(numbers).hex() for numbers in power]
                for power in self.coefficients(seat)
            ]
        return row

    def _pair(self, lower: int, higher: int) -> Row:
        return {
            "seats": [lower, higher],
            "root": self.root(lower, higher).hex(),
            "root_of_epoch_1": self.root(lower, higher, epoch=1).hex(),
            "stream_key": self.key(lower, higher).hex(),
        }

    def _opening(self) -> Row:
        return {
            "threshold": self.threshold,
            "columns": {
                str(seat): [column.hex() for column in self.columns(seat)]
                for seat in self.survivors
            },
            "column_keys": {
                f"{dealer} to {holder}": self.column_key(dealer, holder).hex()
                for dealer, holder in self.sealed
            },
            "dealings": {
                str(seat): {
                    "frame": frame.hex(),
                    "digest": read_frame(frame, frames.DEALING).digest.hex(),
                }
                for seat, frame in self.dealing_frames.items()
            },
            "bundles": {str(seat): frame.hex() for seat, frame in self.bundles.items()},
            "proposal": self.proposed.hex(),
            "verdict_macs": {str(seat): frame.hex() for seat, frame in self.macs_of.items()},
            "verdicts": {str(seat): frame.hex() for seat, frame in self.verdicts.items()},
            "verdict_digest": self.verdict_digest.hex(),
            "verdict_keys": {
                f"{sender} to {receiver}": self.verdict_key(sender, receiver).hex()
                for sender in self.survivors
                for receiver in self.peers(sender)
            },
            "macs_to": {str(seat): frame.hex() for seat, frame in self.macs_to.items()},
            "certificate": self.certified.hex(),
            "bundles_to": {str(seat): frame.hex() for seat, frame in self.bundles_to.items()},
            "opening_digest": self.opening_digest.hex(),
            "reveals": {str(seat): frame.hex() for seat, frame in self.reveals.items()},
            "contributions": {
                str(seat): {
                    "entry": self.contribution(seat).hex(),
                    "entry_without_reveal": self.contribution(seat, reveal=b"").hex(),
                }
                for seat in self.survivors
            },
            "closed": {
                "proposal": self.closing.hex(),
                "verdicts": {
                    str(seat): frame.hex() for seat, frame in self.closing_verdicts.items()
                },
                "certificate": self.closed.hex(),
                "settlement": self.void.hex(),
            },
        }


def additive_run() -> Row:
    run = Run("additive", RUN_TERMS["threshold"], parties=3)
    return {
        "what": "a run of the additive form among three: all secrets, frames and keys, and the sum",
        **run.row(),
        "spoiled_sums": _spoiled_sums(run),
        "spoiled_to_seat_0": _hex(
            {
                "records": setup.spoiled_records(run, COORDINATOR),
                "envelopes": setup.spoiled_envelopes(run),
                "closings": setup.spoiled_closings(run, COORDINATOR),
                "plans": setup.spoiled_plans(run, COORDINATOR),
                "settlements": verdicts.spoiled_additive_settlements(run, COORDINATOR),
            }
        ),
    }


def _spoiled_sums(run: Run) -> Row:
    """y's of seat 0 that look like any other, under which the sum is another."""
    vector, prints = run.vectors[0], run.fingerprints

    def keys(*, epoch: int = 1, plan: bytes = run.plan_digest) -> dict[int, bytes]:
        return {
            peer: sums.stream_key(run.root(0, peer, epoch=epoch), plan, prints[0], prints[peer])
            for peer in run.peers(0)
        }

    def y(read: Callable[[bytes], list[int]]) -> bytes:
        streams = [read(key) for key in keys().values()]
        return sums.write_words(map(sum, zip(vector, *streams, strict=True)))

    size = 4 * len(vector)
    ys = {
        "keys of the epoch before": sums.y_of(vector, 0, keys(epoch=0)),
        "keys of another plan": sums.y_of(vector, 0, keys(plan=some_bytes("another plan"))),
        "streams subtracted": sums.y_of(vector, 9, keys()),
        "one peer left out": sums.y_of(vector, 0, {1: keys()[1]}),
        "streams from counter 1": y(
            lambda key: sums.read_words(counter_stream(key, size, first_block=-1))
        ),
        "words of the stream in big-endian order": y(
            lambda key: [int.from_bytes(word, "big") for word in cut(counter_stream(key, size), 4)]
        ),
    }
    return {name: y_of.hex() for name, y_of in ys.items()}


def masked_run() -> Row:
    run = Run("masked", RUN_TERMS["gnmax, noise at the parties"], parties=5, lost=1)
    return {
        "what": "a run of the masked form among five, without seat 1: all secrets, frames and keys,"
        " the sum of the other four, the same plan closed, and messages that must be refused",
        **run.row(),
        "spoiled": _hex(
            {
                "proposals_to_seat_0": verdicts.spoiled_proposals(run, COORDINATOR),
                "second_proposals_to_seat_0": verdicts.second_proposals(run),
                "verdicts_of_seat_0": verdicts.spoiled_verdicts(run),
                "verdict_macs_of_seat_0": verdicts.spoiled_macs_of_a_party(run),
                "macs_to_seat_0": verdicts.spoiled_macs_to_a_party(run),
                "certificates_to_seat_0": verdicts.spoiled_certificates(run),
                "settlements": verdicts.spoiled_settlements(run, COORDINATOR),
                "bundles_to_seat_0": spoiled.spoiled_bundles_to_a_holder(run),
                "bundles_of_seat_0": spoiled.spoiled_bundles_of_a_dealer(run),
                "hash_of_another_secret_by_seat_0": spoiled.dealing_of_another_secret(run),
                "reveals_of_seat_0": spoiled.spoiled_reveals(run),
            }
        ),
    }


def _hex(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _hex(item) for key, item in value.items()}
    return value.hex()


VECTORS: dict[str, Callable[[], Row]] = {"additive_run": additive_run, "masked_run": masked_run}


if __name__ == "__main__":
    write_vectors(VECTORS)
