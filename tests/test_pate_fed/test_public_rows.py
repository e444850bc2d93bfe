"""A cell, and a row of cells, have one form however a file writes them."""

from __future__ import annotations

import hashlib
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pate_fed.cells import Cell, cell_of, is_in_form, plain, text_of
from pate_fed.errors import InvalidParameterError
from pate_fed.public_rows import PublicRows

CELLS = st.one_of(
    st.none(),
    st.floats(-1e100, 1e100).map(lambda number: number + 0.0),
    st.text(max_size=5).map(plain).map(cell_of),
)


@pytest.mark.parametrize(
    ("written", "cell"),
    [
        (("1", "1.0", "01.00", "+1", "1e0", "10e-1", "1."), 1.0),
        (("0", "-0", "0.0", "-0e5", "1e-400"), 0.0),
        (("-2.5", "-02.50", "-25e-1"), -2.5),
        (("", "?", "NA", "n/a", "NaN", "nan", "NULL", "#N/A"), None),
        (("male",), "male"),
        (("inf",), "inf"),
        (("1e300",), "1e300"),
        (("1,5",), "1,5"),
        (("1_000",), "1_000"),
        (("\u0661",), "\u0661"),  # a digit of another script
    ],
)
def test_a_cell_is_its_value(written: tuple[str, ...], cell: Cell) -> None:
    assert {cell_of(one) for one in written} == {cell}
    assert is_in_form(cell)


def test_letters_with_accents_and_blanks_around_them_have_one_form() -> None:
    assert plain(" e\u0301te\u0301\u00a0") == "\u00e9t\u00e9"


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), -0.0, 1e101, 1, True, "", " x", "7", "NA", "e\u0301", b"x"],
    ids=repr,
)
def test_anything_else_is_no_cell(value: object) -> None:
    assert not is_in_form(value)
    with pytest.raises(InvalidParameterError):
        PublicRows(("a",), ((value,),))  # type: ignore[arg-type]


@pytest.mark.slow
@given(CELLS)
def test_what_is_written_is_read_back(cell: Cell) -> None:
    assert is_in_form(cell)
    assert cell_of(text_of(cell)) == cell


def test_the_digest_of_a_row_is_the_published_one() -> None:
    rows = PublicRows(("sex", "age", "\u00e4"), (("male", 40.0, None),))
    text = b'{"age":40.0,"sex":"male","\\u00e4":null}'
    assert rows.digests == (hashlib.sha256(b"pate-fed row\n" + text).digest(),)


def test_the_order_of_columns_says_nothing() -> None:
    names, cells = ("a", "b", "c"), (1.0, "x", None)
    found = set()
    for order in itertools.permutations(range(3)):
        row = tuple(cells[place] for place in order)
        found |= set(PublicRows(tuple(names[place] for place in order), (row,)).digests)
    assert len(found) == 1


@given(st.lists(st.lists(CELLS, min_size=2, max_size=2).map(tuple), max_size=8))
def test_rows_have_one_digest_where_they_have_the_same_cells(rows: list[tuple[Cell, ...]]) -> None:
    found = PublicRows(("a", "b"), tuple(rows))
    texts = [json.dumps(row) for row in rows]
    for (one, here), (other, there) in itertools.combinations(
        zip(texts, found.digests, strict=True), 2
    ):
        assert (one == other) == (here == there)


@pytest.mark.parametrize(
    ("columns", "row"), [((), ()), (("a", "a"), (1.0, 2.0)), (("a",), ()), (("a",), (1.0, 2.0))]
)
def test_every_column_has_its_name_and_its_cell(
    columns: tuple[str, ...], row: tuple[Cell, ...]
) -> None:
    with pytest.raises(InvalidParameterError):
        PublicRows(columns, (row,))


def test_a_row_shows_nothing() -> None:
    rows = PublicRows(("age",), ((41.25,), (40.0,)))
    assert repr(rows) == "PublicRows(rows=2, columns=1)"
    assert rows.pick((1,)).digests == rows.digests[1:]


def test_a_csv_file_has_every_cell_in_a_line_of_its_row() -> None:
    rows = PublicRows(("age", "sex"), ((-41.0, "männlich"), (0.1, None), (1e20, "not known")))
    written = "\ufeffage,sex\n-41,männlich\n0.1,?\n100000000000000000000,not known\n"
    assert "".join(rows.csv_lines()) == written


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("=1+1", "'=1+1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("-1+2", "'-1+2"),
        ("(-1+2", "'(-1+2"),
        ("\uff1d2", "'\uff1d2"),
        ("a-b = c", "a-b = c"),
        # Marks, for programs that separate cells otherwise.
        ("good; =1;+2", "good\\x3b =1\\x3b+2"),
        ('x;"=1+1;y', "x\\x3b\\x22=1+1\\x3by"),
        ("1,5|2", "1\\x2c5\\x7c2"),
        # What nobody sees.
        ("\x00=1+1", "\\x00=1+1"),
        ("a\rb", "a\\x0db"),
        ("x\n61,M,no", "x\\x0a61\\x2cM\\x2cno"),
        ("x\x1b[8m", "x\\x1b[8m"),
        ("\u202eno", "\\u202eno"),
        ("M\ufe0f", "M\\ufe0f"),
        ("\u2800", "\\u2800"),
        ("\U000e0100", "\\U000e0100"),
        # Else no reader could tell an escape from a text.
        ("\\x2c", "\\x5cx2c"),
        ("'=1", "''=1"),
    ],
)
def test_no_text_of_a_csv_file_is_a_formula_a_row_or_unseen(text: str, written: str) -> None:
    """Whoever made the rows is a stranger to the person who opens them."""
    rows = PublicRows((text,), ((text,),))
    assert "".join(rows.csv_lines()) == f"\ufeff{written}\n{written}\n"


def test_half_a_surrogate_pair_is_no_text() -> None:
    assert not is_in_form("\ud800")
    for columns, cells in ((("a",), (("\ud800",),)), (("\ud800",), ((1.0,),))):
        with pytest.raises(InvalidParameterError):
            PublicRows(columns, cells)
