"""The way of packets to parties, for any carrier."""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from coordinator.errors import SetupError
from protocols import wire


@dataclass(frozen=True, slots=True)
class Silence:
    """The reason why no packet came: a stable code, never a text."""

    code: str


@dataclass(frozen=True, slots=True)
class Packet:
    """A packet that a node sent.

    Attributes:
        kinds: Types of the messages in it; none for a receipt.
    """

    node: int
    kinds: tuple[str, ...]
    size: int
    digest: bytes


@dataclass(slots=True)
class Traffic:
    """Packets and bytes sent and received so far.

    Attributes:
        packets: Packets from parties, in the order in which they came.
    """

    exchanges: int = 0
    sent: int = 0
    packets: list[Packet] = field(default_factory=list)

    @property
    def received(self) -> int:
        """Bytes of packets from parties."""
        return sum(packet.size for packet in self.packets)


class Transport(ABC):
    """Carries packets between the coordinator and its nodes."""

    def __init__(self) -> None:
        self.traffic = Traffic()

    @abstractmethod
    def nodes(self) -> list[int]:
        """Return the nodes that can be reached, of those that it was opened for.

        One that waits for nodes does so here.
        """

    def nodes_now(self) -> list[int]:
        """Return the nodes that can be reached now, and wait for none."""
        return self.nodes()

    def exchange(self, packets: Mapping[int, bytes]) -> dict[int, bytes | Silence]:
        """Send one packet to each node; return each one's answer, or why there is none."""
        answers = self._carry(packets)
        self.traffic.exchanges += 1
        self.traffic.sent += sum(len(packet) for packet in packets.values())
        self.traffic.packets += [
            Packet(node, wire.kinds_in(answer), len(answer), hashlib.sha256(answer).digest())
            for node, answer in answers.items()
            if isinstance(answer, bytes)
        ]
        return {node: answers.get(node, Silence("no answer in time")) for node in packets}

    @abstractmethod
    def _carry(self, packets: Mapping[int, bytes]) -> dict[int, bytes | Silence]:
        """Do it; a node may be left out of the answers."""


class WatchedTransport(Transport):
    """A transport whose exchanges are timed."""

    def __init__(self, carrier: Transport, on_exchange: Callable[[float], None]) -> None:
        super().__init__()
        self._carrier = carrier
        self._on_exchange = on_exchange

    def nodes(self) -> list[int]:
        """See `Transport.nodes`."""
        return self._carrier.nodes()

    def nodes_now(self) -> list[int]:
        """See `Transport.nodes_now`."""
        return self._carrier.nodes_now()

    def _carry(self, packets: Mapping[int, bytes]) -> dict[int, bytes | Silence]:
        start = time.monotonic()
        answers = self._carrier.exchange(packets)
        self._on_exchange(time.monotonic() - start)
        return answers


class NoTransport(Transport):
    """The transport of a run that asks no hospital."""

    def nodes(self) -> list[int]:
        """See `Transport.nodes`."""
        return []

    def _carry(self, packets: Mapping[int, bytes]) -> dict[int, bytes | Silence]:
        raise SetupError("a run whose answers are all known must ask nobody", len(packets))
