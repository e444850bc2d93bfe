"""The one verdict of each party on a plan, and the proof of enough equal ones; both ends.

A party signs one verdict on a plan: a set of parties opens, or the plan is closed. Enough equal
verdicts are a certificate: no other verdict on this plan can have as many. A party shows shares
(`opening`) only against it, or against MACs of these verdicts that prove the same to it alone. The
coordinator relays the MACs first: they are quicker to check. A certificate for "closed" proves that
nothing ever opens, so that the plan's queries may be asked again.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence

from protocols import wire
from protocols.errors import (
    BadSignatureError,
    FalseCertificateError,
    KeyReuseError,
    TooFewSharesError,
    UnexpectedMessageError,
    VerdictError,
)
from protocols.fields import VERDICT_MAC_BYTES
from protocols.identity import PublicIdentity, SigningIdentity
from protocols.messages import Certificate, SetProposal, Verdict, VerdictMacs
from protocols.pair_keys import PairRoots
from protocols.rounds.bounds import SetBound
from protocols.rounds.party_plan import PartyPlan
from protocols.rounds.round_journal import RoundJournal
from protocols.rounds.seating import COORDINATOR, SeatedRun

VERDICT_STAGE = "verdict"


def give_verdict(proposal: SetProposal, plan: PartyPlan, *, run: SeatedRun) -> tuple[bytes, ...]:
    """Give a party's one verdict on a plan, which is noted there: journalled first, then signed.

    Returns the frames to send: the verdict, behind its MACs where a set is to open.

    Raises:
        VerdictError: the set must not open, or the party gave another verdict.
        TooFewSharesError: fewer parties than the form or this party's floor needs.
        UnexpectedMessageError: not a set of seats.
        RestoredJournalError: the journal was halted: it cannot promise.
    """
    seating = run.known
    if proposal.survivors:
        if plan.sent is None:
            raise VerdictError("we must have sent our y for a set to open")
        require_open_set(
            proposal.survivors,
            me=seating.me,
            seats=seating.fingerprints,
            least=run.least_survivors,
            bound=plan.bound,
        )
    verdict = Verdict(plan.digest, proposal.survivors)
    frame = sign_verdict(verdict, run_id=run.run_id, identity=run.identity, journal=run.journal)
    plan.verdict = verdict
    if not proposal.survivors:
        plan.holder = None  # nothing will be shown for it
        return (frame,)
    macs = verdict_macs(verdict, peers=seating.peers, roots=run.roots)
    return (wire.contain(macs), frame)


def sign_verdict(
    verdict: Verdict, *, run_id: bytes, identity: SigningIdentity, journal: RoundJournal
) -> bytes:
    """Sign a party's one verdict on a plan, the same as often as it is asked.

    Raises `VerdictError` where it gave another one, or the run has too many plans that never came.
    """
    if journal.run_of(verdict.plan_digest) not in (b"", run_id):
        raise VerdictError("a verdict must be on a plan of its run")
    try:
        journal.decide(verdict.plan_digest, wire.digest_of(verdict), run_id=run_id)
    except KeyReuseError as error:
        raise VerdictError("we must give one verdict on a plan") from error
    return wire.sign(verdict, identity).frame


def take_proof(proof: VerdictMacs | Certificate, plan: PartyPlan, *, run: SeatedRun) -> None:
    """Take the proof that enough parties gave this party's own verdict on a plan."""
    verdict, seating = plan.verdict, run.known
    if verdict is None or not verdict.survivors:
        raise FalseCertificateError("a closed plan must not open", peer=COORDINATOR)
    if isinstance(proof, VerdictMacs):
        require_macs(proof, verdict, run=run)
    elif proof.verdict != verdict:
        raise FalseCertificateError("a certificate must be for our own verdict", peer=COORDINATOR)
    else:
        require_certificate(proof, identities=seating.identities, threshold=seating.threshold)
    plan.is_certified = True


def require_seats(survivors: Sequence[bytes], seats: Sequence[bytes]) -> None:
    """Check that a set is of seats, in order, none twice."""
    chosen = set(survivors)
    if tuple(survivors) != tuple(seat for seat in seats if seat in chosen):
        raise UnexpectedMessageError(
            "survivors must be seats, in order, none twice", peer=COORDINATOR
        )


