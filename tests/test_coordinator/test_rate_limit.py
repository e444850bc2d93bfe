"""How often one address may ask."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.federation.rate_limit import MOST_ADDRESSES, RateLimit


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def allowed(rate: RateLimit, address: str, times: int) -> int:
    return sum(rate.allows(address) for _ in range(times))


def test_as_many_as_in_a_minute_may_come_at_once_and_no_more() -> None:
    rate = RateLimit(10, clock=Clock())
    assert allowed(rate, "a", 50) == 10
    assert allowed(rate, "b", 1) == 1


def test_a_minute_gives_a_minutes_worth_and_never_more() -> None:
    clock = Clock()
    rate = RateLimit(60, clock=clock)
    allowed(rate, "a", 60)
    clock.now += 10
    assert allowed(rate, "a", 50) == 10
    clock.now += 3600
    assert allowed(rate, "a", 200) == 60


def test_asking_in_vain_costs_nothing_more() -> None:
    clock = Clock()
    rate = RateLimit(60, clock=clock)
    allowed(rate, "a", 10_000)
    clock.now += 5
    assert allowed(rate, "a", 50) == 5


def test_a_flood_of_addresses_takes_no_more_room() -> None:
    rate = RateLimit(2, clock=Clock())
    for number in range(3 * MOST_ADDRESSES):
        assert rate.allows(f"10.{number}")
    assert len(rate) == MOST_ADDRESSES
    # Who asks all the time is not forgotten for it.
    allowed(rate, "a", 2)
    for number in range(MOST_ADDRESSES - 1):
        rate.allows(f"11.{number}")
    assert not rate.allows("a")
