"""Odd exports by their kind: a simulation and a hospital read, ask and refuse alike."""

from __future__ import annotations

import bz2
import gzip
import io
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from party.errors import PartyError
from party.site.own_table import DatasetSummary, examine
from pate_fed.data.dataset import Dataset
from pate_fed.data.new_task import make_task
from pate_fed.data.reading import Reading
from pate_fed.data.sources import DataSource, load_dataset
from pate_fed.errors import PateFedError

ROWS = 80
CHANCE = np.random.default_rng(5)
AGE = CHANCE.integers(20, 90, ROWS)
HB = [f"{value:.1f}" for value in CHANCE.normal(13, 2, ROWS)]
SEX = CHANCE.choice(["f", "m"], ROWS)
DIED = [
    "no" if age < 55 + shift else "yes"
    for age, shift in zip(AGE, CHANCE.integers(-30, 30, ROWS), strict=True)
]
DAYS = [f"{1 + row % 28:02}" for row in range(ROWS)]


def lines(separator: str = ",", **columns: Sequence[object]) -> list[str]:
    """Return a table of some patients, with further or other columns."""
    found: dict[str, Sequence[object]] = {
        "pid": [f"p{row:03}" for row in range(ROWS)], "age": AGE, "hb": HB, "sex": SEX, "died": DIED
    }  # fmt: skip
    found |= columns
    rows = zip(*found.values(), strict=True)
    return [separator.join(found), *(separator.join(map(str, row)) for row in rows)]


def at_hospital(path: Path, **reading: Any) -> DatasetSummary:
    return examine(path, label="died", patient_id="pid", floor=10, reading=Reading(**reading))


def simulated(path: Path, **reading: Any) -> Dataset:
    drops = reading.pop("drops_unlabeled", False)
    source = DataSource(
        "csv",
        data_file=path,
        label_column="died",
        patient_column="pid",
        drop_unlabeled=drops,
        **reading,
    )
    return load_dataset(source, rng=np.random.default_rng(0))


def written(folder: Path, content: Sequence[str] | bytes) -> Path:
    path = folder / "t.csv"
    path.write_bytes(content if isinstance(content, bytes) else "\n".join(content).encode())
    return path


def read_alike(path: Path, **reading: Any) -> tuple[DatasetSummary, dict[str, str]]:
    """Read at both sides: the same questions; return the summary, and each column's role."""
    summary, dataset = at_hospital(path, **reading), simulated(path, **reading)
    assert dataset.notes[: len(summary.asked)] == summary.asked
    of_rows = {one for one in summary.notes if "almost alone" not in one}
    assert of_rows <= set(dataset.notes)
    return summary, {one.name: one.role for one in summary.columns}


PLAIN = {"pid": "patient", "age": "number", "hb": "number", "sex": "text", "died": "label"}


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("\ufeff".encode() + "\n".join(lines()).encode(), id="a mark of UTF-8"),
        pytest.param("\r\n".join(lines()).encode(), id="line ends of Windows"),
        pytest.param("\n".join(lines()).replace("\n", "\r\n", 40).encode(), id="mixed line ends"),
        pytest.param("\n".join(lines()).encode("utf-16"), id="UTF-16"),
        pytest.param(gzip.compress("\n".join(lines()).encode()), id="gzip without its ending"),
        pytest.param([*lines(), "", " ", ",,,,", ""], id="rows without a cell at the end"),
        pytest.param([" , ", *lines()], id="a row without a cell above"),
        pytest.param(
            [row + ",," * bool(place) for place, row in enumerate(lines())],
            id="separators at the end of rows",
        ),
        pytest.param([row.replace(",", ", ") for row in lines()], id="blanks behind separators"),
        pytest.param(['"' + row.replace(",", '","') + '"' for row in lines()], id="all quoted"),
        pytest.param(lines(hb=[f"\u00a0{one}" for one in HB]), id="blanks that do not break"),
        pytest.param(lines(hb=[f"{float(one):.3E}" for one in HB]), id="powers of ten"),
    ],
)
def test_a_plain_table_in_another_dress_is_read_plainly(
    tmp_path: Path, content: Sequence[str] | bytes
) -> None:
    summary, roles = read_alike(written(tmp_path, content))
    assert (summary.rows, summary.patients) == (ROWS, ROWS)
    assert roles == PLAIN
    assert summary.asked == ()


