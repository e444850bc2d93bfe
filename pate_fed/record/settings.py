"""`run.toml`: the settings of a run, resolved; each has the name of its option.

TOML knows no null: a setting that does not apply is left out.
"""

from __future__ import annotations

import json
import tomllib
from typing import Annotated

import tomli_w

from pate_fed.errors import RunDirectoryError
from pate_fed.record.base import About, Number, RecordTable, Share
from pate_fed.run_folder import SETTINGS

Texts = tuple[str, ...]
Numbers = tuple[float, ...]


class Parameters(RecordTable):
    """Those of a mechanism, each as its option; null if the mechanism lacks it."""

    vote_threshold: Annotated[Number | None, About("of the noisy top count", "yes", "votes")] = None
    sigma1: Annotated[Number | None, About("noise of the check", "yes", "votes")] = None
    sigma2: Annotated[Number | None, About("noise of each count", "yes", "votes")] = None
    confidence: Annotated[Share | None, About("of interactive mechanisms", "yes")] = None
    test_delta: Annotated[Share | None, About("of `stable-*`", "yes")] = None


class OwnSettings(Parameters):
    """Those that each run of a series has of its own."""

    queries: Annotated[int | None, About("how many", "yes")] = None
    select: Annotated[str | None, About("how queries were chosen", "yes")] = None
    batch_size: Annotated[int | None, About("asked together", "yes", "queries")] = None
    mechanism: Annotated[str | None, About("its name", "yes")] = None
    max_answers: Annotated[int | None, About("cap on answers", "yes", "queries")] = None
    patient_votes: Annotated[
        int | None, About("of records that vote: queries that a patient votes on", "yes")
    ] = None
    epsilon: Annotated[
        float | None, About("the largest budget; after `--after` that of the whole series", "yes")
    ] = None
    party_epsilons: Annotated[Numbers | None, About("budgets hospital by hospital", "no")] = None


class EarlierRun(OwnSettings):
    """A run before this one."""

    run: Annotated[str, About("its name", "no")]


class Settings(OwnSettings):
    """Content of `run.toml`: the [options](command-line.md#pate-fed-simulate) that apply."""

    FILE = SETTINGS

    delta: Annotated[float | None, About("of all budgets", "yes")] = None
    unit: Annotated[str | None, About("`record` or `party`", "yes")] = None
    noise: Annotated[str | None, About("where it is added", "yes")] = None
    colluders: Annotated[int | None, About("whose noise an attacker may know", "yes")] = None
    parties: Annotated[int | None, About("hospitals", "yes")] = None
    teachers: Annotated[
        int | tuple[int, ...] | None, About("of each hospital, or hospital by hospital", "no")
    ] = None
    records_per_teacher: Annotated[
        int | None, About("patients or records of a teacher, from which their numbers follow", "no")
    ] = None
    weights: Annotated[tuple[int, ...] | None, About("hospital by hospital", "no", "votes")] = None
    partition: Annotated[str | None, About("how records were dealt", "no")] = None
    patients: Annotated[int | None, About("most patients", "no")] = None
    form: Annotated[str | None, About("`--sum`: form of the secure sum", "yes")] = None
    suite: Annotated[str | None, About("sealing suite", "yes")] = None
    engine: Annotated[str | None, About("what ran the hospitals", "no")] = None
    teacher: Annotated[str | None, About("of the hospitals", "no")] = None
    device: Annotated[str | None, About("that trained image models", "no")] = None
    class_balance: Annotated[str | None, About("how rare classes are weighted", "no")] = None
    prevalence: Annotated[Numbers | None, About("share of each class, as stated", "yes")] = None
    student: Annotated[str | None, About("its kind", "yes")] = None
    coverage: Annotated[Share | None, About("of the student's sets", "yes")] = None
    evaluate: Annotated[str | None, About("patients: `public` or `private`", "yes")] = None
    evaluation_epsilon: Annotated[float | None, About("of a private one", "yes")] = None
    evaluate_by: Annotated[Texts, About("columns whose groups were counted", "yes")] = ()
    data: Annotated[str | None, About("the data set, or `csv`, `images`", "pool")] = None
    file: Annotated[str | None, About("its name, without folders", "no")] = None
    label: Annotated[
        str | Texts | None, About("column of the label, or those of several", "yes")
    ] = None
    label_cap: Annotated[
        int | None, About("several labels: most that a unit may say yes to", "yes")
    ] = None
    patient_id: Annotated[str | None, About("column of the patient", "no")] = None
    hospital: Annotated[str | None, About("column of the hospital", "no")] = None
    ignore: Annotated[Texts, About("columns left out", "no")] = ()
    positive: Annotated[str | None, About("the class of interest", "no")] = None
    separator: Annotated[str | None, About("between cells", "no")] = None
    decimal: Annotated[str | None, About("before decimals", "no")] = None
    missing: Annotated[Texts, About("cells that stand for “not known”", "no")] = ()
    map: Annotated[Texts, About("other names of columns and classes", "no")] = ()
    drop_unlabeled: Annotated[bool, About("rows without a label were left out", "no")] = False
    classes: Annotated[Texts, About("of a deployed run: their names", "yes")] = ()
    seed: Annotated[int | None, About("of a rehearsal with predictable noise", "no")] = None
    purpose: Annotated[str, About("as it was stated", "yes")] = ""
    earlier: Annotated[tuple[EarlierRun, ...], About("runs before this one", "no")] = ()

    @property
    def target(self) -> str:
        """The column of the label, or those of several, between commas; "" without a table."""
        return self.label or "" if isinstance(self.label, str | None) else ", ".join(self.label)

    def as_text(self) -> str:
        """Return the content of its file."""
        return tomli_w.dumps(self.as_json())

    @classmethod
    def of_toml(cls, text: str) -> Settings:
        """Read `run.toml`, strictly: anything else is a RunDirectoryError."""
        try:
            table = json.dumps(tomllib.loads(text), allow_nan=False)
        except tomllib.TOMLDecodeError as error:
            raise RunDirectoryError("run.toml must be TOML", str(error)) from error
        except (TypeError, ValueError, RecursionError) as error:
            raise RunDirectoryError(
                "run.toml must hold texts and finite numbers", str(error)
            ) from error
        return cls.read(table)
