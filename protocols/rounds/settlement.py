"""The settlement that ends a plan, and its proof; a party's end of it.

A released plan lists whose vectors are in its sum. A void one may carry evidence that its sum never
opens: refusals (additive) or a certificate that the plan is closed (masked). Only evidence frees
queries (rule R3).

Who signs a vector of a wrong length has refused, whatever its words: no sum takes that vector, and
an honest party signs none. Like any other refusal it does not prove that its sender sent nothing
else: see `PlanClaim.gives_back`.
"""

from __future__ import annotations

from collections.abc import Mapping

from protocols import wire
from protocols.errors import (
    FalseCertificateError,
    FalseRefusalError,
    HistoryError,
    MalformedMessageError,
    UnexpectedMessageError,
)
from protocols.fields import DIGEST_BYTES
from protocols.forms import Form
from protocols.identity import PublicIdentity
from protocols.messages import Certificate, Refusal, Settlement, VectorHead, Verdict
from protocols.rounds.bounds import PlanClaim
from protocols.rounds.party_plan import PartyPlan
from protocols.rounds.round_journal import RoundJournal
from protocols.rounds.seating import COORDINATOR, SeatedRun, verify_handed_over
from protocols.rounds.verdicts import require_certificate
from protocols.secure_sum import RoundForm, SecureSum
from protocols.wire import Signed


def certificate_of(
    settlement: Settlement,
    *,
    identities: Mapping[bytes, PublicIdentity],
    form: type[Form],
    known: Verdict | None = None,
) -> Verdict | None:
    """Check the certificate of a settlement; return the verdict that it proves, None without one.

    See `proven_claim` for the arguments.

    Raises:
        FalseCertificateError: it proves nothing, is of another plan, or this form has none; or a
            release of this form lacks it, or lists other parties than it.
        HistoryError: a release of a form that needs every party lists fewer.
    """
    released = settlement.state == "released"
    listed = listed_in(settlement, tuple(identities))
    if released and not form.survives_dropouts and len(listed) < len(identities):
        raise HistoryError("a release must list every party", len(listed), peer=COORDINATOR)
    if not settlement.certificate:
        if released and form.is_certified:
            raise FalseCertificateError("a release must have its certificate")
        return None
    if not form.is_certified:
        raise FalseCertificateError("this form must have no certificate")
    certificate = wire.expect(wire.decode(settlement.certificate), Certificate)
    if certificate.plan_digest != settlement.plan_digest:
        raise FalseCertificateError("a certificate must be of the settled plan")
    threshold = form.threshold(len(identities))
    verdict = certificate.verdict
    if verdict != known:
        require_certificate(certificate, identities=identities, threshold=threshold)
    if released and verdict.survivors != listed:
        raise FalseCertificateError("a release must list the certified set")
    return verdict


def refusers_of(
    settlement: Settlement,
    *,
    identities: Mapping[bytes, PublicIdentity],
    y_bytes: int | None = None,
) -> tuple[bytes, ...]:
    """Check every refusal of a settlement; return the parties that refused, in seat order.

    With false refusals a coordinator could have an opened batch asked again. See `proven_claim` for
    the arguments.

    Raises:
        FalseRefusalError: the plan was released, a refusal is of another plan or out of order, a
            vector has the plan's length, or a party refused whose vector is listed.
        BadSignatureError: its sender did not sign it; names the coordinator, which relayed it.
    """
    if settlement.refusals and settlement.state != "void":
        raise FalseRefusalError("a released plan must have no refusals", peer=COORDINATOR)
    waiting, refusers = list(identities), []
    listed = listed_in(settlement, tuple(identities))
    for frame in settlement.refusals:
        signed = wire.decode(frame)
        plan_digest, sender = _subject_of(signed)
        if plan_digest != settlement.plan_digest or sender not in waiting:
            raise FalseRefusalError(
                "refusals must be of this plan, in the order of seats", peer=COORDINATOR
            )
        del waiting[: waiting.index(sender) + 1]
        verify_handed_over(signed, identities[sender])
        if sender in listed:
            raise FalseRefusalError("a party that refused must have sent nothing", peer=COORDINATOR)
        if isinstance(signed.message, VectorHead):
            if signed.message.size == y_bytes:
                raise FalseRefusalError(
                    "a vector that counts as a refusal must be of a wrong length", peer=COORDINATOR
                )
            if y_bytes is None:
                continue
        refusers.append(sender)
    return tuple(refusers)


