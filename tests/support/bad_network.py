"""A network that loses, repeats, delays, misdelivers and spoils packets, by a schedule of faults.

A schedule is a list of small `Fault`s, so that Hypothesis can draw it and shrink it. Both levels at
which schedules are played use the same network: whole runs (`bad_runs`) and the two state machines
of the secure sum alone (`bad_sums`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from hypothesis import strategies as st

from coordinator.runs.transport import Silence, Transport
from pate_fed.nodes.database import NodeDatabase
from protocols import wire
from protocols.errors import MalformedMessageError
from protocols.identity import SigningIdentity
from protocols.secure_sum import SecureSum
from tests.support.bad_network_witness import Door, Witness
from tests.support.marker import reachable

T = TypeVar("T")
MAX_BYTES = 2**24
SIGNED_END = 66
"""Bytes of a signature in a frame."""
LONG_S = 100_000
"""Longer than any run lasts."""


class Kind(StrEnum):
    """What the network does to one packet."""

    DROP = "drop"
    REPEAT = "repeat"
    REPEAT_LATER = "repeat later"
    DELAY = "delay"
    MISDELIVER = "misdeliver"
    MISDELIVER_TOO = "misdeliver a copy"
    TRUNCATE = "truncate"
    FLIP = "flip one bit"
    FLIP_MORE = "flip bits"
    FLIP_END = "flip a bit in front of a signature"
    REORDER = "reorder frames"
    REPEAT_FRAME = "repeat a frame"
    DROP_FRAME = "drop a frame"
    CUT_FRAME = "cut a frame"
    SPLICE = "splice two frames"
    SWAP_SIGNATURE = "take another frame's signature"
    OLDER = "an older frame of the same type"
    ANY_OLDER = "an older frame in front"
    REORDER_PARTIES = "reorder parties"
    STALL = "stall until the run has expired"
    RESTART_PARTY = "restart the party"
    RESTART_COORDINATOR = "restart the coordinator"


class KilledError(BaseException):
    """The coordinator's process ended in the middle of an exchange."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong with one packet.

    Attributes:
        exchange: In which exchange, from 0.
        node: With whose packet.
        to_party: Whether on its way to the party; else on the way back.
        kind: What happens.
        a: Where: a place, a byte, a bit, an older frame, so many exchanges later.
        b: Another choice of the same.
    """

    exchange: int
    node: int
    to_party: bool
    kind: Kind
    a: int = 0
    b: int = 0


Schedule = list[Fault]


def schedules(
    *, exchanges: int, nodes: int, most: int = 5, kinds: Iterable[Kind] = Kind
) -> st.SearchStrategy[Schedule]:
    """Draw schedules of 1 to `most` faults."""
    fault = st.builds(
        Fault,
        exchange=st.integers(0, exchanges - 1),
        node=st.integers(0, nodes - 1),
        to_party=st.booleans(),
        kind=st.sampled_from(list(kinds)),
        a=st.integers(0, 2**14 - 1),
        b=st.integers(0, 15),
    )
    return st.lists(fault, min_size=1, max_size=most)


class Clock:
    """Unix time in the test's hands."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@dataclass(slots=True)
class _Late:
    """A packet under way: it arrives in a later exchange, before or behind that one's own."""

    due: int
    node: int
    to_party: bool
    packet: bytes
    first: bool
    pick: int


@dataclass(slots=True)
class _Arrival:
    node: int
    packet: bytes
    pick: int | None = None


@dataclass(slots=True)
class _Slot:
    """Answers that arrive in one party's name in one exchange, and which of them counts."""

    packets: list[bytes] = field(default_factory=list)
    pick: int = 0

    def content(self) -> bytes | None:
        if not self.packets:
            return None
        if self.pick % 3 == 0:
            return self.packets[0]
        if self.pick % 3 == 1:
            return self.packets[-1]
        return _joined(self.packets)