def archive(name: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr(name, "pid\n")
    return packed.getvalue()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(archive("t.csv"), "ZIP", id="a ZIP archive"),
        pytest.param(bz2.compress(b"pid"), "unpack", id="bzip2"),
        pytest.param(b"\xfd7zXZ\0\0", "unpack", id="xz"),
        pytest.param(b"<!DOCTYPE html>\n<table>", "HTML", id="HTML"),
        pytest.param(b'<?xml version="1.0"?>\n', "XML", id="XML"),
        pytest.param(b'[{"pid": 1},\n', "JSON", id="JSON"),
        pytest.param(b"HEADER RECORD*******LIBRARY HEADER", "SAS", id="a transport file of SAS"),
        pytest.param(bytes(12) + b"\xc2\xea\x81\x60\xb3", "SAS", id="sas7bdat"),
        pytest.param(b"$FL2@(#) SPSS", "SPSS", id="SPSS"),
        pytest.param(b"<stata_dta><header>", "Stata", id="Stata"),
        pytest.param(b"\x72\x02\x01\x00\x05", "Stata", id="Stata of old"),
        pytest.param(gzip.compress(b"RDX3\nX\n\0"), " R", id="R"),
        pytest.param("\n".join(lines()).encode("utf-16-le"), "UTF-16", id="UTF-16, little"),
        pytest.param("\n".join(lines()).encode("utf-16-be"), "UTF-16", id="UTF-16, big"),
        pytest.param(b"\n \n", "empty", id="blanks alone"),
        pytest.param(lines("|"), "'|'", id="pipes"),
        pytest.param(lines("\t"), "'\\t'", id="tabs"),
        pytest.param(
            lines(";", hb=[one.replace(".", ",") for one in HB]), "--decimal ,", id="semicolons"
        ),
        pytest.param(
            [(row, f"{place},{row}")[place > 0] for place, row in enumerate(lines())],
            "row.names",
            id="row names of R",
        ),
        pytest.param([*lines(), "", "(80 rows affected)"], "line 83", id="a footer"),
        pytest.param(["# of 2024", *lines()], "line 2", id="a comment above"),
        pytest.param([*lines(), *lines()], "line 82", id="two files in one"),
        pytest.param([lines()[0].replace("age", "hb"), *lines()[1:]], "'hb'", id="a name twice"),
        pytest.param(
            [lines()[0].replace("died", "Died"), *lines()[1:]], "'Died'", id="another spelling"
        ),
        pytest.param(
            [row.replace(",", "','").join("''") for row in lines()], "'died'", id="apostrophes"
        ),
        pytest.param(
            [row.replace("p007,", ",") for row in lines()], "line 9", id="a row without a patient"
        ),
        pytest.param(
            lines(
                hb=[f"{one} {('g/dl', 'mmol/l')[place % 4 == 0]}" for place, one in enumerate(HB)]
            ),
            "2 units",
            id="two units",
        ),
        pytest.param(
            "\n".join(lines()).replace("f", "f\0", 1).encode(), "zero", id="a binary zero"
        ),
        pytest.param(
            "\n".join(lines(sex=["K\x81ln"] * ROWS)).encode("latin-1"),
            "other bytes",
            id="an encoding of DOS",
        ),
    ],
)
def test_what_is_no_table_is_named_alike_with_what_to_do(
    tmp_path: Path, content: Sequence[str] | bytes, said: str
) -> None:
    path, found = written(tmp_path, content), []
    for read in (simulated, at_hospital):
        with pytest.raises((PateFedError, PartyError)) as caught:
            read(path)
        found.append(str(caught.value))
    assert found[0] == found[1]
    assert said in found[0]


@pytest.mark.parametrize(
    "cells",
    [
        pytest.param([f"{day}.03.2020" for day in DAYS], id="points"),
        pytest.param([f"2020-03-{day}T08:15:00Z" for day in DAYS], id="ISO with a time"),
        pytest.param([f"2020/3/{day}" for day in DAYS], id="slashes, the year first"),
        pytest.param([f"03/{day}/2020 8:15 PM" for day in DAYS], id="American"),
        pytest.param([f"202003{day}" for day in DAYS], id="digits alone"),
        pytest.param([f"{day}MAR2020:08:15:00" for day in DAYS], id="SAS"),
        pytest.param([f"{day} March 2020" for day in DAYS], id="English"),
        pytest.param([f'"March {day}, 2020"' for day in DAYS], id="American words"),
        pytest.param([f'"Tue, {day} Mar 2020 08:15:00 +0100"' for day in DAYS], id="mail"),
        pytest.param([f"{day}. M\u00e4rz 2020" for day in DAYS], id="German"),
    ],
)
def test_a_date_is_days_however_it_is_spelled(tmp_path: Path, cells: Sequence[str]) -> None:
    summary, roles = read_alike(written(tmp_path, lines(adm=cells)))
    assert roles["adm (days)"] == "number"
    assert "adm" not in roles
    assert summary.asked == ()