def require_open_set(
    survivors: Sequence[bytes],
    *,
    me: bytes,
    seats: Sequence[bytes],
    least: int,
    bound: SetBound,
) -> None:
    """Decide whether a party agrees that this set, `survivors`, opens; raise why it does not.

    `seats` are all parties of the run, in seat order; `least` the fewest whose sum it helps to
    open, `bound` the journal's for the plan's queries (rule R3).
    """
    require_seats(survivors, seats)
    if len(survivors) < least:
        raise TooFewSharesError(received=len(survivors), threshold=least)
    if me not in survivors:
        raise VerdictError("we must be in a set that we agree to")
    if not bound.allows(survivors):
        raise VerdictError("an earlier plan with one of these queries must leave this set possible")


def require_signers(
    signers: Sequence[bytes], *, survivors: Sequence[bytes], seats: Sequence[bytes], threshold: int
) -> None:
    """Check who signed a certificate: enough seats, and of a set that opens its members alone."""
    allowed = set(survivors or seats)
    if tuple(signers) != tuple(seat for seat in seats if seat in set(signers) & allowed):
        raise FalseCertificateError("signers must be seats of the set, in order")
    if len(signers) < threshold:
        raise FalseCertificateError(f"a certificate needs {threshold} verdicts", len(signers))


def require_certificate(
    certificate: Certificate, *, identities: Mapping[bytes, PublicIdentity], threshold: int
) -> Verdict:
    """Check a certificate, or raise `FalseCertificateError`; return the verdict that it proves.

    `threshold` is both the verdicts that it needs and the fewest parties that open.
    """
    seats = tuple(identities)
    require_seats(certificate.survivors, seats)
    if certificate.survivors and len(certificate.survivors) < threshold:
        raise FalseCertificateError(f"a set needs {threshold} parties", len(certificate.survivors))
    require_signers(
        certificate.signers,
        survivors=certificate.survivors,
        seats=seats,
        threshold=threshold,
    )
    if len(certificate.signatures) != len(certificate.signers):
        raise FalseCertificateError("each signer must have signed", len(certificate.signatures))
    digest = wire.digest_of(certificate.verdict)
    signed = zip(certificate.signers, certificate.signatures, strict=True)
    try:
        # No more signatures than the threshold: others would prove nothing more.
        for signer, signature in list(signed)[:threshold]:
            identities[signer].verify(purpose=Verdict.PURPOSE, digest=digest, signature=signature)
    except BadSignatureError as error:
        raise FalseCertificateError("each signer must have signed the verdict") from error
    return certificate.verdict


def verdict_macs(verdict: Verdict, *, peers: Sequence[bytes], roots: PairRoots) -> VerdictMacs:
    """Authenticate a party's verdict to each of its peers, under roots at the plan's epoch."""
    digest = wire.digest_of(verdict)
    plan = verdict.plan_digest
    keys = (roots.sending_key(peer, plan_digest=plan, stage=VERDICT_STAGE) for peer in peers)
    return VerdictMacs(plan, tuple(_verdict_mac(key, digest) for key in keys))


def require_macs(message: VerdictMacs, verdict: Verdict, *, run: SeatedRun) -> None:
    """Check that enough peers gave this party's own verdict for a set, by their MACs.

    It proves to this party the same as a certificate proves to everybody: an honest peer
    authenticates one verdict, to all.
    """
    peers, threshold = run.known.peers, run.known.threshold
    plan, digest = verdict.plan_digest, wire.digest_of(verdict)
    if message.plan_digest != plan or len(message.macs) != len(peers):
        raise FalseCertificateError("one MAC or none must come of each peer", len(message.macs))
    survivors, agreed = set(verdict.survivors), 1  # this party itself
    for peer, mac in zip(peers, message.macs, strict=True):
        if mac and peer in survivors:
            key = run.roots.receiving_key(peer, plan_digest=plan, stage=VERDICT_STAGE)
            agreed += hmac.compare_digest(mac, _verdict_mac(key, digest))
    if agreed < threshold:
        raise FalseCertificateError(f"{threshold} parties must have agreed", agreed)


def _verdict_mac(key: bytes, digest: bytes) -> bytes:
    return hmac.digest(key, digest, "sha256")[:VERDICT_MAC_BYTES]
