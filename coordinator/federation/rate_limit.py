"""Request rate per address: a token bucket for each, and a bounded number of buckets."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

MOST_ADDRESSES = 4096
"""Beyond so many, the address whose last request is oldest is forgotten, and may ask anew."""

_MINUTE_S = 60.0


@dataclass(slots=True)
class _Bucket:
    tokens: float
    filled_at: float


class RateLimit:
    """The recent requests of each address; a minute's may come at once after a quiet minute.

    The clock never goes back, in seconds.
    """

    def __init__(self, per_minute: int, *, clock: Callable[[], float]) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def allows(self, address: str) -> bool:
        """Tell whether an address may ask now, and count the request."""
        now = self._clock()
        bucket = self._buckets.pop(address, None) or _Bucket(self._per_minute, now)
        grown = (now - bucket.filled_at) * self._per_minute / _MINUTE_S
        bucket.tokens, bucket.filled_at = min(self._per_minute, bucket.tokens + grown), now
        self._buckets[address] = bucket
        if len(self._buckets) > MOST_ADDRESSES:
            self._buckets.popitem(last=False)
        if bucket.tokens < 1:
            return False
        bucket.tokens -= 1
        return True

    def __len__(self) -> int:
        return len(self._buckets)
