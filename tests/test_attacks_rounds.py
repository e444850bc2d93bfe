"""Attacks on one party's state machine that no coordinator of ours would even make."""

from __future__ import annotations

import secrets
from dataclasses import replace

import pytest

from protocols import wire
from protocols.additive import AdditiveSum
from protocols.dealing import deal, read_disclosure
from protocols.envelope import seal_shares
from protocols.errors import (
    BadSignatureError,
    ConflictingMessageError,
    HistoryError,
    UnexpectedMessageError,
    WrongShareError,
)
from protocols.masked import MaskedSum
from protocols.messages import Plan, Reveal, Settlement, ShareBundle, Verdict
from protocols.rounds import PartyState
from protocols.rounds.contribution import Contribution, opening_digest
from protocols.rounds.opening.at_party import STAGE
from protocols.secure_sum import SecureSum
from tests.support.cheating import Cheat
from tests.support.markers import sampled
from tests.support.rounds import NOW, MemoryRun, ready_run
from tests.support.walk import altered, vector

WORDS = len(vector())
forms = pytest.mark.parametrize("form", [AdditiveSum, MaskedSum])


def settled_at_epoch(form: type[SecureSum], epoch: int) -> tuple[MemoryRun, bytes]:
    """A run whose parties served one batch, at an epoch that the coordinator skipped to."""
    run = ready_run(form.smallest, form=form)
    assert run.coordinator.history is not None
    run.coordinator.history = replace(run.coordinator.history, epoch=epoch - 1)
    run.sum([vector()] * form.smallest)
    run.settle()
    return run, run.coordinator.seats[0]


@sampled()
@forms
@pytest.mark.parametrize("epoch", [1, 4, 5])
def test_an_epoch_that_was_skipped_or_served_is_not_gone_back_to(
    form: type[SecureSum], epoch: int
) -> None:
    """Its roots are gone, and whoever has an older root must not be given a use for it."""
    run, me = settled_at_epoch(form, 5)
    party = run.parties[me]
    assert party.epoch == 5
    plan = run.open_plan(WORDS, batch=1)
    back = altered(plan, run.coordinator_identity, epoch=epoch)
    if epoch == 5:  # of an epoch that it served, two plans are a conflict, besides
        with pytest.raises(ConflictingMessageError):
            party.receive(back, now=NOW)
        assert party.state is PartyState.STOPPED
        return
    with pytest.raises(UnexpectedMessageError, match="epoch"):
        party.receive(back, now=NOW)
    assert party.state is PartyState.READY
    assert isinstance(party.receive(plan, now=NOW).event, Plan)
    assert wire.decode(party.contribute(vector())[-1]).message


def test_hashes_that_a_dealer_did_not_sign_stop_the_holder_though_its_own_column_fits() -> None:
    """The coordinator changes hashes of secrets: the holder's shares fit, the dealing does not."""
    cheat = Cheat([vector()] * 5)
    holder, everyone = cheat.parties[0], range(5)
    cheat.agree(everyone)
    holder.receive(cheat.certificate(everyone), now=NOW)
    bundle = wire.expect(wire.decode(cheat.bundle(everyone, 0)), ShareBundle)
    true = cheat.dealing(1)
    forged = replace(true, secret_hashes=bytes(32) + true.secret_hashes[32:])
    changed = replace(bundle, dealings=(cheat.signed(forged), *bundle.dealings[1:]))
    with pytest.raises(BadSignatureError) as caught:
        holder.receive(wire.contain(changed), now=NOW)
    assert caught.value.peer == "coordinator"
    assert holder.state is PartyState.STOPPED


# Dealings and reveals in the transcript (rule R8) ------------------------------------------------

HOLDER, DEALER = 0, 1
"""Seats: who is to be framed, and the colluding dealer."""


def with_vectors_in() -> tuple[Cheat, dict[bytes, list[bytes]]]:
    """All y's and verdicts are with an honest coordinator; what it would relay, by holder."""
    cheat = Cheat([vector()] * 5)
    for seat, frames in enumerate(cheat.frames):
        cheat.run.to_coordinator("y", cheat.fingerprint(seat), frames)
    cheat.run.agree(cheat.run.coordinator.batch.propose())
    return cheat, cheat.run.coordinator.batch.certify()


def dealt_again(cheat: Cheat) -> tuple[bytes, bytes]:
    """A second dealing that the dealer signed for one plan, and its column for the holder."""
    dealer, me = cheat.parties[DEALER], cheat.fingerprint(DEALER)
    keys = dealer.roots.keys_for(cheat.plan_digest)
    dealt = deal(
        [keys.get(fp, bytes(32)) for fp in cheat.run.coordinator.seats],
        seat=DEALER,
        sender=me,
        plan_digest=cheat.plan_digest,
        threshold=4,
        random_bytes=secrets.token_bytes,
    )
    signed = wire.sign(dealt.message, cheat.run.identities[me])
    to = cheat.fingerprint(HOLDER)
    key = dealer.roots.sending_key(to, plan_digest=cheat.plan_digest, stage=STAGE)
    return signed.frame, seal_shares(dealt.columns[HOLDER], key, dealing_digest=signed.digest)


def revealed_by(cheat: Cheat, seat: int, frames: list[bytes]) -> bytes:
    replies = [reply for f in frames for reply in cheat.parties[seat].receive(f, now=NOW).replies]
    (reveal,) = replies
    return reveal


