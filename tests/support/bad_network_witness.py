"""Sees all that happens in a run over a bad network, and says whether any of it must not be.

It hears of each vector where it is hidden and of each sum where it is opened, through forms that
tell it; and it reads every packet that an honest end sent, before the network touches it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from party.errors import Reason
from protocols import wire
from protocols.additive import AdditiveSum
from protocols.fields import Message
from protocols.identity import PublicIdentity
from protocols.masked import MaskedSum
from protocols.messages import Dealing, MaskedVector, Plan, Refusal, Reveal, ShareBundle, Verdict
from protocols.ring import Words
from protocols.rounds import CoordinatorRound
from protocols.secure_sum import SecureSum

LEAST_PARTIES = 3
Seen = tuple[bytes, bytes]
"""Fingerprint of a party, and digest of a plan."""


class Door(Protocol):
    """A party: packet in, packet out."""

    @property
    def transcript_head(self) -> bytes: ...

    def receive(self, packet: bytes) -> bytes: ...


class Opened:
    """One sum that the coordinator opened."""

    def __init__(self, plan: bytes, survivors: tuple[bytes, ...], words: NDArray[np.int64]) -> None:
        self.plan = plan
        self.survivors = survivors
        self.words = words


class Witness:
    """What was hidden, sent and opened."""

    def __init__(self, parties: Sequence[PublicIdentity]) -> None:
        self._fingerprints = [identity.fingerprint for identity in parties]
        self.opened: list[Opened] = []
        self._opened_before: dict[bytes, Opened] = {}
        self.plans: dict[bytes, Plan] = {}
        self.frames: set[bytes] = set()
        self.sent: dict[type[Message], dict[Seen, set[bytes]]] = defaultdict(
            lambda: defaultdict(set)
        )
        self.verdicts: dict[Seen, tuple[bytes, ...]] = {}
        self._last_plan: dict[int, bytes] = {}
        self.doors: Sequence[Door] = ()  # by node, once there is a network
        self.heads: dict[bytes, set[bytes]] = defaultdict(set)
        self.complaints: list[str] = []
        self._vectors: dict[tuple[int, bytes], NDArray[np.int64]] = {}
        self._heads: dict[tuple[int, bytes], bytes] = {}
        self._keys: set[tuple[int, bytes]] = set()

    # What it hears ----------------------------------------------------------------------------

    def hidden(
        self, node: int, vector: NDArray[np.int64], body: bytes, keys: Sequence[bytes]
    ) -> None:
        """A party put these keys on this vector; `body` came of it."""
        self._vectors[node, body] = vector
        # As it is now: what comes behind the plan in one packet moves it on.
        self._heads[node, body] = self.doors[node].transcript_head
        for key in keys:
            if (node, key) in self._keys:
                self.complaints.append("a key met a second vector")
            self._keys.add((node, key))

    def was_opened(self, opened: Opened) -> None:
        before = self._opened_before.get(opened.plan)
        if before is None:
            self.opened.append(opened)
            return
        # A new process of the coordinator opens the very same sum, once more.
        assert before.survivors == opened.survivors
        assert np.array_equal(before.words, opened.words), "two sums of one plan"
        del self._opened_before[opened.plan]

    def coordinator_died(self) -> None:
        """What was opened may be opened once more, from the same y's."""
        self._opened_before = {opened.plan: opened for opened in self.opened}

    def saw(self, frames: Sequence[bytes]) -> list[str]:
        """Keep what honest ends sent, in either direction; return the codes of refusals."""
        self.frames.update(frames)
        codes = []
        for frame in frames:
            if frame[2] == Plan.TYPE:
                signed = _decoded(frame)
                self.plans[signed.digest] = wire.expect(signed, Plan)
            elif frame[2] == Refusal.TYPE:
                codes.append(wire.expect(_decoded(frame), Refusal).reason)
        if Reason.FAULT.value in codes:
            self.complaints.append("a party failed with an error that has no code")
        return codes

    def answered(self, node: int, frames: Sequence[bytes]) -> None:
        """Hold what a party sent against what it may send."""
        me = self._fingerprints[node]
        for frame in frames:
            match _decoded(frame).message:
                case MaskedVector(plan_digest=plan, sender=sender, body=body):
                    assert sender == me
                    assert (node, body) in self._vectors, "a y that nobody computed"
                    if not self.has_sent(me, plan):
                        self._last_plan[node] = plan  # a reveal does not name its plan
                        self.heads[plan].add(self._heads[node, body])
                    self.sent[MaskedVector][me, plan].add(body)
                case ShareBundle(plan_digest=plan):
                    self.sent[Dealing][me, plan].add(frame)
                case Verdict(plan_digest=plan, survivors=survivors):
                    self.sent[Verdict][me, plan].add(frame)
                    self.verdicts[me, plan] = survivors
                case Reveal(sender=sender):
                    assert sender == me
                    self.sent[Reveal][me, self._last_plan[node]].add(frame)

    # What must hold ---------------------------------------------------------------------------

    def check(self) -> None:
        """Every opened sum is exact; nobody's own vector was to be had."""
        assert self.complaints == []
        self._check_messages()
        self._check_sums()
        self._check_hiding()

    def body_of(self, party: bytes, plan: bytes) -> bytes:
        """The one y that a party ever sent for a plan."""
        [body] = self.sent[MaskedVector][party, plan]
        return body

    def vector_of(self, party: bytes, plan: bytes) -> NDArray[np.int64]:
        """What is in it."""
        return self._vectors[self._fingerprints.index(party), self.body_of(party, plan)]

    def has_sent(self, party: bytes, plan: bytes) -> bool:
        """Whether a party sent a y for a plan."""
        return (party, plan) in self.sent[MaskedVector]

    def _check_messages(self) -> None:
        for _, plan in self.sent[MaskedVector]:
            assert plan in self.plans, "a y for a plan that nobody made"
        for heads in self.heads.values():
            assert len(heads) == 1, "parties that remember different runs served one plan"
        for kind, seen in self.sent.items():
            for bodies in seen.values():
                # Two y's of one plan are one pad under two vectors.
                assert len(bodies) == 1, f"{len(bodies)} bodies of one {kind.__name__}"

    def _check_sums(self) -> None:
        plans = [opened.plan for opened in self.opened]
        assert len(set(plans)) == len(plans), "a plan was opened twice"
        for opened in self.opened:
            assert len(set(opened.survivors)) == len(opened.survivors) >= LEAST_PARTIES
            for party in opened.survivors:
                assert self.has_sent(party, opened.plan), "a sum with another plan's vector"
            vectors = [self.vector_of(party, opened.plan) for party in opened.survivors]
            expected = _wrapped(np.sum(vectors, axis=0))
            assert np.array_equal(opened.words, expected), "a wrong sum"
            if (opened.survivors[0], opened.plan) in self.sent[Dealing]:
                self._check_verdicts(opened)

    def _check_verdicts(self, opened: Opened) -> None:
        """Enough parties of the set agreed that it opens."""
        agreed = [
            party
            for party in opened.survivors
            if self.verdicts.get((party, opened.plan)) == opened.survivors
        ]
        least = MaskedSum.threshold(len(self._fingerprints))
        assert len(agreed) >= least, "a set that too few agreed to"

    def _check_hiding(self) -> None:
        traffic = b"\0".join(self.frames)
        for (_, body), vector in self._vectors.items():
            assert body != vector.astype("<u4").tobytes()
            for width in ("<u4", ">u4", "<i8"):
                assert vector.astype(width).tobytes() not in traffic, "a vector in the open"


