"""The settings of a run, one row each: from it come options, `run.toml`, series and their checks.

Loaded by `pate-fed --help`: it knows names and words, no type of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, Self

DATA: Final = "Data"
RUN: Final = "Run"
FEDERATION: Final = "Federation"
MECHANISM: Final = "Questions and mechanism"
BUDGET: Final = "Privacy budget"

_NUMBERS: Final = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Option:
    """A setting.

    Attributes:
        name: In `run.toml`, and of its option.
        help: Of its option.
        kind: Of its value; a tuple is typed with commas, a list by repeating the option.
        usual: Value where none is given; None if it follows from others.
        metavar: Placeholder in the help; that of the kind if None.
        choices: Its possible values, or their registry; empty for any.
        field: Its field in `RunSettings` or a part, if that is not the name.
        spelled: Its option, if that is not the name.
        series: In a later run of a series it is the "same", "kept" unless another is given,
            or the run's "own"; "free" says nothing about earlier runs. "" as in its panel.
        part: The part of `RunSettings` that holds it: "data", "rule", "caps"; "" for none. None as
            in its panel.
        panel: Where the help shows it; "" among options without one.
    """

    name: str
    help: str
    kind: Any = str
    usual: object = None
    metavar: str | None = None
    choices: tuple[str, ...] | Callable[[], Iterable[str]] = ()
    field: str = ""
    spelled: str = ""
    series: Literal["", "same", "kept", "own", "free"] = ""
    part: str | None = None
    panel: str = ""

    @property
    def place(self) -> tuple[str, str]:
        """The part of `RunSettings` that holds it ("" for none), and its field there."""
        return self.part or "", self.field or self.name

    @property
    def flag(self) -> str:
        """Its option."""
        return self.spelled or "--" + self.name.replace("_", "-")

    def but(self, **changed: Any) -> Self:
        """Return it as a command has it."""
        return replace(self, **changed)

    def of(self, settings: Any) -> Any:
        """Return its value in `RunSettings`."""
        part, field = self.place
        return getattr(getattr(settings, part) if part else settings, field)

    def in_kind(self, value: Any) -> Any:
        """Return a value that is written in Python, such as 3 for an epsilon, in its own kind."""
        if self.kind is float and type(value) is int:
            return float(value)
        if self.kind is Path and isinstance(value, str):
            return Path(value)
        if self.kind == _NUMBERS and value is not None:
            return tuple(float(one) for one in value)
        return value


def _panel(
    panel: str, *options: Option, part: str = "", series: Literal["same", "own"] = "same"
) -> tuple[Option, ...]:
    """Return the settings of a panel, with what most of them share."""
    return tuple(
        one.but(
            panel=panel,
            part=one.part if one.part is not None else part,
            series=one.series or series,
        )
        for one in options
    )


_ROWS: Final = (
    *_panel(
        DATA,
        Option(
            "data",
            "digits and breast-cancer are bundled; csv and images are yours; the others are "
            "published sets in --data-dir.",
            usual="digits",
            field="name",
        ),
        Option(
            "data_dir",
            "Folder of a published set; or of images, with a folder for each class.",
            Path,
            metavar="DIR",
            series="free",
        ),
        Option(
            "data_file",
            "csv: a CSV file with a header, a Parquet file, or a folder with such files of one "
            "table; images: a .npz archive, or a CSV file with a column path.",
            Path,
            metavar="FILE",
            series="free",
        ),
        Option(
            "label",
            "CSV: column to predict; repeatable, for several labels of yes and no.",
            metavar="COLUMN",
            field="label_column",
        ),
        Option(
            "patient_id", "CSV: column of patient ids.", metavar="COLUMN", field="patient_column"
        ),
        Option(
            "hospital",
            "CSV: column of hospitals; each value becomes a hospital.",
            metavar="COLUMN",
            field="hospital_column",
        ),
        Option(
            "ignore",
            "Table: column to leave out; repeatable.",
            list[str],
            metavar="COLUMN",
            field="ignored_columns",
        ),
        Option(
            "positive",
            "Table: label to tell from all others; capitals do not matter.",
            metavar="VALUE",
        ),
        Option("separator", "CSV: character between cells.", usual=",", metavar="CHARACTER"),
        Option("decimal", "CSV: decimal sign of numbers.", usual=".", choices=(".", ",")),
        Option(
            "missing",
            "Table: cell that stands for “not known”, beside the usual ones, in one column or in "
            "all; repeatable.",
            list[str],
            metavar="[COLUMN=]VALUE",
        ),
        Option(
            "map",
            "Table: another name for a column or a class, or (COLUMN:OLD=NEW) a category; "
            "repeatable.",
            list[str],
            metavar="OLD=NEW",
            field="renamed",
        ),
        Option("drop_unlabeled", "Table: leave out rows without a label.", bool, usual=False),
        part="data",
    ),
    *_panel(
        RUN,
        Option(
            "prevalence",
            "Table: share of each class among patients, in order of the classes. "
            "[default: simulate: that of the public pool; run: the share of the labels]",
            _NUMBERS,
            metavar="NUMBERS",
            series="kept",
        ),
        Option(
            "student",
            "Kind of student. From images of 8 x 8 pixels or more alone learn: self-training, "
            "vat, fixmatch, gan, co-teaching, pate-plus and pate-plus-plus.",
            usual="auto",
            series="kept",
        ),
        Option(
            "coverage",
            "Give sets of classes, too, that hold a row's released label with this probability; a "
            "fifth of the queries, drawn at random, calibrates them and teaches nothing.",
            float,
            metavar="SHARE",
            series="same",
        ),
        Option(
            "evaluate",
            "Score the student on public test records only, or (private) also on a fifth of each "
            "hospital's patients, who are kept back.",
            usual="public",
            choices=("public", "private"),
        ),
        Option(
            "evaluation_epsilon",
            "Epsilon of --evaluate private for a patient who is kept back. [default: 1]",
            float,
            series="free",
        ),
        Option(
            "evaluate_by",
            "Score the groups of a column, too; repeatable.",
            list[str],
            metavar="COLUMN",
            series="free",
        ),
        Option(
            "engine",
            "Run in this process (local), or on Flower's Ray engine (ray; extra `ray`).",
            usual="local",
            choices=("local", "ray"),
            series="free",
        ),
        Option(
            "seed",
            "Repeat labels, metrics and costs; keys are always new. The noise of a seed protects "
            "nobody.",
            int,
        ),
        Option(
            "purpose",
            "Reason for the run, one line; approvers and the report's first page show it.",
            usual="",
            metavar="TEXT",
            series="kept",
        ),
    ),
    *_panel(
        FEDERATION,
        Option("patients", "Number of patients to use of each hospital. [default: all]", int),
        Option("parties", "Hospitals, at least 3.", int),
        Option("teachers", "Teachers per hospital, whatever its size.", int),
        Option(
            "records_per_teacher",
            "Patients of a teacher (or records): a hospital with more of them has more teachers, "
            "each with one vote. [default: 8 for tables; one teacher where a hospital is the unit]",
            int,
        ),
        Option(
            "partition",
            "Share out records evenly (iid), with skewed labels (dirichlet) or by "
            "--hospital (column).",
            choices=("iid", "dirichlet", "column"),
        ),
        Option(
            "teacher",
            "Kind of teacher: auto, nearest, svm, forest, boosting, logistic, direction, network "
            "or convolution; neighbors: no teachers, each patient votes on the queries close to "
            "its records; or MODULE:FUNCTION for your own.",
            usual="auto",
            metavar="NAME",
        ),
        Option(
            "device",
            "PyTorch's device for convolutional teachers and students, such as cuda.",
            usual="cpu",
            metavar="NAME",
        ),
        Option(
            "class_balance",
            "Teachers vote as they predict (natural) or for each class equally often (equal). "
            "auto: equal on tables; but a teacher with many records votes for each class as often "
            "as it saw it.",
            usual="auto",
            choices=("auto", "natural", "equal"),
        ),
        Option(
            "form",
            "How votes are summed: additive needs every hospital, masked survives lost ones; in "
            "verified two organizations check all votes, and neither sees a sum without noise; "
            "plain hides nothing, for comparison only.",
            usual="additive",
            spelled="--sum",
        ),
        Option(
            "suite",
            "Encryption between hospitals. [default: the first, which resists a quantum "
            "computer, too]",
        ),
    ),
    *_panel(
        MECHANISM,
        Option(
            "queries",
            "Number of public inputs to ask. [default: as many as the budget affords, at most "
            "100; 500 for tables]",
            int,
            field="max_asks",
            part="caps",
        ),
        Option(
            "select",
            "Which inputs to ask. medoids: the middle of each cluster; cluster-votes: that, but "
            "each teacher votes for its majority there; spectral: as medoids, in the graph of "
            "similar inputs; stratified: one of each part of the pool; random; least-confident: "
            "those that the student is least sure of. [default: by data set]",
            choices=(
                *("medoids", "cluster-votes", "spectral", "stratified", "random"),
                "least-confident",
            ),
            part="",
        ),
        Option(
            "mechanism",
            "From votes to labels: no answer if teachers disagree (threshold), always answer "
            "(gnmax, lnmax), answer where they contradict a student (interactive-threshold), test "
            "for a stable winner (stable-*). ",
        ),
        Option("vote_threshold", "Smallest noisy top count that gets an answer, in votes.", float),
        Option(
            "sigma1",
            "stable-*: noise of the test, in changes of one unit; confident, interactive "
            "(simulations only): of their check, in votes.",
            float,
        ),
        Option("sigma2", "Standard deviation of each count's noise, in votes.", float),
        Option(
            "confidence",
            "interactive-*: from this probability on, the student keeps its own label. "
            "[default: 0.8]",
            float,
        ),
        Option(
            "test_delta",
            "stable-*: probability that one test answers although no winner is stable.",
            float,
        ),
        Option(
            "noise",
            "Who adds the noise; with parties the coordinator sees noisy counts only. "
            "[default: coordinator; aggregators with --sum verified, each the full amount]",
            choices=("coordinator", "parties", "aggregators"),
            field="noise_place",
            series="same",
        ),
        Option(
            "colluders",
            "With --noise parties: hospitals whose noise an attacker may know. [default: 1]",
            int,
            series="same",
        ),
        part="rule",
        series="own",
    ),
    *_panel(
        BUDGET,
        Option(
            "unit",
            "Protected unit: a patient's records, or a whole hospital's.",
            choices=("record", "party"),
        ),
        Option("epsilon", "Privacy budget of the run.", float, 5.0, series="kept"),
        Option(
            "party_epsilons",
            "Budget of each hospital, in order: party-1, party-2, ...; or sorted by name.",
            _NUMBERS,
            metavar="E,E,...",
            series="kept",
        ),
        Option(
            "weights",
            "Votes of each teacher, one number per hospital. [default: 1]",
            tuple[int, ...],
            metavar="W,W,...",
        ),
        Option("delta", "Probability that epsilon may fail.", float, 1e-5),
        Option(
            "max_answers",
            "End after this many answers; fixed before the run. [default: all]",
            int,
            part="caps",
            series="own",
        ),
        Option("batch_size", "Queries per batch. [default: all]", int, part="caps", series="own"),
        Option(
            "patient_votes",
            "--teacher neighbors: queries that one patient votes on in the run, at most. The price "
            "follows from it. [default: 8 % of the queries]",
            int,
            spelled="--votes-per-patient",
            part="caps",
            series="own",
        ),
        Option(
            "label_cap",
            "Several labels: of one input's, most to which a patient's teacher (or a hospital, "
            "if it is the unit) says yes; lowers the price below half of them. [default: all]",
            int,
            part="caps",
        ),
    ),
)

OPTIONS: Final[Mapping[str, Option]] = {one.name: one for one in _ROWS}
"""All settings by name, in the order of `simulate --help`."""

_BY_FIELD: Final = {one.place[1]: one for one in OPTIONS.values()}


def option_of(setting: str) -> str:
    """Return the command line's name of a setting, by its own name or its field's."""
    known = OPTIONS.get(setting) or _BY_FIELD.get(setting)
    return known.flag if known else "--" + setting.replace("_", "-")


def fields_of(part: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of one part of `RunSettings`, by its fields.

    Args:
        part: "data", "rule" or "caps"; "" for the rest.
    """
    return {
        field: OPTIONS[name].in_kind(value)
        for name, value in given.items()
        for held, field in (OPTIONS[name].place,)
        if held == part
    }
