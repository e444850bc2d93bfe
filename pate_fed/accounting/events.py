"""What a release costs, said so that an accountant needs nothing else.

An event keeps its meaning for ever, so that old ledgers stay readable: its record carries a
name with a version, and a new meaning is a new event class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar, Final

from pate_fed.accounting.ranges import positive, whole
from pate_fed.errors import InvalidParameterError

Record = dict[str, str | int | float]
"""An event as JSON can hold it."""


@dataclass(frozen=True, slots=True)
class PrivacyEvent(ABC):
    """The public facts from which the cost of a release follows, whatever the votes were.

    Every event has a `weight`: votes that one neighboring change can move in one query, k for a
    hospital with k teachers, 1 for the records of one teacher.
    """

    record_name: ClassVar[str]

    @abstractmethod
    def is_covered_by(self, reserved: PrivacyEvent) -> bool:
        """Tell whether `reserved` pays for this event, component by component."""

    def as_record(self) -> Record:
        """Return the event as plain values, for storage."""
        record: Record = {"event": self.record_name}
        record.update({field.name: getattr(self, field.name) for field in fields(self)})
        return record


@dataclass(frozen=True, slots=True)
class GaussianMaxEvent(PrivacyEvent):
    """Some labels, each the argmax of counts plus Gaussian noise (GNMax).

    Attributes:
        answers: Labels released, at least 0.
        sigma: Standard deviation of the total noise in each count, in votes; above 0.
        weight: Votes that one neighboring change can move; above 0.
    """

    record_name: ClassVar[str] = "gaussian-max/1"

    answers: int
    sigma: float
    weight: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "answers", whole("answers", self.answers))
        object.__setattr__(self, "sigma", positive("sigma", self.sigma))
        object.__setattr__(self, "weight", positive("weight", self.weight))

    def is_covered_by(self, reserved: PrivacyEvent) -> bool:
        """Tell whether `reserved` is of the same kind, with at least as many answers."""
        return (
            isinstance(reserved, GaussianMaxEvent)
            and (self.sigma, self.weight) == (reserved.sigma, reserved.weight)
            and self.answers <= reserved.answers
        )


@dataclass(frozen=True, slots=True)
class ConfidentGaussianMaxEvent(PrivacyEvent):
    """Some threshold checks, and labels for those that passed (Confident-GNMax).

    Each ask releases one bit, "the noisy top count reaches the threshold"; each answer releases
    a label as well, from fresh noise. The threshold itself does not change the cost.

    Attributes:
        asks: Queries checked, at least 0.
        answers: Labels released, between 0 and `asks`.
        sigma1: Standard deviation of the noise in the check, in votes; above 0.
        sigma2: Standard deviation of the noise in each count, in votes; above 0.
        weight: Votes that one neighboring change can move; above 0.
    """

    record_name: ClassVar[str] = "confident-gaussian-max/1"

    asks: int
    answers: int
    sigma1: float
    sigma2: float
    weight: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "asks", whole("asks", self.asks))
        object.__setattr__(self, "answers", whole("answers", self.answers))
        if self.answers > self.asks:
            raise InvalidParameterError(f"answers must be at most {self.asks} asks", self.answers)
        object.__setattr__(self, "sigma1", positive("sigma1", self.sigma1))
        object.__setattr__(self, "sigma2", positive("sigma2", self.sigma2))
        object.__setattr__(self, "weight", positive("weight", self.weight))

    def is_covered_by(self, reserved: PrivacyEvent) -> bool:
        """Tell whether `reserved` is of the same kind, with at least as many asks and answers."""
        return (
            isinstance(reserved, ConfidentGaussianMaxEvent)
            and (self.sigma1, self.sigma2, self.weight)
            == (reserved.sigma1, reserved.sigma2, reserved.weight)
            and self.asks <= reserved.asks
            and self.answers <= reserved.answers
        )


EVENT_TYPES: Final[Mapping[str, type[PrivacyEvent]]] = {
    event_type.record_name: event_type
    for event_type in (GaussianMaxEvent, ConfidentGaussianMaxEvent)
}
"""Every event that a record may hold, by its versioned name."""


def event_from_record(record: Mapping[str, object]) -> PrivacyEvent:
    """Read an event that `PrivacyEvent.as_record` wrote, now or years ago.

    Raises:
        InvalidParameterError: the name is unknown, a field is missing, unknown or of another
            type, or a value is out of its range.
    """
    name = record.get("event")
    event_type = EVENT_TYPES.get(name) if isinstance(name, str) else None
    if event_type is None:
        raise InvalidParameterError(f"event must be one of {sorted(EVENT_TYPES)}", "another name")
    values = {key: value for key, value in record.items() if key != "event"}
    names = {field.name for field in fields(event_type)}
    if values.keys() != names:
        raise InvalidParameterError(f"a {name} must hold {sorted(names)}", sorted(values))
    for value in values.values():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidParameterError(f"the fields of a {name} must be numbers", "another type")
    return event_type(**values)
