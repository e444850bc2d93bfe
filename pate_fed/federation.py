"""The terms of a run: what is asked of a federation, and what it may cost.

Terms are fixed before anyone votes. They travel inside the secure sum's signed records, whose
library does not read them; each hospital's guard does. `as_record` and `from_record` turn them
into plain data and back, strictly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Self

from pate_fed.errors import InvalidParameterError, InvalidTermsError
from pate_fed.votes import MAX_TOTAL_VOTES

MechanismName = Literal["confident", "gnmax"]
NoisePlace = Literal["coordinator"]
PrivacyUnit = Literal["record", "party"]
Pricing = Literal["separate"]


MOST_VOID_BATCHES = 2
"""Void batches after which a run is over (rule R3): each burns queries and budget."""


@dataclass(frozen=True, slots=True)
class RunTerms:
    """What holds for a whole run.

    Attributes:
        pool_digest: Digest of the query pool that may be asked about, 32 bytes.
        classes: Number of classes, at least 2.
        quotas: Teachers of each party, in seat order; each casts one vote per query.
        mechanism: Rule from summed votes to labels.
        vote_threshold: Noisy top count from which a query is answered, in votes; None for GNMax.
        sigma1: Standard deviation of the noise of that check, in votes; None for GNMax.
        sigma2: Standard deviation of the noise of each count, in votes.
        noise_place: Who adds the noise.
        unit: What one neighboring change alters: one patient's records, or a whole party.
        unit_votes: Votes that such a change can move, at least 1.
        pricing: How refusals and answers are charged.
        max_answers: Answers after which the run ends.
        max_refusals: Refusals after which the run ends.
        epsilon: Budget, which the run keeps whatever happens; above 0.
        delta: Probability that the guarantee of `epsilon` may fail; in (0, 1).
    """

    pool_digest: bytes
    classes: int
    quotas: tuple[int, ...]
    mechanism: MechanismName
    vote_threshold: float | None
    sigma1: float | None
    sigma2: float
    noise_place: NoisePlace
    unit: PrivacyUnit
    unit_votes: int
    pricing: Pricing
    max_answers: int
    max_refusals: int
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        _require("pool_digest", len(self.pool_digest) == 32, "have 32 bytes")
        _require("classes", self.classes >= 2, "be at least 2")
        _require("quotas", bool(self.quotas) and min(self.quotas) >= 1, "be at least 1 each")
        _require("quotas", sum(self.quotas) <= MAX_TOTAL_VOTES, "fit the ring")
        _require("mechanism", self.mechanism in ("confident", "gnmax"), "be known")
        confident = self.mechanism == "confident"
        for name in ("vote_threshold", "sigma1"):
            given = getattr(self, name) is not None
            _require(name, given is confident, "be given for 'confident' and for no other")
        if self.vote_threshold is not None:
            _require("vote_threshold", math.isfinite(self.vote_threshold), "be finite")
        for name in ("sigma1", "sigma2", "epsilon"):
            value = getattr(self, name)
            _require(name, value is None or 0 < value < math.inf, "be above 0 and finite")
        _require("noise_place", self.noise_place == "coordinator", "be 'coordinator'")
        _require("unit", self.unit in ("record", "party"), "be 'record' or 'party'")
        _require("unit_votes", self.unit_votes >= 1, "be at least 1")
        _require("pricing", self.pricing == "separate", "be 'separate'")
        _require("caps", min(self.max_answers, self.max_refusals) >= 0, "be at least 0")
        _require("delta", 0 < self.delta < 1, "be in (0, 1)")

    @property
    def total_votes(self) -> int:
        """Votes that all parties together cast per query."""
        return sum(self.quotas)

    def as_record(self) -> dict[str, Any]:
        """Return plain data: text keys; numbers, text, bytes and lists."""
        return {**asdict(self), "quotas": list(self.quotas)}

    @classmethod
    def from_record(cls, record: object) -> Self:
        """Read plain data back.

        Raises:
            InvalidTermsError: not exactly these fields, of these types, within their ranges.
        """
        values = _fields_of(record, cls)
        values["quotas"] = tuple(_whole_numbers("quotas", values["quotas"]))
        for name in ("classes", "unit_votes", "max_answers", "max_refusals"):
            _require_type(name, values[name], int)
        for name in ("sigma2", "epsilon", "delta"):
            _require_type(name, values[name], float)
        for name in ("vote_threshold", "sigma1"):
            _require_type(name, values[name], float, type(None))
        for name in ("mechanism", "noise_place", "unit", "pricing"):
            _require_type(name, values[name], str)
        _require_type("pool_digest", values["pool_digest"], bytes)
        built: Self = _built(cls, values)
        return built


@dataclass(frozen=True, slots=True)
class BatchTerms:
    """What one batch asks.

    Attributes:
        run: Terms of the run, repeated so that one signature covers them all.
        indices: Positions in the query pool, none twice, in the order asked.
        predictions_digest: Digest of the student's predictions where the mechanism uses them;
            empty otherwise.
    """

    run: RunTerms
    indices: tuple[int, ...]
    predictions_digest: bytes = b""

    def __post_init__(self) -> None:
        _require("indices", bool(self.indices) and min(self.indices) >= 0, "be at least 0")
        _require("indices", len(set(self.indices)) == len(self.indices), "differ")
        _require("predictions_digest", self.predictions_digest == b"", "be empty")

    @property
    def words(self) -> int:
        """Length of the vector that answers this batch."""
        return len(self.indices) * self.run.classes

    def as_record(self) -> dict[str, Any]:
        """Return plain data; see `RunTerms.as_record`."""
        return {
            "run": self.run.as_record(),
            "indices": list(self.indices),
            "predictions_digest": self.predictions_digest,
        }

    @classmethod
    def from_record(cls, record: object) -> Self:
        """Read plain data back; raises as `RunTerms.from_record`."""
        values = _fields_of(record, cls)
        values["run"] = RunTerms.from_record(values["run"])
        values["indices"] = tuple(_whole_numbers("indices", values["indices"]))
        _require_type("predictions_digest", values["predictions_digest"], bytes)
        built: Self = _built(cls, values)
        return built


def _built(cls: Any, values: dict[str, Any]) -> Any:
    try:
        return cls(**values)
    except (InvalidParameterError, TypeError, ValueError) as error:
        raise InvalidTermsError("terms must agree with themselves", "terms that do not") from error


def _fields_of(record: object, cls: Any) -> dict[str, Any]:
    names = {field.name for field in fields(cls)}
    if not isinstance(record, Mapping) or set(record) != names:
        raise InvalidTermsError(f"{cls.__name__} must have exactly its fields", "others")
    return dict(record)


def _whole_numbers(name: str, values: object) -> list[int]:
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        raise InvalidTermsError(f"{name} must be whole numbers", "others")
    return values


def _require_type(name: str, value: object, *types: type) -> None:
    if type(value) not in types:
        raise InvalidTermsError(
            f"{name} must be {' or '.join(kind.__name__ for kind in types)}", type(value).__name__
        )


def _require(name: str, holds: bool, must: str) -> None:
    if not holds:
        raise InvalidParameterError(f"{name} must {must}", "otherwise")
