"""Spoiled proposals, verdicts, certificates and settlements, each named for what is spoiled.

For `make_run_vectors`, for the run of five without seat 1. What a party meets is for seat 0 unless
its name says otherwise; what the coordinator meets is sent by seat 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tests.support import reference_frames as frames
from tests.support import reference_sharing as sharing
from tests.support.make_format_vectors import some_bytes
from tests.support.make_spoiled_setup import changed
from tests.support.make_spoiled_shares import flipped
from tests.support.reference_frames import read_frame, signature_over, write_frame

if TYPE_CHECKING:
    from tests.support.make_run_vectors import Run

Row = dict[str, Any]
READER, LOST = 0, 1
"""Seat that a message is for or from; the seat that was lost."""

OTHER = some_bytes("another plan or run")
STRANGER = some_bytes("a stranger's identity")


def spoiled_proposals(run: Run, coordinator: bytes) -> Row:
    """Proposals to which seat 0 must not agree."""
    listed = run.listed(run.survivors)

    def of(
        survivors: list[bytes],
        *,
        run_id: bytes = run.run_id,
        plan: bytes = run.plan_digest,
        private: bytes = coordinator,
    ) -> bytes:
        return write_frame(frames.PROPOSAL, [run_id, plan, survivors], private)

    return {
        "below the threshold": of(listed[:-1]),
        "one twice": of([*listed, listed[-1]]),
        "one twice in place of another": of([*listed[:-1], listed[0]]),
        "another order": of(listed[::-1]),
        "a stranger": of([*listed[:-1], OTHER]),
        "without the receiver": of(run.listed([1, 2, 3, 4])),
        "another plan": of(listed, plan=OTHER),
        "another plan closed": of([], plan=OTHER),
        "another run": of(listed, run_id=OTHER),
        "signed by a party": of(listed, private=run.identities[LOST]),
        "signature changed": flipped(run.proposed, -1),
        "signature of another message": run.proposed[:-64] + run.plan[-64:],
    }


def second_proposals(run: Run) -> Row:
    """Proposals to seat 0 after it gave its verdict: it gives no other."""
    return {
        "another set": run.proposal(run.seats),
        "to close the plan": run.closing,
    }


def spoiled_verdicts(run: Run) -> Row:
    """Verdicts of seat 0 that the coordinator refuses."""
    mine = run.verdict(run.survivors)

    def of(fields: list[Any], *, private: bytes = run.identities[READER]) -> bytes:
        return write_frame(frames.VERDICT, fields, private)

    true = run.verdicts[READER]
    return {
        "on another plan": of([OTHER, mine[1]]),
        "signed by another": of(mine, private=run.identities[2]),
        "signature changed": flipped(true, -1),
        "signature of a proposal": true[:-64] + run.proposed[-64:],
    }


def spoiled_macs_of_a_party(run: Run) -> Row:
    """MACs of a verdict of seat 0 that the coordinator refuses."""
    macs = [run.verdict_mac(READER, peer) for peer in run.peers(READER)]
    return {
        "on another plan": write_frame(frames.VERDICT_MACS, [OTHER, macs]),
        "a MAC short": run.verdict_macs(macs[:-1]),
        "a MAC too many": run.verdict_macs([*macs, macs[0]]),
        "an empty MAC": run.verdict_macs([*macs[:-1], b""]),
    }


def spoiled_macs_to_a_party(run: Run) -> Row:
    """MACs after which seat 0, which agreed to the set, must not show a share."""
    macs, last = run.macs_for(READER), run.survivors[-1]
    key = run.verdict_key(last, READER)
    lost = run.peers(READER).index(LOST)

    def of(mac: bytes) -> bytes:
        """With this MAC of the last survivor."""
        return run.verdict_macs([*macs[:-1], mac])

    def over(seats: Iterable[int], *, under: bytes = key) -> bytes:
        digest = frames.digest_of_fields(frames.VERDICT, run.verdict(seats))
        return of(sharing.verdict_mac(under, digest))

    alive = run.survivors
    elsewhere = frames.digest_of_fields(frames.VERDICT, [OTHER, run.listed(alive)])
    ends = run.fingerprints[last], run.fingerprints[READER]
    other_key = sharing.verdict_key(run.root(last, READER, epoch=1), OTHER, *ends)
    by_lost = [*macs[:-1], b""]
    by_lost[lost] = run.verdict_mac(LOST, READER)
    return {
        "too few": of(b""),
        "none": run.verdict_macs([b"" for _ in macs]),
        "a MAC changed": of(flipped(macs[-1], -1)),
        "a MAC cut by one byte": of(macs[-1][:-1]),
        "two MACs swapped": run.verdict_macs([*macs[:-2], macs[-1], macs[-2]]),
        "a MAC of another party": of(macs[-2]),
        "a MAC of a party outside the set": run.verdict_macs(by_lost),
        "a MAC short": run.verdict_macs(macs[:-1]),
        "a MAC too many": run.verdict_macs([*macs, macs[-1]]),
        "without the place of the lost": run.verdict_macs([mac for mac in macs if mac]),
        "over another set": over(run.seats),
        "over the closed plan": over([]),
        "over a verdict on another plan": of(sharing.verdict_mac(key, elsewhere)),
        "under the key of another plan": over(alive, under=other_key),
        "under the key of the other direction": over(alive, under=run.verdict_key(READER, last)),
        "under the key of the epoch before": over(
            alive, under=run.verdict_key(last, READER, epoch=0)
        ),
        "under the key of a column": over(alive, under=run.column_key(last, READER)),
        "another plan": write_frame(frames.VERDICT_MACS, [OTHER, macs]),
    }


def certificates(run: Run, survivors: Sequence[int], signers: Sequence[int]) -> dict[str, bytes]:
    """Certificates that do not prove the verdict for this set, or with no seats the closing."""
    told = run.verdict(survivors)
    elsewhere = [OTHER, told[1]]
    opposite = run.verdict([] if survivors else run.survivors)

    def signature(seat: int, fields: list[Any] = told) -> bytes:
        return signature_over(frames.VERDICT, fields, run.identities[seat])

    def of(
        seats: Iterable[int],
        *,
        fields: list[Any] = told,
        stranger: bool = False,
        last: bytes = b"",
    ) -> bytes:
        """A certificate of these signers, with the last signature changed if it is given."""
        seats = list(seats)
        signatures = [signature(seat, fields) for seat in seats]
        by = run.listed(seats)
        if stranger:
            by.append(frames.fingerprint(frames.public_of(STRANGER)))
            signatures.append(signature_over(frames.VERDICT, fields, STRANGER))
        if last:
            signatures[-1] = last
        return write_frame(frames.CERTIFICATE, [*fields, by, signatures])

    few, last = list(signers[:-1]), signers[-1]
    by, signatures = run.listed(signers), [signature(seat) for seat in signers]
    as_proposal = signature_over(frames.PROPOSAL, told, run.identities[last])
    good = of(signers)
    return {
        "too few signers": of(few),
        "a signer twice in place of another": of([*few, few[-1]]),
        "a signer twice": of([*signers, last]),
        "a stranger among the signers": of(few, stranger=True),
        "signers in another order": of(signers[::-1]),
        "a signature over another verdict": of(signers, last=signature(last, opposite)),
        "a signature over a verdict on another plan": of(signers, last=signature(last, elsewhere)),
        "a signature as if for a proposal": of(signers, last=as_proposal),
        "a signature of another party": of(signers, last=signature(few[-1])),
        "a signature changed": of(signers, last=flipped(signature(last), -1)),
        "a signature short": write_frame(frames.CERTIFICATE, [*told, by, signatures[:-1]]),
        "a signature too many": write_frame(
            frames.CERTIFICATE, [*told, by, [*signatures, signatures[-1]]]
        ),
        "two signatures swapped": write_frame(
            frames.CERTIFICATE, [*told, by, [*signatures[:-2], signatures[-1], signatures[-2]]]
        ),
        "of another plan": of(signers, fields=elsewhere),
        "signatures of this plan under another": write_frame(
            frames.CERTIFICATE, [*elsewhere, by, signatures]
        ),
        "cut by one byte": good[:-1],
        "one byte more": good + b"\0",
    }


def _of_a_set(run: Run) -> dict[str, bytes]:
    """More certificates that do not prove that the set of this run opens."""
    alive, told = run.survivors, run.verdict(run.survivors)
    outside = [READER, LOST, 2, 3]
    by = [signature_over(frames.VERDICT, told, run.identities[seat]) for seat in outside]
    # The signature of the lost seat is among those that are checked, since it comes first.
    more = [signature_over(frames.VERDICT, told, run.identities[seat]) for seat in run.seats]
    few = alive[:-1]
    fields = run.verdict(few)
    of_few = [signature_over(frames.VERDICT, fields, run.identities[seat]) for seat in alive]
    names, listed = frames.CERTIFICATE, run.listed
    return {
        "a signer outside the set": write_frame(names, [*told, listed(outside), by]),
        "one signer more, outside the set": write_frame(names, [*told, listed(run.seats), more]),
        "a set below the threshold": run.certificate(few, signers=few),
        "a set below the threshold, a signer outside it": write_frame(
            names, [*fields, listed(alive), of_few]
        ),
        "the set in another order": run.certificate(alive[::-1], signers=alive),
        "one twice in the set": run.certificate([*alive, alive[-1]], signers=alive),
        "a stranger in the set": _with_a_stranger(run),
    }


def _with_a_stranger(run: Run) -> bytes:
    fields = [run.plan_digest, [*run.listed(run.survivors), OTHER]]
    by = [signature_over(frames.VERDICT, fields, run.identities[seat]) for seat in run.survivors]
    return write_frame(frames.CERTIFICATE, [*fields, run.listed(run.survivors), by])


def spoiled_certificates(run: Run) -> Row:
    """Certificates after which seat 0, which agreed to the set, must not show a share."""
    return {
        **certificates(run, run.survivors, run.survivors),
        **_of_a_set(run),
        "of another set": run.certificate(run.seats, signers=run.survivors),
        "of the closed plan": run.closed,
    }


def spoiled_settlements(run: Run, coordinator: bytes) -> dict[str, Row]:
    """Settlements that a party refuses, by who meets them.

    Seat 0 has revealed its shares, or agreed to close the plan. Seat 1 never saw the plan: the
    settlement's certificate is all that it knows.
    """
    entries, result = run.entries(), read_frame(run.settled, frames.SETTLEMENT).fields[7]
    another = some_bytes("another entry")

    def released(certificate: bytes = run.certified, **listed: bytes) -> bytes:
        chosen = [listed.get(f"seat_{seat}", entry) for seat, entry in enumerate(entries)]
        return run.settlement("released", chosen, certificate=certificate, result=result)

    def void(certificate: bytes) -> bytes:
        listed = read_frame(run.void, frames.SETTLEMENT).fields[4]
        return run.settlement("void", listed, certificate=certificate, result=b"")

    def other(private: bytes = coordinator, **fields: Any) -> bytes:
        return changed(run.settled, frames.SETTLEMENT, private, **fields)

    of_all = run.certificate(run.seats, signers=run.survivors)
    false = {**certificates(run, run.survivors, run.survivors), **_of_a_set(run)}
    return {
        "released, to seat 0": {
            "no certificate": released(b""),
            "a certified party is not listed": released(seat_4=b""),
            "a party is listed that is not certified": released(seat_1=another),
            "another party in place of a certified one": released(seat_1=another, seat_4=b""),
            "another set, certified and listed": released(of_all, seat_1=another),
            "what we sent is not listed": released(seat_0=another),
            "a certificate of the closed plan": released(run.closed),
            "another state": other(f2="opened"),
            "another plan": other(f1=OTHER),
            "another length": other(f3=1),
            "signed by a party": other(private=run.identities[LOST]),
            "signature changed": flipped(run.settled, -1),
        },
        "released, to seat 1": {
            **{name: released(frame) for name, frame in false.items()},
            "no certificate": released(b""),
            "of another set": released(of_all),
            "of the closed plan": released(run.closed),
            "another message": released(run.proposed),
        },
        "void, to seats 0 and 1": {
            name: void(frame) for name, frame in certificates(run, [], [0, 1, 2, 3]).items()
        },
        "of another run": {"released": other(f0=OTHER)},
    }


def spoiled_additive_settlements(run: Run, coordinator: bytes) -> Row:
    """Settlements of the additive form that seat 0 refuses."""

    def of(**fields: Any) -> bytes:
        return changed(run.settled, frames.SETTLEMENT, coordinator, **fields)

    entries = run.entries()
    return {
        "a certificate": of(f6=run.certificate(run.seats, signers=run.seats)),
        "what we sent is not listed": of(f4=[OTHER, *entries[1:]]),
        "a party is not listed": of(f4=[*entries[:-1], b""]),
        "a seat short": of(f4=entries[:-1]),
        "another plan": of(f1=OTHER),
        "another length": of(f3=1),
        "another state": of(f2="opened"),
        "signature changed": flipped(run.settled, -1),
    }
