"""`metrics.json`: how good the student is, what was asked, and what it took."""

from __future__ import annotations

from typing import Annotated, Self

from pate_fed.record.base import About, Count, File, Interval, Number, RecordTable, Share
from pate_fed.run_folder import METRICS


class UsedColumn(RecordTable):
    """A column of the user's table."""

    name: Annotated[str, About("its name", "no")]
    use: Annotated[
        str,
        About("`number`, `category`, `label`, `patient`, `hospital` or `left out`", "no"),
    ]
    why: Annotated[str, About("why it is used so", "no")]


class Parts(RecordTable):
    """Numbers of the three parts of a data set."""

    private: Annotated[Count, About("of hospitals", "no")]
    pool: Annotated[Count, About("in the public pool", "no")]
    test: Annotated[Count, About("to test", "no")]


class Data(RecordTable):
    """The data of a rehearsal; it holds no cell."""

    records: Annotated[Parts, About("records", "no")]
    patients: Annotated[Parts, About("patients", "no")]
    classes: Annotated[
        dict[str, Share],
        About("share of each in the public parts; of yes, for each of several labels", "no"),
    ]
    columns: Annotated[tuple[UsedColumn, ...], About("of a table", "no")]
    outlook: Annotated[str, About("of a table: what could be expected before the run", "no")]


class StatedSets(RecordTable):
    """Its rule for sets of classes: those of at least a chance, and the likeliest."""

    coverage: Annotated[Share, About("that is stated for released labels", "yes")]
    labels: Annotated[Count, About("held out to calibrate it", "yes")]
    labels_needed: Annotated[
        Count, About("below as many `labels` the sets hold all classes", "yes")
    ]
    interval: Annotated[Interval, About("coverage of 95 % of all draws of so many labels", "yes")]
    least_chance: Annotated[Share, About("of a class in a set", "yes")]


class StudentKind(RecordTable):
    """Which student."""

    kind: Annotated[str, About("its name", "yes")]
    reason: Annotated[str, About("why it was chosen; empty if it was asked for", "yes")]
    sets: Annotated[StatedSets | None, About("of a run with `--coverage`", "yes")] = None


class Quality(RecordTable):
    """How good a model is, deciding as the student does."""

    accuracy: Annotated[Share, About("how often it is right", "yes")]
    balanced_accuracy: Annotated[Share, About("mean recall over the classes", "yes")]
    auc: Annotated[
        Share | None,
        About(
            "area under the curve; with more than two classes the mean of each against all others; "
            "null where one class occurs",
            "yes",
        ),
    ]


class ClassScores(RecordTable):
    """The student on one class."""

    records: Annotated[Count, About("of this class", "yes")]
    recall: Annotated[Share | None, About("null without a record", "yes")]
    decided: Annotated[Count, About("how often it is said", "yes")]
    precision: Annotated[Share | None, About("null if it is never said", "yes")]
    covered: Annotated[Share | None, About("whose set holds it, with `--coverage`", "yes")] = None


class CertaintyScores(RecordTable):
    """The student on the test records of which it is about equally sure."""

    certainty: Annotated[Share, About("mean chance of the class that it says", "yes")]
    right: Annotated[Share, About("how often it is right", "yes")]
    records: Annotated[Count, About("how many they are", "yes")]


class AccuracyScores(RecordTable):
    """The student on some of the test records."""

    records: Annotated[Count, About("how many they are", "yes")]
    accuracy: Annotated[Share, About("how often it is right", "yes")]
    accuracy_interval: Annotated[Interval, About("95 %, Wilson", "yes")]
    majority: Annotated[Share, About("share of the most common class", "yes")]


class SubgroupScores(AccuracyScores):
    """The student on the test records of one group, class by class."""

    recall: Annotated[dict[str, Share | None], About("by class; null without a record", "yes")]
    auc: Annotated[Share | None, About("as of all; null where one class occurs", "yes")]
    calibration_error: Annotated[Share, About("as of all", "yes")]


class StudentScores(Quality, AccuracyScores):
    """The student on the test records."""

    calibration_error: Annotated[
        Share,
        About(
            "mean distance in ten equal bins between the chance of the decided class and how often "
            "it is right",
            "yes",
        ),
    ]
    decided_classes: Annotated[Count, About("number of classes that it ever says", "yes")]
    per_class: Annotated[dict[str, ClassScores], About("by name", "yes")]
    confusion: Annotated[
        dict[str, dict[str, Count]],
        About("test records by their class, then by the class that it says; zeros left out", "yes"),
    ]
    by_certainty: Annotated[
        tuple[CertaintyScores, ...], About("of ten equal bins, those with a record", "yes")
    ]
    roc: Annotated[
        tuple[Interval, ...] | None,
        About(
            "of two classes: share of the first class called the second, and of the second found, "
            "at falling limits; at most 101 points",
            "yes",
        ),
    ]
    subgroups: Annotated[
        dict[str, dict[str, SubgroupScores]],
        About("by `hospital`, and by each column of `--evaluate-by` (`by NAME`)", "no"),
    ]
    by_label: Annotated[
        dict[str, Quality] | None,
        About("each of several labels, of which `auc` and `balanced_accuracy` are means", "yes"),
    ] = None
    covered: Annotated[
        Share | None, About("whose set holds the true class, with `--coverage`", "yes")
    ] = None
    set_size: Annotated[
        Number | None, About("mean number of classes in a set, with `--coverage`", "yes")
    ] = None


