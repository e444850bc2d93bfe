"""`run.toml`: the settings of a run, resolved.

TOML knows no null: a setting that does not apply is left out.
"""

from __future__ import annotations

import json
import tomllib
from typing import Annotated

from pate_fed.errors import RunDirectoryError
from pate_fed.record.base import About, RecordTable

Texts = tuple[str, ...]
Numbers = tuple[float, ...]


class Source(RecordTable):
    """Where records, labels and classes come from."""

    file: Annotated[str | None, About("its name, without folders", "no")] = None
    label: Annotated[str | None, About("column of the label", "yes")] = None
    patient_id: Annotated[str | None, About("column of the patient", "no")] = None
    hospital: Annotated[str | None, About("column of the hospital", "no")] = None
    ignored: Annotated[Texts | None, About("columns left out", "no")] = None
    positive: Annotated[str | None, About("the class of interest", "no")] = None
    separator: Annotated[str | None, About("between cells", "no")] = None
    decimal: Annotated[str | None, About("before decimals", "no")] = None
    classes: Annotated[Texts | None, About("of a deployed run: their names", "yes")] = None


class Federation(RecordTable):
    """Hospitals and their secure sum."""

    parties: Annotated[int | None, About("hospitals", "yes")] = None
    teachers: Annotated[
        int | tuple[int, ...] | None, About("of each hospital, or hospital by hospital", "no")
    ] = None
    weights: Annotated[tuple[int, ...] | None, About("hospital by hospital", "no", "votes")] = None
    partition: Annotated[str | None, About("how records were dealt", "no")] = None
    patients: Annotated[int | None, About("most patients", "no")] = None
    sum: Annotated[str | None, About("form of the secure sum", "yes")] = None
    suite: Annotated[str | None, About("sealing suite", "yes")] = None
    engine: Annotated[str | None, About("what ran the hospitals", "no")] = None


class Questions(RecordTable):
    """The queries."""

    count: Annotated[int | None, About("how many", "yes")] = None
    select: Annotated[str | None, About("how they were chosen", "yes")] = None
    batch_size: Annotated[int | None, About("asked together", "yes", "queries")] = None


class MechanismSettings(RecordTable):
    """The mechanism, its noise and its cap on answers."""

    name: Annotated[str | None, About("of the mechanism", "yes")] = None
    vote_threshold: Annotated[float | None, About("of the noisy top count", "yes", "votes")] = None
    sigma1: Annotated[float | None, About("noise of the check", "yes", "votes")] = None
    sigma2: Annotated[float | None, About("noise of each count", "yes", "votes")] = None
    confidence: Annotated[float | None, About("of interactive mechanisms", "yes")] = None
    test_delta: Annotated[float | None, About("of `stable-*`", "yes")] = None
    noise: Annotated[str | None, About("where it is added", "yes")] = None
    colluders: Annotated[int | None, About("whose noise an attacker may know", "yes")] = None
    max_answers: Annotated[int | None, About("cap on answers", "yes", "queries")] = None


class Limits(RecordTable):
    """What the run may cost; after `simulate --after` what all rounds may."""

    epsilon: Annotated[float | None, About("the largest", "yes")] = None
    party_epsilons: Annotated[Numbers | None, About("hospital by hospital", "no")] = None
    delta: Annotated[float | None, About("of all of them", "yes")] = None
    unit: Annotated[str | None, About("`record` or `party`", "yes")] = None


class Models(RecordTable):
    """Teachers and student."""

    teacher: Annotated[str | None, About("of the hospitals", "no")] = None
    device: Annotated[str | None, About("that trained image models", "no")] = None
    class_balance: Annotated[str | None, About("how rare classes are weighted", "no")] = None
    prevalence: Annotated[Numbers | None, About("share of each class, as stated", "yes")] = None
    student: Annotated[str | None, About("its kind", "yes")] = None


class EvaluationChoice(RecordTable):
    """On whom the student was tried."""

    patients: Annotated[str | None, About("`public` or `private`", "yes")] = None
    epsilon: Annotated[float | None, About("of a private one", "yes")] = None
    by: Annotated[Texts | None, About("columns whose groups were counted", "yes")] = None


class EarlierRound(RecordTable):
    """A round before this one."""

    run: Annotated[str, About("its name", "no")]
    queries: Annotated[Questions, About("as above", "no")] = Questions()
    mechanism: Annotated[MechanismSettings, About("as above", "no")] = MechanismSettings()
    budget: Annotated[Limits, About("as above", "no")] = Limits()


class Settings(RecordTable):
    """Content of `run.toml`: the [options](command-line.md#pate-fed-simulate) that apply."""

    data: Annotated[str | None, About("the data set, or `csv`, `images`", "pool")] = None
    source: Annotated[Source, About("of the records", "yes")] = Source()
    federation: Annotated[Federation, About("hospitals and their sum", "yes")] = Federation()
    queries: Annotated[Questions, About("the queries", "yes")] = Questions()
    mechanism: Annotated[MechanismSettings, About("mechanism and noise", "yes")] = (
        MechanismSettings()
    )
    budget: Annotated[Limits, About("the limits", "yes")] = Limits()
    models: Annotated[Models, About("teachers and student", "yes")] = Models()
    evaluation: Annotated[EvaluationChoice, About("on whom", "yes")] = EvaluationChoice()
    seed: Annotated[int | None, About("of a rehearsal with predictable noise", "no")] = None
    purpose: Annotated[str | None, About("as it was stated", "yes")] = None
    earlier: Annotated[tuple[EarlierRound, ...], About("rounds before this one", "no")] = ()

    @classmethod
    def of(cls, table: object) -> Settings:
        """Return the settings of a table of them: None where one does not apply.

        Raises:
            RunDirectoryError: a setting is unknown or of another kind.
        """
        try:
            text = json.dumps(table, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise RunDirectoryError("run.toml must hold texts and finite numbers", error) from error
        return cls.read("run.toml", text)

    @classmethod
    def of_toml(cls, text: str) -> Settings:
        """Read `run.toml`.

        Raises:
            RunDirectoryError: it is no TOML, or as for `of`.
        """
        try:
            table = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise RunDirectoryError("run.toml must be TOML", error) from error
        return cls.of(table)
