"""A cell of a table in its one form, however a file writes it.

- A number is its value: 1, 1.0, 01.00 and +1 are one number, and -0 is 0. A whole number with
  zeros before it, such as 0117, is a code, and a text.
- A text is Unicode NFC without blanks around it.
- A missing cell is one thing: empty, "?", "NA" and the like.

And every cell of a CSV file that the product writes: `csv_line`.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable

Cell = float | str | None
"""A number, a text, or None where the value is not known."""

MISSING = frozenset({"", "?", ".", "na", "n/a", "nan", "null", "#n/a", "<na>", "nat"})
"""Cells, in small letters, that stand for "not known"."""

MISSING_NUMBERS = frozenset({
    *("none", "-", "--", "---", "n.a.", "n.d.", "nd", "n/k", "k.a.", "unknown", "unk", "missing"),
    *("not done", "not known", "not available", "not applicable", "unbekannt", "fehlt", "inconnu"),
    *("#value!", "#div/0!", "#null!", "#ref!", "#num!"),
})  # fmt: skip
"""Further ones, in small letters, in a column of numbers; elsewhere they may be categories."""

_FORMULA = re.compile(r"'|[^\w=+@\uff1d\uff0b\uff0d\uff20-]*[=+@\uff1d\uff0b\uff0d\uff20-]")
_UNSEEN_OR_A_MARK = re.compile(
    '[,;|"\\\\\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0'
    "\U000e0100-\U000e01ef]"
)
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U(00[01][0-9a-f]{5}))|\\")

_CODE = re.compile(r"0[0-9]+")
_LIMIT = re.compile(r"(?:[<>]=?|[\u2264\u2265])\s*(?=[+-]?[0-9.])")
"""Before a number: the value is below or above what was measured, or told."""

_MEASUREMENT = re.compile(
    r"(?P<number>[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?)\s*(?P<unit>[^\W\d_]\S{0,15}|%)?"
)

LARGEST_NUMBER = 1e100
"""Numbers beyond this are taken for broken cells; squares of smaller ones stay finite."""


def parse_number(text: str) -> float:
    """Read a cell as a number: NaN if it is none, infinity if it is too large to be one."""
    # float() would accept 1_000 and digits of other scripts.
    if not text.isascii() or "_" in text or is_missing(text):
        return float("nan")
    try:
        number = float(text)
    except ValueError:
        return float("nan")
    return number if abs(number) <= LARGEST_NUMBER else float("inf")


def is_missing(text: str) -> bool:
    """Tell whether a cell stands for "not known"."""
    return text.lower() in MISSING


def cell_of(text: str) -> Cell:
    """Read a cell of a CSV table: a number by its value, a text, or None if it is missing."""
    if is_missing(text):
        return None
    number = parse_number(text)
    return number + 0.0 if math.isfinite(number) and not is_code(text) else text  # -0.0 is 0.0


def is_code(text: str) -> bool:
    """Tell whether a text is a whole number with zeros before it, which nobody counts with."""
    return _CODE.fullmatch(text) is not None


def number_of(text: str) -> Cell:
    """Read a cell of a column of numbers, by its value; a text stays one, as in `cell_of`.

    A limit, such as > 89 or <1.0, is the number in it; a cell that stands for "not known" among
    numbers alone, such as None, is missing.
    """
    if is_missing(text) or text.lower() in MISSING_NUMBERS:
        return None
    number = parse_number(without_limit(text).replace("\u2212", "-"))
    return number + 0.0 if math.isfinite(number) else text


def without_limit(text: str) -> str:
    """Return a number without the sign before it that makes it a limit."""
    return _LIMIT.sub("", text, count=1) if text[:1] in "<>\u2264\u2265" else text


def text_of(cell: Cell) -> str:
    """Write a cell as categories are named: equal numbers alike, "" for a missing cell."""
    if cell is None:
        return ""
    if isinstance(cell, str):
        return cell
    return str(int(cell)) if cell == int(cell) else repr(cell)


def is_in_form(cell: object) -> bool:
    """Tell whether a value is a cell in its one form."""
    if type(cell) is float:
        return abs(cell) <= LARGEST_NUMBER and (cell != 0 or math.copysign(1.0, cell) > 0)
    if type(cell) is str:
        return is_text(cell) and cell_of(cell) == cell == plain(cell)
    return cell is None


def is_text(text: str) -> bool:
    """Tell whether a text can be written as UTF-8: half of a surrogate pair cannot."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def plain(text: str) -> str:
    """Strip blanks, and write accented letters in their one form, which looks the same."""
    return unicodedata.normalize("NFC", text).strip()


def folded(text: str) -> str:
    """Return a text without capitals and extra blanks: texts that people take for one are equal."""
    return " ".join(text.split()).casefold()


def csv_line(texts: Iterable[str]) -> str:
    """Return a line of a CSV file for people, who may open it in a spreadsheet.

    A stranger may have written the texts. So marks that separate or quote cells, backslashes and
    characters that cannot be seen are written as escapes, and a text that a spreadsheet would run
    as a formula, or that begins with an apostrophe, gets an apostrophe in front; a number stays as
    it is. A line is a row in any program. `read_cell` takes all of that back.
    """
    return ",".join(map(_shown, texts)) + "\n"


def read_cell(shown: str) -> str:
    """Return the text that `csv_line` wrote as this cell; any other cell is a ValueError."""
    return _ESCAPE.sub(_letter, shown.removeprefix("'"))


def _shown(text: str) -> str:
    text = "".join(_escape(one) if _is_to_escape(one) else one for one in text)
    is_number = math.isfinite(parse_number(text))
    return f"'{text}" if _FORMULA.match(text) and not is_number else text


def _is_to_escape(letter: str) -> bool:
    return not letter.isprintable() or _UNSEEN_OR_A_MARK.match(letter) is not None


def _escape(letter: str) -> str:
    code = ord(letter)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _letter(escape: re.Match[str]) -> str:
    code = next(filter(None, escape.groups()), None)
    letter = None if code is None else chr(int(code, 16))
    if letter is None or not is_text(letter):
        raise ValueError("a backslash without a letter's code")
    return letter


def measurement(text: str) -> tuple[str, str] | None:
    """Split a measurement, such as 5.1 mg/dL, into number and unit; None if it is none."""
    found = _MEASUREMENT.fullmatch(text)
    return None if found is None else (found["number"], folded(found["unit"] or ""))