class _Watched(SecureSum):
    """A form that tells a witness which vector it hides and which sum it opens."""

    def watched_by(self, witness: Witness, node: int) -> SecureSum:
        self._witness, self._node = witness, node
        return self

    def opens_for(self, witness: Witness, round_: CoordinatorRound) -> None:
        """Say whose sums these are: the coordinator's end of a run."""
        self._witness, self._round = witness, round_

    def hide(
        self,
        words: Words,
        *,
        seat: int,
        pair_keys: Mapping[int, bytes],
        self_key: bytes = b"",
    ) -> None:
        hidden = self.ring.decode(words)
        super().hide(words, seat=seat, pair_keys=pair_keys, self_key=self_key)  # type: ignore[safe-super]
        keys = [key for key in (*pair_keys.values(), self_key) if key]
        self._witness.hidden(self._node, hidden, words.tobytes(), keys)

    def unshard(self, total: Words, **named: Any) -> NDArray[np.int64]:
        words = super().unshard(total, **named)
        plan, survivors = self._round.open_plan.digest, self._round.batch.survivors
        self._witness.was_opened(Opened(plan, survivors, words.copy()))
        return words


class WatchedAdditive(_Watched, AdditiveSum):
    """Additive, watched."""


class WatchedMasked(_Watched, MaskedSum):
    """Masked, watched."""


WATCHED: dict[str, Callable[[], _Watched]] = {
    "additive": WatchedAdditive,
    "masked": WatchedMasked,
}


_decoded = lru_cache(maxsize=2**13)(wire.decode)
"""Most messages are the same in every schedule."""


def _wrapped(values: NDArray[np.int64]) -> NDArray[np.int64]:
    return (values + 2**31) % 2**32 - 2**31