def _subject_of(signed: Signed) -> tuple[bytes, bytes]:
    """Return a refusal's plan and sender, also where it is the head of a spoiled vector."""
    if isinstance(signed.message, VectorHead):
        return signed.message.plan_digest, signed.message.sender
    refusal = wire.expect(signed, Refusal)
    return refusal.subject, refusal.sender


def proven_claim(
    settlement: Settlement,
    *,
    identities: Mapping[bytes, PublicIdentity],
    form: type[Form],
    known: Verdict | None = None,
    y_bytes: int | None = None,
) -> PlanClaim | None:
    """Check a settlement's evidence; return the claim that it proves about the plan (rule R3).

    The settlement's signature was verified. `identities` are all parties in seat order, by
    fingerprint. The signatures of a verdict that is `known` are not checked again. `y_bytes` is the
    length of a y of the plan; None where the plan is not at hand. Then nobody counts whose vector
    was of a wrong length: the coordinator could name any length.

    Returns None where it proves nothing. Raises `RemoteProtocolError` where a refusal or the
    certificate is false.
    """
    verdict = certificate_of(settlement, identities=identities, form=form, known=known)
    refusers = refusers_of(settlement, identities=identities, y_bytes=y_bytes)
    if verdict is not None:
        return PlanClaim.certified(verdict.survivors)
    if len(refusers) == len(identities):
        return PlanClaim.certified(())
    if refusers and not form.survives_dropouts:
        return PlanClaim.abandoned_by(refusers, seats=tuple(identities))
    return None


def y_bytes_of(form: RoundForm, words: int) -> int | None:
    """Return the length of a y of so many words; None where the form has none."""
    return form.ring.size_of(words) if isinstance(form, SecureSum) else None


def note_settled(
    journal: RoundJournal,
    plan_digest: bytes,
    claim: PlanClaim | None,
    *,
    run_id: bytes,
    came_here: bool = False,
) -> None:
    """Drop a settled plan's y and note the proven claim, if the plan was of its run.

    Parties of another run than the settlement's prove nothing about a plan: they may never have
    seen it. `came_here` says whether the plan came in this run: the journal may know it from
    another.
    """
    if not came_here and journal.run_of(plan_digest) != run_id:
        return
    journal.erase(plan_digest)
    if claim is not None:
        journal.resolve(plan_digest, claim)


def listed_in(settlement: Settlement, seats: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Return the parties whose vectors a settlement lists, in seat order."""
    if settlement.state not in ("released", "void"):
        raise MalformedMessageError("a plan is released or void", settlement.state)
    if len(settlement.contributions) != len(seats):
        raise MalformedMessageError("every seat must be listed", len(settlement.contributions))
    if not all(len(digest) in (0, DIGEST_BYTES) for digest in settlement.contributions):
        raise MalformedMessageError("a seat must have a digest or none")
    listed = zip(seats, settlement.contributions, strict=True)
    return tuple(seat for seat, digest in listed if digest)


def require_settlement(settlement: Settlement, plan: PartyPlan, *, run: SeatedRun) -> None:
    """Compare a settlement with the messages that this party sent, refused and agreed to."""
    seating = run.known
    listed = listed_in(settlement, seating.fingerprints)
    if settlement.plan_digest != plan.digest:
        raise UnexpectedMessageError("a settlement must be of the open plan", peer=COORDINATOR)
    if plan.plan is not None and settlement.words != plan.plan.words:
        raise HistoryError(
            "a settlement must be of the plan's length", settlement.words, peer=COORDINATOR
        )
    released = settlement.state == "released"
    entry = settlement.contributions[seating.seat]
    may_be_left_out = seating.form.survives_dropouts or not released
    if entry not in plan.entries and (entry or not may_be_left_out):
        raise HistoryError("what we sent must be listed", peer=COORDINATOR)
    if released and len(listed) < run.least_survivors:
        raise HistoryError("a release must have enough parties' vectors", len(listed))
    agreed = plan.verdict.survivors if plan.verdict is not None else ()
    if released and agreed and listed != agreed:
        raise HistoryError("a release must be of the set that we agreed to", peer=COORDINATOR)
    names_us = any(
        _subject_of(wire.decode(frame))[1] == seating.me for frame in settlement.refusals
    )
    if names_us and not plan.is_refused:
        raise FalseRefusalError("we must have refused", peer=COORDINATOR)
