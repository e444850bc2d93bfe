"""Tables as hospitals export them: each kind in a simulation and at a hospital, by one reader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from party.errors import PartyError
from party.site.own_table import DatasetSummary, examine
from pate_fed.data.dataset import Dataset
from pate_fed.data.reading import Reading, read_records
from pate_fed.data.sources import DataSource, load_dataset
from pate_fed.errors import PateFedError
from tests.support.real_data import real_data

LABEL, PATIENT, SITE = "died", "pid", "site"


@dataclass(frozen=True)
class Case:
    """A file, how it is read, and what is right.

    Attributes:
        said: Words of sentences about it, at both sides.
        refused: Words of the refusal, instead.
        numbers: Columns that are numbers.
        texts: Columns that are categories.
    """

    file: str
    reading: Mapping[str, Any] = field(default_factory=dict)
    said: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    numbers: frozenset[str] = frozenset({"age", "hb", "crp"})
    texts: frozenset[str] = frozenset({"sex"})
    patients: int = 240


DAYS = frozenset({"admitted (days)", "discharged (days)"})
PARTS = frozenset(
    {f"{one} ({part})" for one in ("admitted", "discharged") for part in ("weekday", "month")}
)
SEMICOLONS = {"separator": ";"}

CASES = [
    Case("plain.csv"),
    Case("sas_dot.csv", said=("'.' in 'hb' (21 cells)",)),
    Case("missing_tokens.csv", said=("'None'", "'<NA>'", "'hb' (28 cells)")),
    Case("age_gt_89.csv", said=("'> 99'", "21 cells")),
    Case(
        "icd_leading_zero.csv",
        said=("'icd_proc' has zeros",),
        texts=frozenset({"sex", "icd_proc"}),
    ),
    Case("thousands.csv", said=("'plt'",), numbers=frozenset({"age", "hb", "crp", "plt"})),
    Case("thousands_dot.csv", refused=("--separator ';',",)),
    Case(
        "thousands_dot.csv",
        SEMICOLONS,
        asked=("'plt'",),
        numbers=frozenset({"age", "hb", "crp", "plt"}),
    ),
    Case("thousands_dot.csv", {**SEMICOLONS, "decimal": ","}, refused=("'hb'", "comma", "line 2")),
    Case("thousands_german.csv", refused=("--separator ';',",)),
    Case(
        "thousands_german.csv",
        SEMICOLONS,
        said=("'plt'",),
        numbers=frozenset({"age", "hb", "crp", "plt"}),
    ),
    Case("semicolon_decimal_comma.csv", refused=("--separator ';' --decimal ,",)),
    Case("semicolon_decimal_comma.csv", {**SEMICOLONS, "decimal": ","}),
    Case(
        "dates.csv",
        said=("'admitted' has dates", "'discharged' has dates"),
        numbers=frozenset({"age", "hb", "crp"}) | DAYS,
        texts=frozenset({"sex"}) | PARTS,
    ),
    Case("sentinel.csv", asked=("--missing hb=-1", "--missing crp=999")),
    Case("sentinel.csv", {"missing": ("hb=-1", "999")}),
    Case("site_spelling.csv"),
    Case("one_site_no_lab.csv"),
    Case("one_site_one_class.csv"),
    Case("label_spelling.csv", refused=("'NO', 'No', 'YES'", "--map")),
    Case("label_spelling.csv", {"renamed": ("NO=no", "No=no", "YES=yes", "Yes=yes")}),
    Case("label_missing.csv", refused=("fewer than 10 rows", "line 65", "--drop-unlabeled")),
    Case(
        "label_missing.csv", {"drops_unlabeled": True}, said=("fewer than 10 rows",), patients=235
    ),
    Case("excel_sep_line.csv", refused=("first line", "--separator ';'", "Excel")),
    Case("preamble.csv", refused=("line 3",)),
    Case("cr_only.csv", refused=("Macintosh", "CSV UTF-8")),
    Case("utf16.csv", refused=(r"--separator '\t'",)),
    Case("utf16.csv", {"separator": "\\t"}, said=("UTF-16",)),
    Case("many_rows_per_patient.csv", patients=40),
    Case(
        "pq_types.parquet",
        said=("'adm' has dates",),
        numbers=frozenset({"age", "hb", "crp", "icu", "adm (days)", "admz (days)"}),
        texts=frozenset({"sex", "adm (weekday)", "adm (month)", "admz (weekday)", "admz (month)"}),
    ),
    Case("pq_index_level0.parquet", said=("__index_level_0__",), patients=238),
    Case("pq_binary.parquet", refused=("'raw'", "binary")),
]


def path_of(case: Case) -> Path:
    return real_data(f"data/cases/{case.file}")


def simulated(case: Case) -> Dataset:
    reading = Reading(**case.reading)
    source = DataSource(
        "csv",
        data_file=path_of(case),
        label_column=LABEL,
        patient_column=PATIENT,
        hospital_column=SITE,
        separator=reading.separator,
        decimal=reading.decimal,
        missing=reading.missing,
        renamed=reading.renamed,
        drop_unlabeled=reading.drops_unlabeled,
    )
    return load_dataset(source, rng=np.random.default_rng(0))


def at_hospital(case: Case, *, floor: int = 10) -> DatasetSummary:
    return examine(
        path_of(case),
        label=LABEL,
        patient_id=PATIENT,
        floor=floor,
        reading=Reading(**case.reading),
    )


def ident(case: Case) -> str:
    return " ".join((case.file, *map(str, case.reading.values())))


@pytest.mark.parametrize("case", [one for one in CASES if one.refused], ids=ident)
def test_what_cannot_be_read_is_refused_alike_with_what_to_do(case: Case) -> None:
    said = []
    for read in (simulated, at_hospital):
        with pytest.raises((PateFedError, PartyError)) as caught:
            read(case)
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert all(word in said[0] for word in case.refused)


@pytest.mark.parametrize("case", [one for one in CASES if not one.refused], ids=ident)
def test_what_can_be_read_is_read_alike(case: Case) -> None:
    dataset, summary = simulated(case), at_hospital(case)
    uses = {one.name: one.use for one in dataset.columns}
    roles = {one.name: one.role for one in summary.columns}
    assert {name for name, use in uses.items() if use == "number"} == case.numbers
    assert {name for name, use in uses.items() if use == "category"} == case.texts
    assert {name for name, role in roles.items() if role == "number"} == case.numbers
    assert {name for name, role in roles.items() if role == "text"} == case.texts | {SITE}
    assert summary.patients == case.patients
    assert all(any(word in one for one in summary.asked) for word in case.asked)
    assert all(any(word in one for one in summary.notes) for word in case.said)
    if not case.asked:
        assert summary.asked == ()
    assert set(summary.asked) <= set(dataset.notes)
    assert dataset.notes[: len(summary.asked)] == summary.asked  # before all else
    of_reader = {one for one in summary.notes if any(word in one for word in case.said)}
    assert of_reader <= set(dataset.notes)


class TestWhatTheSentenceMeans:
    def test_a_sentinel_that_was_answered_is_missing(self) -> None:
        before = numbers(Case("sentinel.csv"), "crp")
        after = numbers(Case("sentinel.csv", {"missing": ("crp=999",)}), "crp")
        assert before.max() == 999.0
        assert np.nanmax(after) < 999.0
        assert np.isnan(after).sum() == (before == 999.0).sum()

    def test_thousands_are_thousands(self) -> None:
        assert numbers(Case("thousands.csv"), "plt")[0] == 11873.0
        assert numbers(Case("thousands_german.csv", SEMICOLONS), "plt")[0] == 11873.5

    def test_codes_stay_apart(self) -> None:
        cells = text_of_case(Case("icd_leading_zero.csv")).column("icd_proc")
        assert cells[:2] == ("0117", "117")

    def test_a_limit_is_its_number(self) -> None:
        assert numbers(Case("age_gt_89.csv"), "age")[0] == 89.0

    def test_a_day_counts_from_the_reference(self) -> None:
        text = text_of_case(Case("dates.csv"))
        assert text.column("admitted (days)")[0] == "7151"  # 2019-07-31
        assert text.column("admitted (weekday)")[0] == "Wed"
        assert text.column("discharged (days)")[0] == "7157"  # 06.08.2019
        assert text.column("discharged (month)")[0] == "Aug"

    def test_a_site_without_a_value_is_named(self) -> None:
        assert any(
            "'hb'" in one and "at D" in one for one in simulated(Case("one_site_no_lab.csv")).notes
        )

    def test_five_hospitals_are_said_to_be_five(self) -> None:
        dataset = simulated(Case("site_spelling.csv"))
        assert any("5 in all" in one for one in dataset.notes)
        assert len(set(dataset.private.hospitals or ())) == 5

    def test_floors_count_patients(self) -> None:
        summary = at_hospital(Case("many_rows_per_patient.csv"), floor=40)
        assert dict(summary.classes) == {"0": None, "1": None}
        assert dict(at_hospital(Case("many_rows_per_patient.csv")).classes) == {"0": 40, "1": 39}


def text_of_case(case: Case) -> Any:
    return read_records(
        path_of(case), Reading(**case.reading), labels=[LABEL], apart=[PATIENT, SITE]
    )


def numbers(case: Case, name: str) -> Any:
    cells = text_of_case(case).column(name)
    return np.array([float(cell) if cell else np.nan for cell in cells])