class Scores(RecordTable):
    """Models on the public test records; null where nobody measured. Only the student has noise."""

    student: Annotated[StudentScores | None, About("the student", "pool")]
    average_hospital: Annotated[
        Quality | None,
        About("mean of one model per hospital, each trained on all its records", "no"),
    ]
    best_hospital: Annotated[
        Quality | None, About("the one of them that is best on the public pool", "no")
    ]
    pooled: Annotated[Quality | None, About("one model on all private records", "no")]
    private_baseline: Annotated[
        Quality | None,
        About("logistic regression by noisy gradients, at the run's unit, epsilon and delta", "no"),
    ]


class OutcomeCounts(RecordTable):
    """Public inputs with and without an answer."""

    answered: Annotated[Count, About("with a label", "yes", "queries")]
    refused: Annotated[Count, About("without", "yes", "queries")]


class GroupScores(RecordTable):
    """The student on a group of held-out patients."""

    share: Annotated[Share | None, About("of all patients", "yes")]
    right: Annotated[Share | None, About("on which the student is right", "yes")]
    interval: Annotated[Interval, About("95 %", "yes")]


Groups = dict[str, GroupScores]


class EvaluationScores(RecordTable):
    """The student on patients whom hospitals kept back: counts with noise."""

    patients: Annotated[Number, About("estimated", "yes", "patients")]
    accuracy: Annotated[Share | None, About("how often the student is right", "yes")]
    accuracy_interval: Annotated[Interval, About("95 %", "yes")]
    by_class: Annotated[Groups, About("by true class", "yes")]
    by_certainty: Annotated[
        Groups,
        About(
            "by the student's certainty; a group is named by its mean in a quarter of the public "
            "pool",
            "yes",
        ),
    ]
    groups: Annotated[
        dict[str, Groups], About("by each column of `--by` or `--evaluate-by`", "yes")
    ]
    no_answer: Annotated[
        dict[str, dict[str, OutcomeCounts]],
        About("public inputs, by the class that the student says and by these columns", "pool"),
    ]

    @property
    def tables(self) -> dict[str, Groups]:
        """All groups, by the name of their grouping."""
        return {"class": self.by_class, "certainty": self.by_certainty, **self.groups}


class Queries(RecordTable):
    """What was asked."""

    pool: Annotated[Count | None, About("size of the public pool", "pool")]
    asked: Annotated[Count, About("`answered` + `refused`", "yes", "queries")]
    answered: Annotated[Count, About("labels", "yes", "queries")]
    refused: Annotated[Count, About("“no answer”s", "yes", "queries")]
    not_asked: Annotated[Count, About("stopped by a cap or the end of the run", "yes", "queries")]
    void: Annotated[Count, About("lost in void batches", "yes", "queries")]
    reinforced: Annotated[
        Count, About("refused ones for which a student kept its own label", "yes", "queries")
    ]
    from_store: Annotated[Count, About("asked ones that an earlier run asked", "yes", "queries")]


class Exchanges(RecordTable):
    """Exchanges with all parties."""

    setup: Annotated[Count, About("before the first batch", "no")]
    per_batch: Annotated[Count, About("of one batch", "no")]
    closing: Annotated[Count, About("after the last", "no")]


class SentBytes(RecordTable):
    """All packets."""

    to_parties: Annotated[Count, About("sent", "no", "bytes")]
    from_parties: Annotated[Count, About("received", "no", "bytes")]


class Metrics(File):
    """Content of `metrics.json`."""

    FILE = METRICS

    simulated: Annotated[
        bool,
        About(
            "a deployment has no `scores`, `label_accuracy` and `per_class`: nobody knows them",
            "yes",
        ),
    ]
    data: Annotated[Data | None, About("of a rehearsal, otherwise null", "no")]
    label_accuracy: Annotated[Share | None, About("share of correct released labels", "pool")]
    student: Annotated[StudentKind | None, About("null without a student", "yes")]
    scores: Annotated[Scores, About("with intervals and by class", "yes")]
    evaluation: Annotated[
        EvaluationScores | None,
        About("null but with `simulate --evaluate private` and after `pate-fed evaluate`", "yes"),
    ]
    queries: Annotated[Queries, About("what was asked", "yes")]
    earlier_runs: Annotated[
        dict[str, Count], About("`queries.from_store` by the run that asked", "no", "queries")
    ]
    parties: Annotated[Count, About("hospitals", "yes")]
    teachers: Annotated[Count, About("of all hospitals", "yes")]
    batches: Annotated[Count, About("opened ones", "yes")]
    exchanges: Annotated[Exchanges | None, About("exchanges with all parties", "no")]
    per_class: Annotated[dict[str, OutcomeCounts], About("by the true class", "pool")]
    seconds: Annotated[
        dict[str, Number],
        About(
            "wall time of `data`, `queries`, `teachers`, `labeling`, `student`, `yardsticks`, "
            "`evaluation`; alone varies between runs with the same seed",
            "no",
            "seconds",
        ),
    ]
    bytes: Annotated[SentBytes | None, About("all packets", "no")]
    warnings: Annotated[tuple[str, ...], About("texts", "no")]

    @property
    def is_measured(self) -> bool:
        """Whether anybody knows how often labels or a model are right."""
        return self.label_accuracy is not None or any(dict(self.scores).values())

    def with_student(
        self, student: StudentKind | None, scores: StudentScores | None, **fields: object
    ) -> Self:
        """Return the metrics with another student, and with other values in these fields."""
        return self.changed(
            student=student,
            scores=self.scores.changed(student=scores),
            **fields,
        )
