"""Request rate per address: a token bucket for each, and a bounded number of buckets."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

MOST_ADDRESSES = 4096
"""Beyond so many, the address whose last request is oldest is forgotten, and may ask anew."""

_MINUTE_S = 60.0


class RateLimit:
    """The recent requests of each address; a minute's may come at once after a quiet minute.

    The clock never goes back, in seconds.
    """

    def __init__(self, per_minute: int, *, clock: Callable[[], float]) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, filled at

    def allows(self, address: str) -> bool:
        """Tell whether an address may ask now, and count the request."""
        now = self._clock()
        tokens, filled_at = self._buckets.pop(address, (self._per_minute, now))
        grown = (now - filled_at) * self._per_minute / _MINUTE_S
        tokens = min(self._per_minute, tokens + grown)
        is_allowed = tokens >= 1
        self._buckets[address] = tokens - is_allowed, now
        if len(self._buckets) > MOST_ADDRESSES:
            self._buckets.popitem(last=False)
        return is_allowed

    def __len__(self) -> int:
        return len(self._buckets)
