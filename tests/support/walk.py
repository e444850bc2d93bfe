"""A run that stops between any two steps, so that a test can put a word in."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocols import wire
from protocols.additive import AdditiveSum
from protocols.errors import RefusedError
from protocols.identity import SigningIdentity
from protocols.rounds import Blame, CoordinatorState, PartyState
from protocols.secure_sum import SecureSum
from protocols.suites import DEFAULT_SUITE
from tests.support.rounds import MemoryRun

WORDS = 6
ROW_WORDS = 3


class Walk:
    """One run of three batches: released; refused by all and void; void, and a row asked about.

    Attributes:
        run: The run.
        me: Fingerprint of the party in the first seat, whose side a test looks at.
        total: The opened sum of the first batch.
    """

    def __init__(
        self,
        parties: int = 0,
        *,
        form: type[SecureSum] = AdditiveSum,
        suite: str = DEFAULT_SUITE,
    ) -> None:
        self.run = MemoryRun(parties or form.smallest, form=form, suite=suite)
        self.me = self.run.coordinator.seats[0]
        self.total: NDArray[np.int64] | None = None
        self._steps = self._walk()
        next(self._steps)

    @property
    def party_state(self) -> PartyState:
        return self.run.parties[self.me].state

    @property
    def coordinator_state(self) -> CoordinatorState:
        return self.run.coordinator.state

    def to(self, state: PartyState) -> Walk:
        """Go on until the party is in `state`."""
        while self.party_state is not state:
            next(self._steps)
        return self

    def to_step(self, step: str) -> Walk:
        """Go on to a step by its name."""
        while next(self._steps) != step:
            pass
        return self

    def finish(self) -> None:
        """Go on to the end, which must be a good one."""
        for _ in self._steps:
            pass
        assert self.total is not None
        assert np.array_equal(self.total, vector() * len(self.run.parties))
        assert self.coordinator_state is CoordinatorState.DONE
        assert {party.state for party in self.run.parties.values()} == {PartyState.DONE}

    def _walk(self) -> Iterator[str]:
        run, coordinator = self.run, self.run.coordinator
        yield "begin"
        yield from self._exchange(
            "offer", dict.fromkeys(run.parties, coordinator.setup.offer.frame)
        )
        record = coordinator.setup.make_record(terms=b"", **run.tolerance)
        self._tell("record", record)
        yield "record"
        accepted = {fp: list(party.accept_run()) for fp, party in run.parties.items()}
        yield "accepted"
        self._answer("record", accepted)
        yield "accepted in"
        yield from self._exchange("deliver", coordinator.setup.deliver())
        yield from self._exchange("closing setup", coordinator.setup.close())
        self._tell("plan", run.open_plan(WORDS, batch=0))
        yield "plan"
        ys = {fp: list(party.contribute(vector())) for fp, party in run.parties.items()}
        yield "y"
        self._answer("y", ys)
        yield "y in"
        if run.form.survives_dropouts:
            yield from self._reveal()
        self.total = coordinator.batch.open_total()
        run.settle(released=True, result=b"labels")
        yield "settled"
        self._tell("plan", run.open_plan(WORDS, batch=1))
        refusals = {fp: list(party.refuse("PF-301")) for fp, party in run.parties.items()}
        yield "refused"
        for fp, frames in refusals.items():
            try:
                run.to_coordinator("refusal", fp, frames)
            except RefusedError as error:
                assert error.peer == fp.hex()  # noqa: PT017 - each of them must refuse
        run.settle(released=False)
        yield "void"
        yield from self._blame()
        yield from self._exchange(
            "closing", dict.fromkeys(run.parties, coordinator.closing.close())
        )
        yield from self._exchange(
            "heads", dict.fromkeys(run.parties, coordinator.closing.compare())
        )

    def _blame(self) -> Iterator[str]:
        run, coordinator = self.run, self.run.coordinator
        run.sum([vector()] * len(run.parties), batch=2, row_words=ROW_WORDS)
        run.settle(released=False)
        self._tell("row", coordinator.blame.ask(1))
        yield "asked"
        sums = {
            fp: list(party.state_sums(row_words=ROW_WORDS)) for fp, party in run.parties.items()
        }
        self._answer("row", sums)
        yield "stated"
        quota = int(vector()[ROW_WORDS:].sum())
        assert coordinator.blame.name([quota] * len(run.parties)) == Blame()
        yield "named"

    def _reveal(self) -> Iterator[str]:
        coordinator = self.run.coordinator
        yield from self._exchange("proposal", coordinator.batch.propose())
        frames = coordinator.batch.certify()
        for fp, (certificate, _) in frames.items():
            assert self.run.to_party("certificate", fp, certificate) == []
        yield "certificate"
        shares = {fp: bundle for fp, (_, bundle) in frames.items()}
        yield from self._exchange("shares", shares)

    def _tell(self, stage: str, frame: bytes) -> None:
        for fp in self.run.parties:
            assert self.run.to_party(stage, fp, frame) == []

    def _answer(self, stage: str, replies: dict[bytes, list[bytes]]) -> None:
        for fp, frames in replies.items():
            self.run.to_coordinator(stage, fp, frames)

    def _exchange(self, stage: str, frames: dict[bytes, bytes]) -> Iterator[str]:
        replies = {fp: self.run.to_party(stage, fp, frame) for fp, frame in frames.items()}
        yield stage
        self._answer(stage, replies)
        yield f"{stage} in"


STEPS = (
    "begin", "offer", "offer in", "record", "accepted", "accepted in", "deliver", "deliver in",
    "closing setup", "closing setup in", "plan", "y", "y in", "settled", "refused", "void",
    "asked", "stated", "named",
    "closing", "closing in", "heads", "heads in",
)  # fmt: skip


MASKED_STEPS = (
    *STEPS[: STEPS.index("settled")],
    "proposal", "proposal in", "certificate", "shares", "shares in",
    *STEPS[STEPS.index("settled") :],
)  # fmt: skip


def vector() -> NDArray[np.int64]:
    """What every party contributes."""
    return np.arange(WORDS, dtype=np.int64) * 7 - 5


def altered(frame: bytes, identity: SigningIdentity, **changed: Any) -> bytes:
    """The message of a frame with other fields, truly signed by `identity`."""
    message: Any = dataclasses.replace(wire.decode(frame).message, **changed)  # type: ignore[type-var]
    signed = wire.sign(message, identity) if message.PURPOSE else wire.decode(wire.contain(message))
    return signed.frame
