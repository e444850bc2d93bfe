"""The terms of a run: the question to a federation, and its cost limits.

Terms are fixed before anyone votes. They travel inside the secure sum's signed records, whose
library does not read them; each hospital's guard does. `as_record` and `from_record` turn them
into plain data and back, strictly.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from types import NoneType, UnionType
from typing import Any, Final, Literal, Self, get_args, get_origin, get_type_hints

from pate_fed.accounting.costs import NoisePlace, PrivacyUnit
from pate_fed.accounting.ranges import RANGES, require_ranges
from pate_fed.errors import InvalidParameterError, InvalidTermsError
from pate_fed.mechanisms import SPECS, TALLIES, Spec, spec_of
from pate_fed.rule import PARAMETERS, Caps, Rule
from pate_fed.votes import MAX_TOTAL_VOTES, TeacherWeights

NO_TASK: Final = bytes(32)
"""The digest where there is no task document. No document has this digest."""

RUN_NAME: Final = "1 to 64 letters, digits, '.', '_' or '-'"
"""The rule for a run's name, in words."""

MOST_PURPOSE: Final = 300
"""Most letters of a run's purpose: its approvers read it, and a report's first page has it."""

MOST_ASKED: Final = 2**12
"""Most queries of a batch, and so of an inquiry: a node compares each with all that it answered."""

