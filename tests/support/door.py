"""A SuperLink's door in memory: who was let in, by number."""

from __future__ import annotations

from itertools import count

from coordinator.federation.enrollment import NodeAtLink


class Door:
    """Lets nodes in and puts them out.

    Args:
        first: Number of the first node; Flower's are of 64 bits.

    Attributes:
        keys: Keys of the nodes that are in, PEM, by number.
    """

    def __init__(self, first: int = 2**63) -> None:
        self.keys: dict[int, bytes] = {}
        self._numbers = count(first)

    def register(self, public_key: bytes, *, name: str) -> int:
        node = next(self._numbers)
        self.keys[node] = public_key
        return node

    def unregister(self, node_id: int) -> None:
        del self.keys[node_id]

    def nodes(self) -> list[NodeAtLink]:
        return [NodeAtLink(number, key, "online") for number, key in self.keys.items()]
