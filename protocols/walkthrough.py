"""The whole secure sum in one function, to be read: setup, one batch, its opening, the end.

The state machines of `rounds` do the same message by message, against ends that are late, restarted
or lying; from the same secrets they make the same bytes. Here all are honest, and parties may be
lost before they send y. A check stands where its end makes it, and none fails.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocols import messages, wire
from protocols.dealing import Labels, deal, disclose, read_disclosure
from protocols.envelope import SealingKey, open_shares, seal, seal_shares
from protocols.identity import SigningIdentity
from protocols.pair_keys import PairRoots, confirmation, make_root
from protocols.rounds.bounds import ANY_SET
from protocols.rounds.contribution import Contribution, opening_digest
from protocols.rounds.opening.at_party import STAGE
from protocols.rounds.seating import setup_digest
from protocols.rounds.verdicts import require_certificate, require_open_set
from protocols.secure_sum import SecureSum
from protocols.shamir import Elements, Shamir, elements_to_secrets
from protocols.suites import DEFAULT_SUITE
from protocols.transcript import Transcript


@dataclass(frozen=True)
class Walker:
    """One party: its identity, its key for envelopes, its random numbers, its secret vector x."""

    identity: SigningIdentity
    sealing_key: SealingKey
    random_bytes: Callable[[int], bytes]
    vector: NDArray[np.int64]


def walk_through(  # noqa: PLR0912, PLR0915 - the whole protocol in one place
    form: SecureSum,
    coordinator: SigningIdentity,
    walkers: Sequence[Walker],
    *,
    nonce: bytes,
    expires_at: int,
    colluders: int,
    terms: tuple[bytes, bytes] = (b"", b""),
    result: bytes = b"",
    lost: Collection[int] = (),
    suite: str = DEFAULT_SUITE,
) -> tuple[dict[int, bytes], NDArray[np.int64], Transcript]:
    """Run the protocol once; return the frame of each y by its seat, the sum, the transcript.

    Beside the ends and their secrets the arguments say what goes into the messages: `terms` are
    the run's and the plan's, `lost` the seats that send nothing.
    """
    # Seats are in the order of fingerprints: it decides the sign of each stream.
    parties = sorted(walkers, key=lambda each: each.identity.fingerprint)
    publics = {each.identity.fingerprint: each.identity.public for each in parties}
    seats, n = tuple(publics), len(parties)
    form.require_enough(n)
    t = form.threshold(n)
    pairs = [(i, j) for i in range(n) for j in range(n) if i != j]

    # Setup, 1. An offer, each party's keys, and the record of both, which fixes the run: its digest
    # is the run's id, and everything below is bound to it.
    kind = form.name, form.ring_bits, suite
    offered = messages.RunOffer(coordinator.public.key, nonce, *kind, expires_at, True)
    offer = wire.sign(offered, coordinator)
    statements = []
    for party in parties:
        keys = party.identity.public.key, party.sealing_key.public_bytes, party.random_bytes(32)
        said = messages.KeyStatement(offer.digest, *keys, "party", expires_at, journal_counter=0)
        statements.append(wire.sign(said, party.identity).frame)
    fixed = offer.digest, coordinator.fingerprint, tuple(statements), *kind, t, colluders, n - t
    record = wire.sign(
        messages.RunRecord(*fixed, expires_at, True, b"", b"", (), terms[0]), coordinator
    )
    run_id, transcript = record.digest, Transcript().append("run record", record.digest)

    # Setup, 2. Each pair makes a root from randomness of both ends, which the coordinator relays
    # sealed (R6), and each end confirms to the other that it has the same root.
    halves = {(i, j): parties[i].random_bytes(32) for i, j in pairs}
    roots: list[dict[bytes, bytes]] = [{} for _ in parties]
    for i, j in pairs:
        to, bound = parties[j].sealing_key, {"sender": seats[i], "receiver": seats[j]}
        sealed = seal(halves[i, j], to.public_bytes, suite=suite, run_id=run_id, **bound)
        theirs = to.open(sealed, run_id=run_id, **bound)
        both = {seats[i]: theirs, seats[j]: halves[j, i]}
        roots[j][seats[i]] = make_root(both, run_id=run_id)
    digests = []
    for i in range(n):
        macs = []
        for j in (j for own, j in pairs if own == i):
            bound = {"run_id": run_id, "sender": seats[i], "receiver": seats[j]}
            macs.append(confirmation(roots[i][seats[j]], **bound))
            assert macs[-1] == confirmation(roots[j][seats[i]], **bound)  # as j checks it
        macs_said = messages.Confirmations(run_id, seats[i], tuple(macs))
        digests.append(wire.sign(macs_said, parties[i].identity).digest)
    transcript = transcript.append("setup", setup_digest(digests))

    # Batch, exchange 1. The plan (R1) has the transcript's head (R8), and all its keys come from
    # its digest: parties with two histories cannot be added. A party journals the plan, moves its
    # roots to the plan's epoch, computes y once, and stores it before it is sent (R4).
    epoch, words = 1, len(parties[0].vector)
    asked = messages.Plan(run_id, epoch, 0, transcript.head, words, expires_at, terms[1])
    plan = wire.sign(asked, coordinator).digest
    transcript = transcript.append("plan", plan)
    ratchets = [PairRoots(seat, own) for seat, own in zip(seats, roots, strict=True)]
    total = form.empty_total(words)
    ys, dealings, dealt_digests, columns = {}, {}, {}, {}
    for i, party in enumerate(parties):
        if i in lost:
            continue
        ratchets[i].advance(epoch)
        streams = {seats.index(fp): key for fp, key in ratchets[i].keys_for(plan).items()}
        if form.is_certified:
            streams[i] = party.random_bytes(32)  # b, the self mask, fresh for every plan
        pair_keys = {j: key for j, key in streams.items() if j != i}
        y = form.shard(party.vector, seat=i, pair_keys=pair_keys, self_key=streams.get(i, b""))
        ys[i] = wire.sign(messages.MaskedVector(plan, seats[i], y.tobytes()), party.identity)
        form.merge(total, y)  # at the coordinator, which keeps no y
        if form.is_certified:
            # Shares of b and of each key for every holder, sealed; their hashes are signed.
            secrets = [streams[j] for j in range(n)]
            draw, by = party.random_bytes, seats[i]
            dealt = deal(
                secrets, seat=i, sender=by, plan_digest=plan, threshold=t, random_bytes=draw
            )
            dealings[i] = dealt.message
            dealt_digests[i] = wire.sign(dealt.message, party.identity).digest
            for j, column in enumerate(dealt.columns):
                columns[i, j] = column
                if j != i:
                    key = ratchets[i].sending_key(seats[j], plan_digest=plan, stage=STAGE)
                    columns[i, j] = seal_shares(column, key, dealing_digest=dealt_digests[i])

    alive, dropped = list(ys), [i for i in range(n) if i not in ys]
    left, certificate, reveals = [], b"", {}
    if form.is_certified:
        # Exchange 2. Each survivor signs one verdict on the proposed set, and never another one: t
        # equal verdicts are a certificate, and no other set of this plan can have one (R3).
        proposal = messages.SetProposal(run_id, plan, tuple(seats[i] for i in alive))
        verdict = messages.Verdict(plan, proposal.survivors)
        given = []
        for i in alive:
            require_open_set(verdict.survivors, me=seats[i], seats=seats, least=t, bound=ANY_SET)
            given.append(wire.sign(verdict, parties[i].identity).signature)
        proof = messages.Certificate(
            plan, verdict.survivors, verdict.survivors[:t], tuple(given[:t])
        )
        require_certificate(proof, identities=publics, threshold=t)
        certificate = wire.contain(proof)
        transcript = transcript.append("verdict", wire.digest_of(verdict))

        # Exchange 3. Against it each survivor shows its shares of the keys that are in the sum
        # still: each survivor's b, and its keys with those that dropped out. Any t of them join.
        opening = opening_digest(wire.digest_of(verdict), [dealt_digests[i] for i in alive])
        shares: dict[int, list[Elements]] = {i: [] for i in alive}
        for holder in alive:
            shown = []
            for i in alive:
                column, place = columns[i, holder], {"dealer": i, "holder": holder}
                if i != holder:
                    key = ratchets[holder].receiving_key(seats[i], plan_digest=plan, stage=STAGE)
                    column = open_shares(column, key, dealing_digest=dealt_digests[i])
                shown.append(disclose(column, dealings[i], dropped=dropped, **place))
                read = read_disclosure(shown[-1], dealings[i], dropped=dropped, **place)
                shares[i].append(read)  # at the coordinator
            reveal = messages.Reveal(opening, seats[holder], tuple(shown))
            reveals[holder] = wire.sign(reveal, parties[holder].identity).digest
        secret: dict[tuple[int, int], bytes] = {}
        for i in alive:
            joined = Shamir(t, n).join(np.array(shares[i][:t]), holders=alive[:t])
            labels = Labels.of(dealings[i], dealer=i)
            for j, key in zip((i, *dropped), elements_to_secrets(joined), strict=True):
                assert labels.of_secret(j, key) == dealings[i].secret_hash(j)
                secret[i, j] = key
        left = [(sign, secret[i, j]) for i, j, sign in form.leftovers(alive, parties=n)]
    opened = form.unshard(total, streams=left)

    # The end. The settlement binds all that each party signed, and stands in the transcript, whose
    # last head all sign and compare: two that were told two histories find out here (R8).
    entries = [b""] * n
    for i in alive:
        signed = ys[i].digest, dealt_digests.get(i, b""), reveals.get(i, b"")
        entries[i] = Contribution(*signed).digest
    ended = "released", words, tuple(entries), (), certificate, result
    settlement = wire.sign(messages.Settlement(run_id, plan, *ended), coordinator)
    transcript = transcript.append("settlement", settlement.digest)
    closing = messages.Closing(run_id, transcript.head)
    for i in alive:
        head = messages.HeadStatement(run_id, seats[i], transcript.head, epoch, journal_counter=0)
        wire.sign(head, parties[i].identity).verify(publics[seats[i]])
        assert head.head == closing.head
    return {i: y.frame for i, y in ys.items()}, opened, transcript