_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories: controls, formats, surrogates, separators of lines and paragraphs."""

RECORD_MECHANISMS: Final = ("gnmax", "threshold")
"""Mechanisms for records that vote: labels from counts with Gaussian noise, drawn once."""

MOST_VOID_BATCHES = 2
"""Void batches after which a run is over (rule R3): each burns queries and budget."""


def is_run_name(name: str) -> bool:
    """Return whether a run may have this name."""
    return _RUN_NAME.fullmatch(name) is not None


def is_purpose(text: str) -> bool:
    """Return whether a run may have this purpose: one short line that only shows what it says.

    It has no control character, and no sign that turns the writing's direction or hides letters.
    """
    return len(text) <= MOST_PURPOSE and not any(
        unicodedata.category(letter) in _UNSEEN for letter in text
    )


@dataclass(frozen=True, slots=True)
class RunTerms:
    """The terms of a whole run.

    Attributes:
        name: The operator's name for the run; one run of a coordinator has it. Its caps and budgets
            hold over all its setups.
        pool_digest: Digest of the query pool that may be asked about, 32 bytes.
        task_digest: Digest of the task document, 32 bytes: the target, its columns, and the class
            of each number. `NO_TASK` in a simulation, which has none.
        classes: Number of classes, at least 2. Like all numbers of terms, within `RANGES`.
        weights: Votes that each party's teachers cast per query, in seat order; together a
            party's quota.
        rule: The way from summed votes to labels; complete.
        unit: The privacy unit: one patient's records, or a whole party.
        caps: The most that it asks and answers, and queries of a batch; complete.
        budgets: Epsilon that the run may cost each party's units, in seat order; above 0.
        delta: Probability that the guarantee of `budgets` may fail; in (0, 1).
        purpose: The operator's reason for the run, for its approvers and its report: one line of
            at most `MOST_PURPOSE` letters; "" where nobody stated one.
    """

    name: str
    pool_digest: bytes
    task_digest: bytes
    classes: int
    weights: tuple[TeacherWeights, ...]
    rule: Rule
    unit: PrivacyUnit
    caps: Caps
    budgets: tuple[float, ...]
    delta: float
    purpose: str = ""

    def __post_init__(self) -> None:
        _require("name", is_run_name(self.name), f"be {RUN_NAME}")
        for name in ("pool_digest", "task_digest"):
            _require(name, len(getattr(self, name)) == 32, "have 32 bytes")
        parties = RANGES["parties"]
        some = parties.least <= len(self.weights) <= parties.most
        _require("weights", some, f"be one for each party, at most {parties.most}")
        require_ranges(self)
        _require("weights", self.total_votes <= MAX_TOTAL_VOTES, "fit the ring")
        self._check_rule()
        _require("unit", self.unit in ("record", "party"), "be 'record' or 'party'")
        given = [getattr(self.caps, one) is not None for one in sorted(_NEEDED_CAPS)]
        _require("caps", all(given), "be complete")
        _require("caps", self.caps.is_whole, "be of whole inputs where these have several labels")
        yes_or_no = self.caps.labels is None or self.classes == 2
        _require("classes", yes_or_no, "be 2 where inputs have several labels")
        most = self.caps.most
        if self.do_records_vote:
            self._check_records()
        _require("caps", self.spec.may_refuse or most.answers == most.asks, "be equal")
        _require("budgets", len(self.budgets) == len(self.weights), "be one for each party")
        _require("purpose", is_purpose(self.purpose), f"be one line of {MOST_PURPOSE} letters")

    def _check_records(self) -> None:
        """Refuse votes of records where the price of their cap is not proved."""
        _require("labels", self.caps.labels is None, "be one where records vote")
        votes = self.caps.patient_votes or 0
        _require("patient_votes", votes <= self.caps.most.asks, "be at most the queries asked")
        _require("unit", self.unit == "record", "be 'record' where records vote")
        known = self.rule.mechanism in RECORD_MECHANISMS
        _require("mechanism", known, f"be {' or '.join(RECORD_MECHANISMS)} where records vote")
        # The column of those who do not vote would be opened, too, and no proof covers it.
        _require("noise_place", not self.rule.opens_noisy, "be 'coordinator' where records vote")

    def _check_rule(self) -> None:
        rule, places = self.rule, get_args(NoisePlace)
        _require("mechanism", rule.mechanism in {*SPECS, TALLIES}, "be known")
        for name in PARAMETERS:
            given = getattr(rule, name) is not None
            needed = name in self.spec.parameters
            _require(name, given is needed, "be given exactly where the mechanism has it")
        _require("noise_place", rule.noise_place in places, f"be one of {', '.join(places)}")
        # From exact sums over two students the coordinator could read single patients.
        hidden = rule.at_parties or not self.is_evaluation
        _require("noise_place", hidden, "be 'parties' where counts are published")
        for name in ("colluders", "dropouts"):
            given = getattr(rule, name) is not None
            _require(name, given is rule.at_parties, "be given with noise at parties")
        if rule.opens_noisy:
            possible = self.spec.at_parties
            _require("mechanism", possible, "be one with Gaussian noise if the parties add it")
        if rule.at_parties:
            shares = rule.shares(len(self.weights))
            _require("shares", shares is not None and shares >= 1, "leave an honest party present")

    @property
    def spec(self) -> Spec:
        """The mechanism's `Spec`."""
        return spec_of(self.rule.mechanism)

    @property
    def do_records_vote(self) -> bool:
        """Whether patients vote themselves, each on few queries, and not teachers on all."""
        return self.caps.patient_votes is not None

    @property
    def columns(self) -> int:
        """Counts of a row: one for each class, and where records vote one for no vote."""
        return self.classes + self.do_records_vote

    @property
    def is_evaluation(self) -> bool:
        """Whether it asks for counts of held-out patients, not for labels.

        Then a row is a grouping, a column a group of patients on whom the student is right or
        wrong, and a "teacher" of a party is a place for one held-out patient.
        """
        return self.rule.mechanism == TALLIES

    @property
    def quotas(self) -> tuple[int, ...]:
        """Votes that each party casts per query, in seat order."""
        return tuple(party.votes for party in self.weights)

    @property
    def total_votes(self) -> int:
        """Votes that all parties together cast per query."""
        return sum(self.quotas)

    @property
    def unit_votes(self) -> int:
        """Most votes that one privacy unit of any party can move in a query."""
        return max(self.unit_votes_at(seat) for seat in range(len(self.weights)))

    def unit_votes_at(self, seat: int) -> int:
        """Most votes that one privacy unit of this party can move in a query."""
        teachers = self.weights[seat]
        return teachers.votes if self.unit == "party" else teachers.heaviest

    def seated(self, places: Sequence[int]) -> RunTerms:
        """Return the same terms with the parties of these places, in this order."""
        return replace(
            self,
            weights=tuple(self.weights[place] for place in places),
            budgets=tuple(self.budgets[place] for place in places),
        )

    @property
    def epsilon(self) -> float:
        """The largest budget of any party."""
        return max(self.budgets)

    def as_record(self) -> dict[str, Any]:
        """Return plain data: text keys; numbers, text, bytes and lists.

        Weights are written as runs of (weight, teachers), one after another.
        """
        caps = {name: value for name, value in asdict(self.caps).items() if value is not None}
        return {
            **asdict(self),
            "caps": caps,
            "weights": [[list(run) for run in party.runs] for party in self.weights],
            "budgets": list(self.budgets),
        }

    @classmethod
    def from_record(cls, record: object) -> Self:
        """Read plain data back, strictly: anything else is an InvalidTermsError."""
        values = _fields_of(record, cls)
        values["rule"] = Rule(**_fields_of(values["rule"], Rule))
        values["caps"] = Caps(**_caps_of(values["caps"]))
        _require_type("weights", values["weights"], list)
        values["weights"] = tuple(_weights_of(party) for party in values["weights"])
        _require_type("budgets", values["budgets"], list)
        for number in values["budgets"]:
            _require_type("budgets", number, float)
        values["budgets"] = tuple(values["budgets"])
        built: Self = _built(cls, values)
        return built