class BadNetwork(Transport):
    """Carries packets to parties in this process, and does to them what a schedule says.

    Attributes:
        doors: The parties, by node.
        clock: Time, which a stalled exchange moves.
        witness: Sees all that honest ends send.
        trace: What anybody could see: who was sent, in which order, what types and sizes.
        applied: Kinds of faults that met a packet.
        restart: Gives a party a new process, by node.
    """

    def __init__(self, doors: Sequence[Door], *, clock: Clock, witness: Witness) -> None:
        super().__init__()
        self.doors = list(doors)
        self.clock = clock
        self.witness = witness
        self.witness.doors = self.doors
        self.trace: list[tuple[object, ...]] = []
        self.applied: set[Kind] = set()
        self._faults: dict[tuple[int, int, bool], list[Fault]] = {}
        self.restart: Callable[[int], None] = self._restart
        self._unordered: dict[int, Fault] = {}
        self._fatal: dict[int, Fault] = {}
        self._exchange = 0
        self._late: list[_Late] = []
        self._sent: list[bytes] = []

    def misbehave(self, schedule: Schedule) -> None:
        """Begin a schedule: the next exchange is its exchange 0."""
        self._exchange = 0
        self._faults.clear()
        for fault in schedule:
            if fault.kind is Kind.REORDER_PARTIES:
                self._unordered[fault.exchange] = fault
            elif fault.kind is Kind.RESTART_COORDINATOR:
                self._fatal[fault.exchange] = fault
            else:
                key = (fault.exchange, fault.node % len(self.doors), fault.to_party)
                self._faults.setdefault(key, []).append(fault)

    def nodes(self) -> list[int]:
        return list(range(len(self.doors)))

    def _carry(self, packets: Mapping[int, bytes]) -> dict[int, bytes | Silence]:
        fatal = self._fatal.pop(self._exchange, None)
        if fatal is None:
            return self._carried(packets)
        self.applied.add(fatal.kind)
        if fatal.b % 2:
            self._carried(packets)  # and nobody is there to take the answers
        self.witness.coordinator_died()
        raise KilledError

    def _carried(self, packets: Mapping[int, bytes]) -> dict[int, bytes | Silence]:
        self._note("sent", packets.items())
        slots = {node: _Slot() for node in packets}
        self._deliver_late(slots, first=True)
        arrivals = [
            arrival
            for node, packet in self._ordered(packets)
            for arrival in self._bent(node, packet, to_party=True)
        ]
        for arrival in arrivals:
            self._knock(arrival, slots)
        self._deliver_late(slots, first=False)
        self._exchange += 1
        contents = {node: slot.content() for node, slot in slots.items()}
        return {node: content for node, content in contents.items() if content is not None}

    def _restart(self, node: int) -> None:
        self.doors[node].restart()

    def _knock(self, arrival: _Arrival, slots: dict[int, _Slot]) -> None:
        """Hand a packet to a party, and its answer to the network again."""
        door = self.doors[arrival.node]
        answer = door.receive(arrival.packet)
        self._note("answered", [(arrival.node, answer)])
        self.witness.answered(arrival.node, _frames(answer))
        if arrival.pick is not None and arrival.node in slots:
            slots[arrival.node].pick = arrival.pick
        for back in self._bent(arrival.node, answer, to_party=False):
            self._file(back, slots)

    @staticmethod
    def _file(back: _Arrival, slots: dict[int, _Slot]) -> None:
        if back.node in slots:
            slots[back.node].packets.append(back.packet)
            if back.pick is not None:
                slots[back.node].pick = back.pick

    def _deliver_late(self, slots: dict[int, _Slot], *, first: bool) -> None:
        due = [late for late in self._late if late.due <= self._exchange and late.first is first]
        self._late = [late for late in self._late if late not in due]
        for late in due:
            arrival = _Arrival(late.node, late.packet, late.pick)
            if late.to_party:
                self._knock(arrival, slots)
            else:
                self._file(arrival, slots)

    def _ordered(self, packets: Mapping[int, bytes]) -> list[tuple[int, bytes]]:
        items = list(packets.items())
        fault = self._unordered.pop(self._exchange, None)
        if fault is None:
            return items
        self.applied.add(fault.kind)
        turn = fault.a % len(items)
        items = items[turn:] + items[:turn]
        return items[::-1] if fault.b % 2 else items

    def _bent(self, node: int, packet: bytes, *, to_party: bool) -> list[_Arrival]:
        """Apply the faults of one packet, one after another."""
        # Once each: a party that is reached twice in an exchange answers twice.
        faults = self._faults.pop((self._exchange, node, to_party), [])
        arrivals = [_Arrival(node, packet)]
        for fault in faults:
            arrivals = [bent for arrival in arrivals for bent in self._bend(fault, arrival)]
        self._remember(packet)
        return arrivals

    def _bend(self, fault: Fault, arrival: _Arrival) -> list[_Arrival]:
        node, packet = arrival.node, arrival.packet
        other = (node + 1 + fault.a) % len(self.doors)
        self.applied.add(fault.kind)
        if not packet:  # cut to nothing before
            return [arrival]
        match fault.kind:
            case Kind.DROP:
                return []
            case Kind.REPEAT:
                return [_Arrival(node, packet, fault.b), _Arrival(node, packet, fault.b)]
            case Kind.REPEAT_LATER | Kind.DELAY:
                due = self._exchange + 1 + fault.a % 8
                first, pick = fault.b % 2 == 0, fault.b // 2
                self._late.append(_Late(due, node, fault.to_party, packet, first, pick))
                return [arrival] if fault.kind is Kind.REPEAT_LATER else []
            case Kind.MISDELIVER:
                return [_Arrival(other, packet, fault.b)]
            case Kind.MISDELIVER_TOO:
                copy = _Arrival(other, packet, fault.b)
                return [arrival, copy] if fault.b % 2 else [copy, arrival]
            case Kind.STALL:
                self.clock.now += LONG_S
                return [arrival]
            case Kind.RESTART_PARTY:  # before the packet comes, or once it has answered
                self.restart(node)
                return [arrival]
            case Kind.TRUNCATE:
                return [_Arrival(node, packet[: fault.a % len(packet)], arrival.pick)]
            case Kind.FLIP:
                return [_Arrival(node, _flipped(packet, [fault.a]), arrival.pick)]
            case Kind.FLIP_MORE:
                bits = [fault.a * (step + 1) + fault.b for step in range(fault.b + 1)]
                return [_Arrival(node, _flipped(packet, bits), arrival.pick)]
            case _:
                return [_Arrival(node, self._with_other_frames(fault, packet), arrival.pick)]

    def _with_other_frames(self, fault: Fault, packet: bytes) -> bytes:
        frames = _frames(packet)
        if not frames:
            return packet
        place = fault.b % len(frames)
        frame = frames[place]
        match fault.kind:
            case Kind.REORDER:
                turn = fault.a % len(frames)
                frames = frames[turn:] + frames[:turn]
                frames = frames[::-1] if turn == 0 else frames
            case Kind.REPEAT_FRAME:
                frames.insert(fault.a % (len(frames) + 1), frame)
            case Kind.DROP_FRAME:
                del frames[place]
            case Kind.CUT_FRAME:
                frames[place] = frame[: fault.a % max(1, len(frame))]
            case Kind.FLIP_END:  # of what a message says last: a result, a body, a deadline
                end = max(1, len(frame) - SIGNED_END)
                frames[place] = _flipped(frame, [8 * end - 1 - fault.a % min(128, 8 * end)])
            case Kind.SPLICE:
                other = self._older(frame, fault.b, same_type=fault.b % 2 == 0)
                cut = fault.a % max(1, len(frame))
                spliced = frame[:cut] + other[cut:]
                # By chance two frames may end alike: then it would be whole in one play alone.
                frames[place] = (
                    spliced if spliced != frame else _flipped(frame, [8 * len(frame) - 1])
                )
            case Kind.SWAP_SIGNATURE:
                other = self._older(frame, fault.a, same_type=fault.b % 4 != 0)
                frames[place] = frame[:-64] + other[-64:]
            case Kind.OLDER:
                frames[place] = self._older(frame, fault.a, same_type=True)
            case Kind.ANY_OLDER:
                older = self._older(frame, fault.a, same_type=fault.b % 2 == 0)
                frames.insert(fault.a % (len(frames) + 1), older)
        return wire.pack(frames)

    def _older(self, frame: bytes, which: int, *, same_type: bool) -> bytes:
        """A frame that an honest end sent before; this one if there is none."""
        known = [
            sent
            for sent in self._sent
            if sent != frame and (not same_type or sent[:3] == frame[:3])
        ]
        # The newest first: they are the likeliest to fit somewhere.
        return known[-1 - which % len(known)] if known else frame

    def _remember(self, packet: bytes) -> None:
        self._sent += [frame for frame in _frames(packet) if frame not in self._sent]

    def _note(self, what: str, packets: Iterable[tuple[int, bytes]]) -> None:
        for node, packet in packets:
            frames = _frames(packet)
            shape = [(frame[2], len(frame)) for frame in frames]
            self.trace.append((what, node, *shape, *self.witness.saw(frames)))