def now_and_then(other: str, cells: Sequence[object], *, every: int = 8) -> list[str]:
    return [str(one) if place % every else other for place, one in enumerate(cells)]


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        *(
            pytest.param(now_and_then(token, HB), shown, id=token)
            for token, shown in (
                ("(null)", "(null)"),
                ("\\N", "\\\\N"),
                ("nicht bestimmt", "nicht"),
                ("*", "'*'"),
                ("~12.1", "'~99.9'"),
                ("12.1*", "'99.9*'"),
                ("12.1-", "'99.9-'"),
                ("1;2", "'9;9'"),
            )
        ),
        pytest.param(
            ["low" if place % 20 < 9 else one for place, one in enumerate(HB)],
            "'low'",
            id="words in nearly half",
        ),
        *(
            pytest.param(now_and_then(token, HB), f"--missing hb={token}", id=f"sentinel {token}")
            for token in ("-9", "999", "-99", "99.9", "-1", "9999")
        ),
        pytest.param(
            [f'"{one.replace(".", ",")}"' for one in HB], "--decimal ,", id="decimal commas"
        ),
        pytest.param(
            [f'"{one.replace(".", ".,"[place % 2])}"' for place, one in enumerate(HB)],
            "'99,9'",
            id="both decimal signs",
        ),
        pytest.param(
            [one + " H" * (place % 2) for place, one in enumerate(HB)],
            "'99.9 H'",
            id="flags behind numbers",
        ),
        pytest.param(
            [one + "%" * (place % 2) for place, one in enumerate(HB)],
            "'99.9%'",
            id="a unit in some",
        ),
        pytest.param([f"${one}" for one in HB], "'$99.9'", id="a currency before"),
        pytest.param([f"{one} \u20ac" for one in HB], "\u20ac", id="a currency behind"),
        pytest.param([f"({one})" for one in HB], "'(99.9)'", id="parentheses"),
        pytest.param([f"'{one}" for one in HB], "'99.9", id="an apostrophe before"),
        pytest.param([f"\u200b{one}" for one in HB], "99.9", id="a letter that nobody sees"),
        pytest.param([f"{one}/{int(one) - 7}" for one in AGE + 90], "'999/999'", id="two numbers"),
        pytest.param(
            [f"{place % 24:02}:{place % 60:02}" for place in range(ROWS)], "'99:99'", id="times"
        ),
        pytest.param([f"{one}/03/20" for one in DAYS], "'99/99/99'", id="years of two digits"),
        pytest.param(
            [f"{place % 12 + 1}/{2000 + place}" for place in range(ROWS)], "'9/9999'", id="months"
        ),
        pytest.param(
            now_and_then("see letter", [f"{one}.03.2020" for one in DAYS]),
            "'see letter'",
            id="a word among dates",
        ),
        pytest.param(
            now_and_then("00.00.0000", [f"{one}.03.2020" for one in DAYS]),
            "'99.99.9999'",
            id="no day",
        ),
        pytest.param(
            now_and_then("31.12.9999", [f"{one}.03.2020" for one in DAYS]),
            "--missing 'hb=31.12.9999'",
            id="the last day",
        ),
        pytest.param(
            now_and_then("01.01.1900", [f"{one}.03.2020" for one in DAYS]),
            "--missing 'hb=01.01.1900'",
            id="the first day",
        ),
        pytest.param(
            [f"{1 + int(day) % 12}/{1 + place % 12}/2020" for place, day in enumerate(DAYS)],
            "2026-01-31",
            id="day or month",
        ),
    ],
)
def test_a_column_that_may_be_misread_is_asked_about(
    tmp_path: Path, cells: Sequence[str], said: str
) -> None:
    summary, _ = read_alike(written(tmp_path, lines(hb=cells)))
    assert len(summary.asked) == 1
    assert "'hb'" in summary.asked[0]
    assert said in summary.asked[0]


@pytest.mark.parametrize(
    "cells", [now_and_then("~12", HB), now_and_then("999", HB), [f"{one}.03.2020" for one in DAYS]]
)
def test_an_operator_s_pool_gets_the_sentences_of_a_hospital_s_table(
    tmp_path: Path, cells: Sequence[str]
) -> None:
    path = written(tmp_path, lines(hb=cells))
    task = make_task(path, label="died", classes=("no", "yes"), ignored=("pid",))
    summary = at_hospital(path)
    of_rows = [one for one in summary.notes if "almost alone" not in one]
    assert task.told == (*summary.asked, *of_rows)
    assert task.told


