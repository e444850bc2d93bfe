"""A coordinator that lies to real parties, in every kind of run: it signs what it changed.

Kinds of runs: either form; noise at the coordinator, or at the parties.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from protocols import wire
from protocols.fields import Message
from protocols.messages import MaskedVector, Refusal
from tests.support.federation import (
    CLASSES,
    TEACHERS,
    Federation,
    labels_of,
    messages,
    ready_federation,
)

PARTIES = 5
MOST_BYTES = 2**30
Lie = Callable[[Message], Message]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of run."""

    form: str
    place: str

    def __str__(self) -> str:
        return f"{self.form}, noise at {self.place}"

    @property
    def terms(self) -> dict[str, Any]:
        """What `Federation` has to be told."""
        return {} if self.place == "coordinator" else {"noise_place": "parties"}

    def federation(
        self, *, parties: int = PARTIES, terms: dict[str, Any] | None = None, **changed: Any
    ) -> Federation:
        """A federation that is not set up yet."""
        return Federation(**self._settings(parties=parties, terms=terms, **changed))

    def _settings(
        self, *, parties: int = PARTIES, terms: dict[str, Any] | None = None, **changed: Any
    ) -> dict[str, Any]:
        told = {**self.terms, **(terms or {})}
        return {"parties": parties, "form": self.form, "terms": told, **changed}

    def ready(self, **changed: Any) -> Federation:
        """A federation that is set up."""
        return ready_federation(**self._settings(**changed))


KINDS = [
    Kind(form, place) for form in ("additive", "masked") for place in ("coordinator", "parties")
]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=str)
masked_kinds = pytest.mark.parametrize("kind", [k for k in KINDS if k.form == "masked"], ids=str)
additive_kinds = pytest.mark.parametrize(
    "kind", [k for k in KINDS if k.form == "additive"], ids=str
)


def lied(federation: Federation, packet: bytes, lie: Lie) -> bytes:
    """A packet of the coordinator with changed messages, truly signed by it."""
    frames = []
    for frame in wire.unpack(packet, max_bytes=MOST_BYTES):
        message = wire.decode(frame).message
        told = lie(message)
        if told is message:
            frames.append(frame)
            continue
        signed = (
            wire.sign(told, federation.identity)
            if told.PURPOSE
            else wire.decode(wire.contain(told))
        )
        frames.append(signed.frame)
    return wire.pack(frames)


def tell(federation: Federation, places: Collection[int], lie: Lie) -> None:
    """From here on some parties are told something else."""
    federation.transport.on_query = lambda node, packet: (
        lied(federation, packet, lie) if node in places else packet
    )


def votes_cast(federation: Federation) -> list[int]:
    """How often each party asked its teachers."""
    return [steps.count("vote") for steps in federation.steps]


def codes(answer: bytes) -> list[str]:
    """Codes of the refusals in an answer."""
    return [message.reason for message in messages(answer) if isinstance(message, Refusal)]


def last_codes(federation: Federation) -> list[str]:
    """What each party refused the last message with, in seat order."""
    last = dict(federation.transport.answers)
    found = federation.seats_of_nodes()
    nodes = [found[seat] for seat in federation.run.round.seats]
    return [code for node in nodes for code in codes(last[node])]


def plan_codes(federation: Federation) -> list[str]:
    """What each party refused its last plan with, in seat order.

    A masked plan that is void is to be closed: that is the last message then.
    """
    run = federation.run.round
    found = {
        message.sender: message.reason
        for _, answer in federation.transport.answers
        for message in messages(answer)
        if isinstance(message, Refusal) and message.subject != run.run_id
    }
    return [found[seat] for seat in run.seats if seat in found]


def bodies(federation: Federation, *, words: int) -> list[NDArray[np.uint32]]:
    """Every y of so many words that any party sent, in the order of sending."""
    found = []
    for _, answer in federation.transport.answers:
        for message in messages(answer):
            if isinstance(message, MaskedVector) and len(message.body) == 4 * words:
                found.append(np.frombuffer(message.body, dtype="<u4"))
    return found


def looks_like_noise(total: NDArray[np.uint32]) -> bool:
    """Whether a sum tells no votes: of 6 uniform words 4 are far from 0, but once in 10^10 sums.

    Votes, and votes with any noise of these runs, are all within 2^20 of 0.
    """
    far = (total > 2**20) & (total < 2**32 - 2**20)
    return bool(far.sum() >= 4)


def clean_rows(*indices: int, parties: int = PARTIES) -> NDArray[np.int64]:
    """The exact sum of well-behaved teachers' votes."""
    rows = np.zeros((len(indices), CLASSES), dtype=np.int64)
    rows[np.arange(len(indices)), labels_of(*indices)] = parties * TEACHERS
    return rows