@dataclass(frozen=True, slots=True)
class BatchTerms:
    """The terms of one batch.

    Attributes:
        run: Terms of the run, repeated so that one signature covers them all.
        indices: Positions in the query pool, none twice, in the order asked; at most a
            batch's size and `MOST_ASKED`.
        predictions_digest: SHA-256 of the student's predictions that the mechanism takes, 32
            bytes; empty for one that takes none, and while there is no student.
    """

    run: RunTerms
    indices: tuple[int, ...]
    predictions_digest: bytes = b""

    def __post_init__(self) -> None:
        most = min(self.run.caps.batch_size or 0, MOST_ASKED)
        _require("indices", len(self.indices) <= most, f"be at most {most}")
        _require("indices", bool(self.indices), "be one or more")
        require_ranges(self)
        _require("indices", len(set(self.indices)) == len(self.indices), "differ")
        _require("indices", self._are_whole, "be of whole inputs")
        predicted = self.run.spec.learns and len(self.predictions_digest) == 32
        _require("predictions_digest", predicted or not self.predictions_digest, "be a digest")

    @property
    def _are_whole(self) -> bool:
        """Whether all labels of an input are asked together, one after another."""
        labels = self.run.caps.labels or 1
        firsts = self.indices[::labels]
        wanted = (first + place for first in firsts for place in range(labels))
        return not any(first % labels for first in firsts) and self.indices == tuple(wanted)

    @property
    def words(self) -> int:
        """Length of the vector that answers this batch."""
        return len(self.indices) * self.run.columns

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
        built: Self = _built(cls, values)
        return built


_NEEDED_CAPS: Final = frozenset({"max_asks", "max_answers", "batch_size"})
"""Caps of every run; the others are of inputs with several labels."""

_PLAIN: Final = {str, bytes, int, float, NoneType}
"""Types of fields that a record holds as they are."""


def _built(cls: Any, values: dict[str, Any]) -> Any:
    try:
        return cls(**values)
    except InvalidParameterError as error:  # terms are public
        raise InvalidTermsError(error.must, error.got) from error
    except (TypeError, ValueError) as error:
        raise InvalidTermsError("terms must agree with themselves") from error


def _fields_of(record: object, cls: Any) -> dict[str, Any]:
    names = {field.name for field in fields(cls)}
    if not isinstance(record, Mapping) or set(record) != names:
        raise InvalidTermsError(f"{cls.__name__} must have exactly its fields")
    for name, hint in get_type_hints(cls).items():
        options = get_args(hint) if isinstance(hint, UnionType) else (hint,)
        kinds = {str if get_origin(one) is Literal else one for one in options}
        if kinds <= _PLAIN:
            _require_type(name, record[name], *kinds)
    return dict(record)


def _caps_of(record: object) -> dict[str, Any]:
    """Read caps; those of labels are left out where an input has one."""
    known = {one.name for one in fields(Caps)}
    if not isinstance(record, Mapping) or not _NEEDED_CAPS <= set(record) <= known:
        raise InvalidTermsError("Caps must have exactly its fields")
    for name in record:
        _require_type(name, record[name], int)
    return dict(record)


def _weights_of(party: object) -> TeacherWeights:
    _require_type("weights", party, list)
    runs = [tuple(_whole_numbers("weights", run)) for run in party]  # type: ignore[attr-defined]
    if any(len(run) != 2 for run in runs):
        raise InvalidTermsError("weights must be runs of a weight and its teachers")
    try:
        return TeacherWeights(tuple((weight, teachers) for weight, teachers in runs))
    except InvalidParameterError as error:
        raise InvalidTermsError(error.must, error.got) from error


def _whole_numbers(name: str, values: object) -> list[int]:
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        raise InvalidTermsError(f"{name} must be whole numbers")
    return values


def _require_type(name: str, value: object, *types: type) -> None:
    if type(value) not in types:
        raise InvalidTermsError(
            f"{name} must be {' or '.join(kind.__name__ for kind in types)}", type(value).__name__
        )


def _require(name: str, holds: bool, must: str) -> None:
    if not holds:
        raise InvalidParameterError(f"{name} must {must}")
