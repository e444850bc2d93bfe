"""The shape that the JSON files of a run must have, checked at the door.

Further keys may come; a key without a default here may not be missing. A message names the place
and the kind of value, not the value. Loaded only to read a run: pydantic is slow to load.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pate_fed.errors import RunDirectoryError

SCHEMA_VERSION = 1

Count = Annotated[int, Field(ge=0, le=2**53)]
Number = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class Shape(BaseModel):
    """A table in a file, and all that it must have."""

    model_config = ConfigDict(
        allow_inf_nan=False, frozen=True, hide_input_in_errors=True, strict=True
    )


class _Versioned(Shape):
    schema_version: Annotated[int, Field(ge=SCHEMA_VERSION, le=SCHEMA_VERSION)]  # true is none


class Manifest(_Versioned):
    """`manifest.json`: its other tables are free."""

    begun_on: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]


class _Column(Shape):
    name: str
    use: str
    why: str


class _Data(Shape):
    records: dict[str, Count]
    patients: dict[str, Count]
    classes: dict[str, Share]
    columns: list[_Column]
    outlook: str


class _Accuracy(Shape):
    student: Share | None
    labels: Share | None
    teacher_mean: Share | None
    best_single_party: Share | None
    pooled: Share | None


class _Student(Shape):
    kind: str
    reason: str


class _Quality(Shape):
    accuracy: Share | None
    balanced_accuracy: Share | None
    auc: Share | None


class _ClassScores(Shape):
    records: Count
    recall: Share | None
    decided: Count
    precision: Share | None


class _HospitalScores(Shape):
    records: Count
    accuracy: Share
    accuracy_interval: Annotated[list[Share], Field(min_length=2, max_length=2)]
    majority: Share


class _StudentScores(_Quality):
    records: Count
    accuracy: Share
    accuracy_interval: Annotated[list[Share], Field(min_length=2, max_length=2)]
    majority: Share
    balanced_accuracy: Share
    calibration_error: Share
    decided_classes: Count
    per_class: dict[str, _ClassScores]
    by_hospital: dict[str, _HospitalScores]


class _Scores(Shape):
    student: _StudentScores | None
    teacher_mean: _Quality | None
    best_single_party: _Quality | None
    pooled: _Quality | None


class _Queries(Shape):
    pool: Count | None
    asked: Count
    answered: Count
    refused: Count
    not_asked: Count
    void: Count
    reinforced: Count | None


class _Class(Shape):
    answered: Count
    refused: Count


class _GroupScore(Shape):
    share: Share | None
    right: Share | None
    interval: Annotated[list[Share], Field(min_length=2, max_length=2)]


class _Evaluation(Shape):
    patients: Number
    accuracy: Share | None
    accuracy_interval: Annotated[list[Share], Field(min_length=2, max_length=2)]
    by_class: dict[str, _GroupScore] = Field(alias="class")
    certainty: dict[str, _GroupScore]
    groups: dict[str, dict[str, _GroupScore]]
    no_answer: dict[str, dict[str, _Class]]


class Metrics(_Versioned):
    """`metrics.json`."""

    simulated: bool
    data: _Data | None
    accuracy: _Accuracy
    student: _Student | None
    scores: _Scores
    evaluation: _Evaluation | None
    queries: _Queries
    parties: Count
    teachers: Count
    exchanges: dict[str, Any]
    per_class: dict[str, _Class]
    seconds: dict[str, Any]
    bytes: dict[str, Any]
    warnings: list[str]


class _Mechanism(Shape):
    name: str
    vote_threshold: Number | None
    sigma1: Number | None
    sigma2: Number | None
    max_asks: Count
    max_answers: Count
    # Of some mechanisms only, and of noise at the parties.
    shares: Count = 0
    confidence: Share | None = None
    test_delta: Share | None = None
    unit_votes: Count | None = None
    gamma: Number | None = None
    constant: Number | None = None


class _Noise(Shape):
    place: str
    source: str
    delta_slack: Number | None


class _Budget(Shape):
    epsilon: Number
    delta: Number
    order_of_rounds: Number | None
    kept_for_tests: Number = 0


class _Bound(Shape):
    epsilon: Number | None
    method: str


class _PublicFormal(_Bound):
    holds_for: str
    not_covered: str = ""


class _CoordinatorFormal(_Bound):
    holds_for: str = ""


class _Removal(_Bound):
    privacy_unit: Literal["record", "party"]
    neighboring_definition: str


class _Public(Shape):
    formal: _PublicFormal
    removal: _Removal | None


class _Coordinator(Shape):
    formal: _CoordinatorFormal


class _Views(Shape):
    public: _Public
    coordinator: _Coordinator


class _Party(Shape):
    party: Count | str
    teachers: Count
    votes: Count
    unit_votes: Count
    budget: Number
    epsilon: Number | None
    method: str


class _Whole(_Bound):
    delta: Number


class _Run(_Whole):
    run: str


class _PerInstance(_Bound):
    releasable: bool
    order: Number | None


class _Output(Shape):
    output: str
    seen_by: str
    bounded_by: str


class _Booked(Shape):
    batch: Count | str
    state: str
    asked: Count
    answered: Count
    charged: Count


class _EvaluationPrice(Shape):
    epsilon: Number
    delta: Number
    sigma: Number
    unit_patients: Count
    view: str
    neighboring_definition: str
    method: str
    trust: str
    with_labels: _Whole


class Privacy(_Versioned):
    """`privacy.json`."""

    simulated: bool
    delta: Number
    dp_flavor: str
    privacy_unit: Literal["record", "party"]
    unit_votes: Count
    neighboring_definition: str
    mechanism: _Mechanism
    noise: _Noise
    budget: _Budget
    views: _Views
    runs: list[_Run]
    parties: list[_Party]
    per_instance: _PerInstance | None
    charged: Share | None
    ledger: list[_Booked]
    evaluation: _EvaluationPrice | None
    sum: str
    guarantee: str
    trust_model: str
    threat_model: str
    outputs: list[_Output]
    post_processing: str
    unprotected: list[str]


class _Way(Shape):
    way: str
    asks: Count
    mean_error: Share
    epsilon: Number | None = None


class _Step(Shape):
    asks: Annotated[int, Field(ge=1)]
    errors: Annotated[list[Share], Field(min_length=1)]


class Audit(_Versioned):
    """`audit.json`."""

    rows: Count
    teachers: Count
    classes: Count
    error: Share
    ways: list[_Way]
    curve: Annotated[list[_Step], Field(min_length=1)]
    asks_for_error: list[Count | None]
    median: Count | None
    repeated_contents: Count | None


def check(file: str, text: str, shape: type[Shape]) -> None:
    """Hold the content of a file to its shape.

    Raises:
        RunDirectoryError: another schema version, or a value is missing or of another kind.
    """
    try:
        shape.model_validate_json(text)
    except ValidationError as error:
        faults = error.errors(include_url=False)
    else:
        return
    # Another version explains all other faults.
    first = min(faults, key=lambda one: one["loc"] != ("schema_version",))
    path, came = ".".join(map(str, first["loc"])), first["input"]
    if first["type"] == "missing":
        raise RunDirectoryError(f"{file}: {path} must be there", "nothing")
    if path == "schema_version" and type(came) is int:
        raise RunDirectoryError(f"{file}: {path} must be {SCHEMA_VERSION}", came)
    rule = first["msg"].removeprefix("Input should be ")
    raise RunDirectoryError(f"{file}: {path} must be {rule}", f"another {type(came).__name__}")
