"""The cost of a release as an event: all facts that an accountant needs.

An event keeps its meaning for ever, so that old ledgers stay readable: its record carries a
name with a version, and a new meaning is a new event class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from operator import eq, le
from typing import ClassVar, Final

from pate_fed.accounting.distributed_law import share_sigma
from pate_fed.accounting.ranges import in_range, positive, whole
from pate_fed.errors import InvalidParameterError

Record = dict[str, str | int | float]
"""An event as JSON can hold it."""


COUNTS: Final = frozenset({"answers", "asks", "rows"})
"""Fields that count releases; all others say how they were made."""

EVENT_TYPES: Final[dict[str, type[PrivacyEvent]]] = {}
"""Every event that a record may hold, by its versioned name."""


@dataclass(frozen=True, slots=True)
class PrivacyEvent:
    """The public facts that bound the cost of a release, for all votes.

    Every event has a `weight`: votes that one neighboring change can move in one query, k for a
    hospital with k teachers, 1 for the records of one teacher.

    A class of events is known to `event_from_record` once it is defined.
    """

    record_name: ClassVar[str]

    def __init_subclass__(cls) -> None:
        """Let records of this class be read."""
        if "record_name" in vars(cls):  # one without is never written
            EVENT_TYPES[cls.record_name] = cls

    def __post_init__(self) -> None:
        """Check the fields, counts and numbers alike: none may leave its range."""
        for field in fields(self):
            check = whole if field.type == "int" else positive  # a type is its text here
            value = check(field.name, getattr(self, field.name))
            in_range(field.name, value)
            object.__setattr__(self, field.name, value)

    def is_covered_by(self, reserved: PrivacyEvent) -> bool:
        """Tell whether `reserved` is of the same kind, with at least as many releases of each."""
        return type(self) is type(reserved) and all(
            (le if field.name in COUNTS else eq)(
                getattr(self, field.name), getattr(reserved, field.name)
            )
            for field in fields(self)
        )

    def as_record(self) -> Record:
        """Return the event as plain values, for storage."""
        record: Record = {"event": self.record_name}
        record.update({field.name: getattr(self, field.name) for field in fields(self)})
        return record


@dataclass(frozen=True, slots=True)
class GaussianMaxEvent(PrivacyEvent):
    """Some asks, each answered with the argmax of counts plus Gaussian noise, or not at all.

    A label or "no answer" follows from the noisy counts and from public numbers: GNMax, or the same
    with a threshold. Each ask costs the same.
    """

    record_name: ClassVar[str] = "gaussian-max/1"

    asks: int
    sigma: float
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class CappedGaussianMaxEvent(PrivacyEvent):
    """Asks that records vote on, each answered from the counts plus Gaussian noise.

    A privacy unit votes on few of all asks, and the cost is that of these few.

    Attributes:
        asks: Asks that one unit votes on, at most; not all asks.
        weight: Votes that it casts on each of these.
    """

    record_name: ClassVar[str] = "capped-gaussian-max/1"

    asks: int
    sigma: float
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class ConfidentGaussianMaxEvent(PrivacyEvent):
    """Some threshold checks, and labels for those that passed (Confident-GNMax).

    Each ask releases one bit, "the noisy top count reaches the threshold"; each answer releases
    a label as well, from fresh noise. The threshold itself does not change the cost.
    """

    record_name: ClassVar[str] = "confident-gaussian-max/1"

    asks: int
    answers: int
    sigma1: float
    sigma2: float
    weight: float = 1.0

    def __post_init__(self) -> None:
        PrivacyEvent.__post_init__(self)
        if self.answers > self.asks:
            raise InvalidParameterError(f"answers must be at most {self.asks} asks", self.answers)


@dataclass(frozen=True, slots=True)
class LaplaceMaxEvent(PrivacyEvent):
    """Some labels, each the argmax of counts plus Laplace noise of scale 1 / gamma (LNMax)."""

    record_name: ClassVar[str] = "laplace-max/1"

    asks: int
    gamma: float
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class StableLaplaceMaxEvent(PrivacyEvent):
    """Some tests of stability with Laplace noise, each passed one with the exact plurality.

    Each test is (test_epsilon, test_delta)-differentially private, label included.

    A label costs nothing beyond its test, which counts in units of `weight` votes.
    """

    record_name: ClassVar[str] = "stable-laplace-max/1"

    asks: int
    test_epsilon: float
    test_delta: float
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class StableGaussianMaxEvent(PrivacyEvent):
    """Some tests of stability with Gaussian noise, each passed one with the exact plurality.

    Each test, label included, is a Gaussian release of sensitivity 1 but for an extra chance of
    `test_delta`.

    A label costs nothing beyond its test, which counts in units of `weight` votes, sigma, too.
    """

    record_name: ClassVar[str] = "stable-gaussian-max/1"

    asks: int
    sigma: float
    test_delta: float
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class ImmutableMaxEvent(PrivacyEvent):
    """Some labels that are the exact plurality, noise or not (NZC): no finite epsilon holds."""

    record_name: ClassVar[str] = "immutable-max/1"

    asks: int
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class DistributedGaussianMaxEvent(PrivacyEvent):
    """Some rows with the parties' noise, each opened noisy, for a label or "no answer".

    Every entry holds independent discrete Gaussian shares of variance sigma^2 / shares, at least as
    many as `shares` of them unknown to its reader.

    Attributes:
        shares: Honest shares that have to suffice: n - c - d, at least 1.
    """

    record_name: ClassVar[str] = "distributed-gaussian-max/1"

    asks: int
    sigma: float
    shares: int
    weight: int = 1

    def __post_init__(self) -> None:
        PrivacyEvent.__post_init__(self)
        share_sigma(self.sigma, self.shares)


@dataclass(frozen=True, slots=True)
class DistributedCountsEvent(PrivacyEvent):
    """Some rows of counts with the parties' noise, all of them public: a private evaluation.

    Unlike `DistributedGaussianMaxEvent` everybody reads the noisy rows, so the opener's price is
    the public's, too.

    Attributes:
        shares: Honest shares that have to suffice: n - c - d, at least 1.
        weight: Patients of one privacy unit who are counted; a whole number above 0.
    """

    record_name: ClassVar[str] = "distributed-counts/1"

    rows: int
    sigma: float
    shares: int
    weight: int = 1

    def __post_init__(self) -> None:
        PrivacyEvent.__post_init__(self)
        share_sigma(self.sigma, self.shares)


def event_from_record(record: Mapping[str, object]) -> PrivacyEvent:
    """Read an event that `PrivacyEvent.as_record` wrote, now or years ago; refuse all else."""
    name = record.get("event")
    event_type = EVENT_TYPES.get(name) if isinstance(name, str) else None
    if event_type is None:
        raise InvalidParameterError(f"event must be one of {sorted(EVENT_TYPES)}")
    values = {key: value for key, value in record.items() if key != "event"}
    names = {field.name for field in fields(event_type)}
    if values.keys() != names:
        raise InvalidParameterError(f"a {name} must hold {sorted(names)}", str(sorted(values)))
    for value in values.values():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidParameterError(f"the fields of a {name} must be numbers")
    return event_type(**values)
