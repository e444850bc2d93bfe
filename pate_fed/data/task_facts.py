"""What an operator writes of a task beside its public rows; all else follows from these."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pate_fed.errors import InvalidTaskError


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """A column of a task.

    Attributes:
        type: "number", "category", or "" for what the public rows hold.
        unit: Unit of its numbers, such as mg/dl; "" for that of the public rows.
        range: Smallest and largest number that can be; none for those of the public rows.
        categories: All that there are; none for those of the public rows.
    """

    type: Literal["", "number", "category"] = ""
    unit: str = ""
    range: tuple[float, ...] = ()
    categories: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.range) not in (0, 2) or (self.range and not self.range[0] < self.range[1]):
            raise InvalidTaskError("a range must be two numbers, the smaller first")
        if self.type == "number" and self.categories:
            raise InvalidTaskError("a column of numbers must have no categories")
        if (self.type == "category" or self.categories) and (self.unit or self.range):
            raise InvalidTaskError("a column of categories must have no unit and no range")


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """A task's file, beside the public rows.

    Attributes:
        data_set: Data set of each hospital that the task asks for; "" for the one without a name.
        classes: Further spellings of a class, by the class.
        columns: Facts of columns, by name.
    """

    data_set: str = ""
    classes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    columns: dict[str, ColumnFacts] = field(default_factory=dict)
