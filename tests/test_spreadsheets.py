"""No cell of a file that people open in a spreadsheet runs there, whoever wrote its text."""

from __future__ import annotations

import ast
import csv
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pate_fed.cells import csv_line, read_cell
from pate_fed.report.run_directory import RunDirectory, SentPacket, read_run
from tests.support.command import Command, pate_fed, write_table
from tests.support.sample_run import write_sample

__all__ = ["pate_fed"]  # a fixture

REPOSITORY = Path(__file__).parents[1]
FORMULA = "=cmd|' /C calc'!A0"
STARTS = tuple("=+-@\t\r\uff1d\uff0b\uff0d\uff20")
"""First letters of a formula (OWASP: CSV injection)."""

any_text = st.text(st.characters(exclude_categories=["Cs"])) | st.from_regex(
    r"[-=+@'\\\"\t ]{1,3}(x2c|u00e9|1|a)?", fullmatch=True
)


@given(any_text)
def test_a_reader_gets_every_cell_back(text: str) -> None:
    [[first, shown]] = csv.reader(io.StringIO(csv_line(["a", text]), newline=""))
    assert (first, read_cell(shown)) == ("a", text)


@given(any_text)
def test_no_cell_is_a_formula_or_more_than_one_cell(text: str) -> None:
    line = csv_line([text])
    assert not line.startswith(STARTS) or float(line.strip()) == float(text)
    assert not set(line.removesuffix("\n")) & set(',;|"\t\r\n')


@pytest.mark.parametrize("number", ["-1", "+2.5", "1e5", "-0", "007"])
def test_a_number_stays_one(number: str) -> None:
    assert csv_line([number]) == f"{number}\n"


@pytest.mark.parametrize("number", ["-inf", "-1e999", "-1_000", "+nan", "-1\n", "\u0661-1"])
def test_what_only_looks_like_a_number_is_none(number: str) -> None:
    assert not csv_line([number]).startswith(STARTS)


def test_packets_come_back(tmp_path: Path) -> None:
    packets = (SentPacket("-1+2", (), 3, "ab"), SentPacket("\u00e9, b", ("Ready", "Go"), 5, "cd"))
    write_sample(tmp_path / "run")
    RunDirectory(tmp_path / "run").write_sent(packets)
    assert read_run(tmp_path / "run").sent == packets
    assert "\n'-1+2," in (tmp_path / "run" / "sent.csv").read_text("utf-8")


@pytest.mark.slow
def test_a_class_name_of_a_stranger_runs_nowhere(pate_fed: Command, tmp_path: Path) -> None:
    """Through a whole simulation, its public edition and the student's predictions."""
    table = write_table(tmp_path / "table.csv", rows=200)
    lines = table.read_text("utf-8").replace(",yes", f",{FORMULA}").splitlines()
    table.write_text("\n".join(lines) + "\n", "utf-8")
    run, edition = tmp_path / "run", tmp_path / "edition"
    usual = ("--mechanism", "gnmax", "--parties", 3, "--teachers", 4, "--queries", 8)
    columns = ("--data", "csv", "--data-file", table, "--label", "sick", "--epsilon", 90)
    assert pate_fed("simulate", *columns, *usual, "--out", run).code == 0
    assert pate_fed("report", run, "--out", edition).code == 0
    assert {label for _, label in read_run(run).labels} == {FORMULA, "no"}
    rows = tmp_path / "rows.csv"
    rows.write_text("\n".join(line.rpartition(",")[0] for line in lines) + "\n", "utf-8")
    said = pate_fed("predict", run / "student", rows).out
    written = {path: path.read_text("utf-8") for path in tmp_path.glob("*/*.csv")}
    assert {path.name for path in written} == {"labels.csv", "sent.csv"}
    for text in (said, *written.values()):
        cells = [cell for row in csv.reader(io.StringIO(text)) for cell in row]
        assert not [cell for cell in cells if cell.startswith(STARTS)]
    assert f"'{FORMULA.replace('|', chr(92) + 'x7c')}" in said


def test_no_other_code_of_the_product_writes_a_table() -> None:
    """A new writer calls `csv_line`, or is found here."""
    writers = {"writer", "DictWriter", "to_csv", "write_csv", "savetxt"}
    texts = {
        path: path.read_text("utf-8")
        for package in ("pate_fed", "protocols", "party", "coordinator")
        for path in sorted((REPOSITORY / package).rglob("*.py"))
    }
    found = [
        f"{path.relative_to(REPOSITORY)}:{node.lineno}"
        for path, text in texts.items()
        if any(word in text for word in (*writers, '",".join', '";".join', '"\\t".join'))
        for node in ast.walk(ast.parse(text))
        if (isinstance(node, ast.Attribute) and node.attr in writers)
        or (isinstance(node, ast.ImportFrom) and writers & {one.name for one in node.names})
        or _joins_cells(node, path)
    ]
    assert found == []


def _joins_cells(node: ast.AST, path: Path) -> bool:
    """Whether code makes a line of a table by hand: separator.join(...) + "\\n"."""
    its_own = path.name == "cells.py"
    for_our_reader = path.name == "known_tables.py"  # mends lines of published files, in memory
    if its_own or for_our_reader or not (isinstance(node, ast.BinOp | ast.JoinedStr)):
        return False
    parts = ast.unparse(node)
    joins = any(f"{mark!r}.join(" in parts for mark in (",", ";", "\t"))
    return joins and "\\n" in parts