@pytest.mark.parametrize(
    "cells",
    [
        pytest.param(["10-19", "20-29", "30-39", "40-49"] * 20, id="groups of ages"),
        pytest.param(["1:2", "1:4", "1:8", "1:16"] * 20, id="titers"),
        pytest.param(["+", "++", "+++", "-"] * 20, id="signs"),
        pytest.param(["TRUE", "1", "FALSE", "0"] * 20, id="yes in two spellings"),
        pytest.param(["Ja", "Nein", "ja", "nein"] * 20, id="yes in German"),
        pytest.param(["C10", "I21", "E11", "J44"] * 20, id="codes"),
        pytest.param([f"A{place % 40}" for place in range(ROWS)], id="many codes"),
        pytest.param(['"a\nb"', '"c ""d"""', '5" tube', "e"] * 20, id="quotes and lines in cells"),
    ],
)
def test_categories_are_no_question(tmp_path: Path, cells: Sequence[str]) -> None:
    summary, roles = read_alike(written(tmp_path, lines(sex=cells)))
    assert roles["sex"] == "text"
    assert summary.asked == ()


@pytest.mark.parametrize("token", ["n.a.", "NULL", ".", "-", "#N/A", "unbekannt", "NaN", "None"])
def test_usual_words_for_not_known_are_missing_and_said(tmp_path: Path, token: str) -> None:
    summary, roles = read_alike(written(tmp_path, lines(hb=now_and_then(token, HB))))
    assert roles == PLAIN
    assert summary.asked == ()
    assert any(f"{token!r} in 'hb'" in one for one in summary.notes)


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        pytest.param(now_and_then("unknown", DIED), "--missing 'died=unknown'", id="a word"),
        pytest.param(now_and_then("n.a.", DIED), "--missing 'died=n.a.'", id="letters"),
        pytest.param(
            now_and_then("9", [int(one == "yes") for one in DIED]), "--missing 'died=9'", id="9"
        ),
        pytest.param(
            now_and_then("99", [int(one == "yes") for one in DIED]), "--missing 'died=99'", id="99"
        ),
        pytest.param(
            [one if row % 2 else str(int(one == "yes")) for row, one in enumerate(DIED)],
            "--map",
            id="numbers and words",
        ),
    ],
)
def test_a_class_that_is_none_is_asked_about_and_its_answer_is_taken(
    tmp_path: Path, cells: Sequence[str], said: str
) -> None:
    path = written(tmp_path, lines(died=cells))
    summary, _ = read_alike(path)
    assert [said in one for one in summary.asked] == [True]
    if "--missing" in said:
        value = said.split("'")[1]
        summary, _ = read_alike(path, missing=(value,), drops_unlabeled=True)
        assert (summary.rows, len(summary.classes), summary.asked) == (70, 2, ())


@pytest.mark.parametrize("word", ["K\u00f6ln", "\u00c5ngstr\u00f6m", "\u00c3o", "5 \u20ac"])
def test_letters_of_a_wrong_encoding_are_asked_about(tmp_path: Path, word: str) -> None:
    right = written(tmp_path, lines(sex=now_and_then(word, SEX)))
    assert read_alike(right)[0].asked == ()
    spoiled = word.encode().decode("cp1252", "replace")
    summary, _ = read_alike(written(tmp_path, lines(sex=now_and_then(spoiled, SEX))))
    assert ["'sex'" in one for one in summary.asked] == [True]


def test_digits_as_classes_are_no_question(tmp_path: Path) -> None:
    summary, _ = read_alike(written(tmp_path, lines(died=[row % 10 for row in range(ROWS)])))
    assert summary.asked == ()


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(lambda row: f"{row}.0", id="decimals"),
        pytest.param(lambda row: f"{row:06}", id="zeros"),
        pytest.param(lambda row: f" {row}", id="one id"),
    ],
)
def test_ids_in_two_spellings_are_asked_about(tmp_path: Path, other: Callable[[int], str]) -> None:
    ids = [str(row // 2) if row % 2 else other(row // 2) for row in range(ROWS)]
    summary, _ = read_alike(written(tmp_path, lines(pid=ids)))
    assert (summary.patients, len(summary.asked)) in ((ROWS, 1), (ROWS // 2, 0))
    assert (len(summary.asked) == 1) is (other(7).strip() != "7")