def entry_of(cheat: Cheat, seat: int, reveal: bytes) -> Contribution:
    bundle, y = (wire.decode(frame) for frame in cheat.frames[seat])
    [dealing] = wire.expect(bundle, ShareBundle).dealings
    return Contribution(y.digest, wire.decode(dealing).digest, wire.decode(reveal).digest)


def settlement_of(cheat: Cheat, entries: list[bytes], *, state: str = "released") -> bytes:
    run_id = cheat.run.coordinator.run_id
    return cheat.signed(
        Settlement(
            run_id=run_id,
            plan_digest=cheat.plan_digest,
            state=state,
            words=WORDS,
            contributions=tuple(entries),
            refusals=(),
            certificate=cheat.run.coordinator.open_plan.certificate_frame,
            result=b"",
        )
    )


def test_a_holder_is_not_framed_by_a_dealer_that_signed_two_dealings() -> None:
    """Its shares are of the dealing that it was shown; the coordinator holds them against another.

    They do not fit, and without more the holder would be named for showing what it did not get.
    """
    cheat, relayed = with_vectors_in()
    coordinator, holder = cheat.run.coordinator, cheat.fingerprint(HOLDER)
    second, column = dealt_again(cheat)
    proof, honest = relayed[holder]
    bundle = wire.expect(wire.decode(honest), ShareBundle)
    swapped = replace(
        bundle,
        dealings=(second, *bundle.dealings[1:]),
        envelopes=(column, *bundle.envelopes[1:]),
    )
    frame = revealed_by(cheat, HOLDER, [proof, wire.contain(swapped)])
    assert cheat.parties[HOLDER].batch.wrong_dealers == ()  # it could not know better
    reveal = wire.expect(wire.decode(frame), Reveal)
    with pytest.raises(WrongShareError):
        read_disclosure(
            reveal.disclosures[DEALER],
            cheat.dealing(DEALER),
            dealer=DEALER,
            holder=HOLDER,
            dropped=(),
        )
    with pytest.raises(UnexpectedMessageError, match="relayed"):
        coordinator.receive(frame, peer=holder)
    assert coordinator.batch.share_faults == ()
    # Whoever is shown the second dealing, too, sees that the holder used it, in its own words.
    digests = [wire.decode(cheat.bundles[seat].dealings[0]).digest for seat in range(5)]
    digests[DEALER] = wire.decode(second).digest
    verdict = wire.digest_of(Verdict(cheat.plan_digest, coordinator.seats))
    assert reveal.opening_digest == opening_digest(verdict, digests)


@sampled()
@pytest.mark.parametrize("state", ["released", "void"])
@pytest.mark.parametrize(
    "forged",
    [
        pytest.param({"dealing": bytes(32)}, id="another dealing"),
        pytest.param({"dealing": bytes(32), "reveal": b""}, id="another dealing, no reveal"),
        pytest.param({"reveal": bytes(32)}, id="another reveal"),
        pytest.param({"vector": bytes(32)}, id="another y"),
        pytest.param({"dealing": b""}, id="y alone, as if the form had no dealings"),
    ],
)
def test_what_a_party_did_not_sign_is_not_settled_in_its_name(
    forged: dict[str, bytes], state: str
) -> None:
    cheat, relayed = with_vectors_in()
    reveal = revealed_by(cheat, HOLDER, relayed[cheat.fingerprint(HOLDER)])
    entry = replace(entry_of(cheat, HOLDER, reveal), **forged).digest
    with pytest.raises(HistoryError, match="sent"):
        cheat.parties[HOLDER].receive(
            settlement_of(cheat, [entry, *[bytes(32)] * 4], state=state), now=NOW
        )
    assert cheat.parties[HOLDER].state is PartyState.STOPPED


def test_a_reveal_is_not_dropped_unseen() -> None:
    """Its holder sees that it is said not to have come, and nobody can be told otherwise."""
    heads, lost = set(), []
    cheat, relayed = with_vectors_in()
    reveals = {fp: revealed_by(cheat, n, relayed[fp]) for n, fp in enumerate(relayed)}
    entries = [entry_of(cheat, seat, reveal) for seat, reveal in enumerate(reveals.values())]
    dropped = [entries[HOLDER].without_reveal.digest, *[each.digest for each in entries[1:]]]
    for seat, told in ((HOLDER, dropped), (2, [each.digest for each in entries]), (3, dropped)):
        party = cheat.parties[seat]
        party.receive(settlement_of(cheat, told), now=NOW)
        heads.add(party.transcript.head)
        lost.append(party.batch.reveal_was_lost)
    assert lost == [True, False, False]
    # Who is told that it came, and who is told that it did not, remember two runs.
    assert len(heads) == 2
    assert cheat.parties[HOLDER].transcript.head == cheat.parties[3].transcript.head


def test_two_reveals_of_one_holder_make_two_histories() -> None:
    """A colluding holder opens for two dealings; each party is told of one of the reveals."""
    cheat, relayed = with_vectors_in()
    reveals = {fp: revealed_by(cheat, n, relayed[fp]) for n, fp in enumerate(relayed)}
    entries = [entry_of(cheat, seat, reveal) for seat, reveal in enumerate(reveals.values())]
    other = replace(entries[DEALER], reveal=bytes(32))
    for seat, second in ((2, entries[DEALER]), (3, other)):
        told = [each.digest for each in entries]
        told[DEALER] = second.digest
        cheat.parties[seat].receive(settlement_of(cheat, told), now=NOW)
    assert cheat.parties[2].transcript.head != cheat.parties[3].transcript.head