class Snapshot(Generic[T]):
    """A federation to be copied many times: its values are shared by all copies."""

    def __init__(self, original: T) -> None:
        self._original = original
        values = [item for item in reachable(original) if _is_value(item)]
        self._shared = {id(value): value for value in values}

    def copy(self) -> T:
        """Another one in the very same state."""
        return copy.deepcopy(self._original, dict(self._shared))


def _is_value(item: object) -> bool:
    if isinstance(item, tuple):
        return all(isinstance(part, bytes | int | str | type) for part in item)
    if isinstance(item, SigningIdentity):
        return True
    parameters = getattr(type(item), "__dataclass_params__", None)
    if parameters is None or not parameters.frozen:
        return False
    # A form is no value: a watched one tells its own witness. Nor is what writes to a database, nor
    # a frozen object that holds either.
    held = [getattr(item, each.name) for each in fields(item)]
    return not any(
        isinstance(one, SecureSum | NodeDatabase)
        or (is_dataclass(one) and not isinstance(one, type) and not _is_value(one))
        for one in held
    )


def _frames(packet: bytes) -> list[bytes]:
    try:
        return wire.unpack(packet, max_bytes=MAX_BYTES)
    except MalformedMessageError:
        return []


def _joined(packets: list[bytes]) -> bytes:
    frames = [frame for packet in packets for frame in _frames(packet)]
    return wire.pack(frames[: wire.MAX_PACKET_FRAMES])


def _flipped(data: bytes, bits: Iterable[int]) -> bytes:
    changed = bytearray(data)
    for bit in bits if data else ():  # there is nothing to flip in what was cut off whole
        place = bit % (8 * len(changed))
        changed[place // 8] ^= 1 << place % 8
    return bytes(changed)
