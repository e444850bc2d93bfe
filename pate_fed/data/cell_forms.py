"""Columns as exports write them, in the form that everybody reads: numbers, codes, dates.

Each column's form follows from its own cells alone, so that coordinator, hospitals and whoever uses
a student read a column alike. Sentences about it show no number of a cell, only its form (digits as
9), and no count below a floor.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from typing import Final

import numpy as np

from pate_fed.cells import (
    MISSING_NUMBERS,
    is_code,
    is_missing,
    measurement,
    number_of,
    parse_number,
    text_of,
    without_limit,
)
from pate_fed.data.csv_file import CsvTable
from pate_fed.errors import InvalidCellError

FLOOR: Final = 10
"""Smallest count that a sentence shows."""

_MOST_SHOWN = 5
_MOST_COLUMNS = 20
_MOST_LETTERS = 24
_SAMPLE = 200
_MANY_TEXTS = 20
"""Different cells from which on a column of texts that hold digits is asked about."""

_AGAIN = 3
"""Rows from which on a value is said to come again and again."""

_DAY_0 = date(2000, 1, 1)
_FIRST_DAY = date(1900, 1, 1)
"""Day 0 or 1 of spreadsheets, where a day is not known."""

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_OTHER_MONTHS = {"m\u00e4r": "Mar", "mrz": "Mar", "mai": "May", "okt": "Oct", "dez": "Dec"}
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_TIME = (
    r"(?:[T: ]\s*(?P<h>\d{1,2}):(?P<min>\d\d)(?::\d\d(?:[.,]\d+)?)?\s*(?P<half>[AP]M)?"
    r"\s*(?:Z|[+-]\d\d:?\d\d)?)?"
)
_WEEKDAY = r"(?:[^\W\d_]{2,10}[.,]+ *)?"
_COMPACT = re.compile(r"(?P<y>(?:19|20|99)\d\d)(?P<m>\d\d)(?P<d>\d\d)(?P<h>)(?P<half>)", re.ASCII)
_DATES = (
    re.compile(r"(?P<y>\d{4})([-/.])(?P<m>\d{1,2})\2(?P<d>\d{1,2})" + _TIME, re.ASCII | re.I),
    re.compile(r"(?P<d>\d{1,2})\.(?P<m>\d{1,2})\.(?P<y>\d{4})" + _TIME, re.ASCII | re.I),
    re.compile(
        _WEEKDAY + r"(?P<d>\d{1,2})[-. ]*(?P<name>[^\W\d_]{3,9})[-., ]*(?P<y>\d{4})" + _TIME, re.I
    ),
    re.compile(
        _WEEKDAY + r"(?P<name>[^\W\d_]{3,9})\.? (?P<d>\d{1,2}),? (?P<y>\d{4})" + _TIME, re.I
    ),
    _COMPACT,
)
_EITHER = re.compile(r"(?P<a>\d{1,2})([/-])(?P<b>\d{1,2})\2(?P<y>\d{4})" + _TIME, re.ASCII | re.I)
"""Day and month in either order: the whole column tells which."""

_GROUPS = re.compile(
    r"[+\u2212-]?\d{1,3}(?:(?P<sign>[,' \u00a0\u2009\u202f\u2019])\d{3})(?:(?P=sign)\d{3})*"
    r"(?:\.\d+)?",
    re.ASCII,
)
_POINTS = re.compile(r"[+\u2212-]?\d{1,3}(\.\d{3})+", re.ASCII)
_GERMAN_GROUPS = re.compile(r"[+\u2212-]?\d{1,3}(\.\d{3})+,\d+", re.ASCII)
_WHOLE = re.compile(r"[+\u2212-]?\d{1,3}", re.ASCII)
_DECIMALS = re.compile(r"[+\u2212-]?\d*\.(\d{1,2}|\d{4,})", re.ASCII)
_SMALL = re.compile(r"[+\u2212-]?\d{1,3}(?:\.\d+)?", re.ASCII)
_GERMAN = re.compile(
    r"(?P<whole>[+\u2212-]?(?:\d{1,3}(?:[. \u00a0\u2009\u202f'\u2019]\d{3})+|\d+))"
    r"(?P<decimals>,\d+)?(?=$|[eE ]|[^\d,.])",
    re.ASCII,
)
_POINT = re.compile(r"[+\u2212-]?\d*\.\d+", re.ASCII)
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
_MARKED = re.compile(r"[^\w\s]{0,3}\s?\d")
_NO_DIGIT = re.compile(r"[^\d+\u2212-]", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Read:
    """A column as it is read: cells for each cell, one for each column that comes of it.

    `thousands` asks whether its points stand between these: only where `has_decimals` of another
    column says that the file writes numbers as they come, not all with three decimals.
    """

    names: tuple[str, ...]
    cells: Mapping[str, tuple[str, ...]]
    asked: str = ""
    said: str = ""
    gaps: tuple[str, ...] = ()
    thousands: str = ""
    has_decimals: bool = False


def typed(text: CsvTable, *, apart: Collection[str] = (), floor: int = FLOOR) -> CsvTable:
    """Return a table whose columns are in the form that everybody reads.

    A column of numbers has numbers and gaps, a date becomes columns of its own: days, weekday,
    month, hour. Columns that no rule fits stay as they are.

    Args:
        apart: Columns that are no features: they stay, too.
        floor: Smallest count of cells that a sentence shows.
    """
    if text.is_typed:
        return text
    header, columns = list[str](), list[tuple[str, ...]]()
    asked, said, gaps = list[str](), list[str](), list[str]()
    taken = set(text.header)
    thousands, has_decimals = list[str](), False
    for name, cells in zip(text.header, text.columns, strict=True):
        counts = Counter(() if name in apart else cells)
        found = _read(name, counts, floor) if counts else None
        if found is None or not taken.isdisjoint(set(found.names) - {name}):
            header.append(name)
            columns.append(cells)
            continue
        asked += [found.asked] if found.asked else []
        said += [found.said] if found.said else []
        thousands += [found.thousands] if found.thousands else []
        has_decimals |= found.has_decimals
        gaps += _gaps_said(name, found.gaps, counts, floor)
        for place, each in enumerate(found.names):
            values = {cell: read[place] for cell, read in found.cells.items()}
            header.append(each)
            columns.append(tuple(values.get(cell, cell) for cell in cells) if values else cells)
    return replace(
        text,
        header=tuple(header),
        columns=tuple(columns),
        asked=(*text.asked, *asked, *(thousands if has_decimals else ())),
        notes=(*text.notes, *said, *_in_one("Counted as missing", gaps)),
        is_typed=True,
    )


def with_points(text: CsvTable) -> CsvTable:
    """Return a table of decimal commas with points before decimals, and no sign of thousands.

    Raises:
        InvalidCellError: a number has a point that stands between no thousands.
    """
    columns = []
    for name, cells in zip(text.header, text.columns, strict=True):
        changed = {cell: _pointed(cell) for cell in set(cells)}
        odd = {cell for cell in changed if _POINT.fullmatch(cell) and not _POINTS.fullmatch(cell)}
        if odd:
            line = next(line for line, cell in zip(text.lines, cells, strict=True) if cell in odd)
            raise InvalidCellError(
                f"column {name!r} of {text.file_name} must have a comma before decimals, as "
                "--decimal , says; or leave it out with --ignore",
                f"a point in line {line}",
            )
        columns.append(tuple(map(changed.__getitem__, cells)))
    return replace(text, columns=tuple(columns))


def counted(cells: int, floor: int = FLOOR) -> str:
    """Write how many cells there are, but no count below a floor."""
    return f"{cells} cells" if cells >= floor else f"fewer than {floor} cells"


# Numbers ------------------------------------------------------------------------------------------


def _read(name: str, counts: Counter[str], floor: int) -> _Read:
    """Return how a column is read; without cells where it stays as it is."""
    known = [cell for cell in counts if not is_missing(cell)]
    if not known:
        return _Read((name,), {}, said=f"Column {name!r} has no value in any row.")
    if any(map(is_code, known)) and all(cell.isdigit() for cell in known):
        said = (
            f"Column {name!r} has zeros before whole numbers: they are codes, and it is read as "
            "categories."
        )
        return _Read((name,), {}, said=said)
    return _dates(name, counts, known, floor) or _numbers(name, counts, known, floor)


def _numbers(name: str, counts: Counter[str], known: list[str], floor: int) -> _Read:
    groups = _without_groups(known)
    plain = {cell: groups.get(cell, cell) for cell in known}
    read = {cell: number_of(one) for cell, one in plain.items()}
    gaps = [cell for cell in known if read[cell] is None]
    others = [
        cell
        for cell in known
        if isinstance(read[cell], str)
        and (measurement(plain[cell]) or ("", ""))[1] == ""
        and parse_number(plain[cell]) != float("inf")
    ]
    units = {(measurement(plain[cell]) or ("", ""))[1] for cell in known} - {""}
    numbers = len(known) - len(gaps) - len(others)
    rows = sum(counts[cell] for cell in known)
    odd = sum(counts[cell] for cell in others)
    missing = sum(counts[cell] for cell in gaps)
    is_one_unit = len(units) <= 1 and not (units and any(map(_is_plain, plain.values())))
    if not numbers or not is_one_unit or 2 * (rows - odd - missing) <= rows - missing:
        return _Read((name,), {}, _texts_asked(name, counts, known))
    if others:
        return _Read((name,), {}, _others_asked(name, "numbers", others, counts, floor))
    changed = dict.fromkeys(gaps, ("",))
    if units:  # of measurements, whose unit is read later
        return _Read((name,), changed, gaps=tuple(gaps))
    changed |= {
        cell: (text_of(value),)
        for cell, value in read.items()
        if isinstance(value, float) and parse_number(cell) != value
    }
    values = {cell: value for cell, value in read.items() if isinstance(value, float)}
    asked = _apart_asked(name, counts, values)
    limits = [cell for cell in known if without_limit(plain[cell]) != plain[cell]]
    said = list[str]()
    if groups:
        said.append(f"Column {name!r} has a sign between thousands, which is left out.")
    if limits:
        number = counted(sum(counts[cell] for cell in limits), floor)
        said.append(
            f"Column {name!r}: limits such as {_form(min(limits))} are read as the number in them, "
            f"in {number}."
        )
    return _Read(
        (name,),
        changed,
        asked,
        " ".join(said),
        tuple(gaps),
        thousands=_points_asked(name, known),
        has_decimals=any(map(_DECIMALS.fullmatch, known)),
    )


def _is_plain(cell: str) -> bool:
    """Tell whether a cell is a number without a unit."""
    return isinstance(number_of(cell), float)


def _texts_asked(name: str, counts: Counter[str], known: Sequence[str]) -> str:
    """Ask about texts that begin with a digit, or a sign and a digit: numbers with a mark."""
    if all(map(_DECIMAL_COMMA.fullmatch, known)):
        return f"Column {name!r} is read as text: are these decimal commas? Then give --decimal ,"
    marked = [cell for cell in known if _MARKED.match(unicodedata.normalize("NFKC", cell))]
    forms = Counter[str]()
    for cell in marked:
        forms[_form(cell)] += counts[cell]
    if len(marked) < _MANY_TEXTS or 2 * forms.total() <= sum(counts[cell] for cell in known):
        return ""
    listed = ", ".join(form for form, _ in forms.most_common(_MOST_SHOWN))
    return (
        f"Column {name!r} is read as text; most of its cells are like {listed}: if these are "
        "numbers, times or dates, export them without marks, all in one form; codes may stay."
    )


def _gaps_said(name: str, gaps: Sequence[str], counts: Counter[str], floor: int) -> Iterator[str]:
    """Say which cells of a column are missing, beside empty ones."""
    found = sorted({*gaps, *(cell for cell in counts if cell and is_missing(cell))})
    if found:
        rows = counted(sum(counts[cell] for cell in found), floor)
        yield f"{_listed(found)} in {name!r} ({rows})"


def _in_one(what: str, parts: Sequence[str]) -> Iterator[str]:
    if parts:
        more = len(parts) - _MOST_COLUMNS
        listed = "; ".join(parts[:_MOST_COLUMNS])
        yield f"{what}: {listed}{f'; and in {more} more columns' if more > 0 else ''}."


def _without_groups(known: Sequence[str]) -> dict[str, str]:
    """Return numbers without the sign between their thousands, if that is what it is there."""
    grouped, signs = dict[str, str](), set[str]()
    has_points = False
    for cell in known:
        plain = without_limit(cell)
        found = _GROUPS.fullmatch(plain)
        if found:
            signs.add(found["sign"])
            grouped[cell] = cell.replace(found["sign"], "")
        elif _POINTS.fullmatch(plain) and plain.count(".") > 1:
            has_points = True
        elif isinstance(number_of(plain), float) and not _SMALL.fullmatch(plain):
            return {}  # a number of more than three digits without a sign
    german = {cell for cell in known if _GERMAN_GROUPS.fullmatch(without_limit(cell))}
    if german and len(german) == len(known):
        return {cell: _pointed(cell) for cell in german}
    if has_points and not grouped:
        if all(
            _POINTS.fullmatch(one) or _WHOLE.fullmatch(one) for one in map(without_limit, known)
        ):
            return {cell: cell.replace(".", "") for cell in known if "." in cell}
        return {}
    return grouped if len(signs) == 1 else {}


def _pointed(cell: str) -> str:
    """Return a cell of a table of decimal commas with a point for the comma."""
    limit = cell[: len(cell) - len(without_limit(cell))]
    found = _GERMAN.match(cell, len(limit))
    if found is None:
        return cell
    whole = found["whole"][:1] + _NO_DIGIT.sub("", found["whole"][1:])
    decimals = (found["decimals"] or "").replace(",", ".")
    return limit + whole + decimals + cell[found.end() :]


def _points_asked(name: str, known: Sequence[str]) -> str:
    """Ask about points that may stand between thousands: three digits follow each of them."""
    pointed = [cell for cell in known if "." in cell]
    if (
        len(pointed) < FLOOR
        or not all(_POINTS.fullmatch(cell) for cell in pointed)
        or any(cell.lstrip("+-\u2212").startswith("0") for cell in pointed)
        or not all(_POINTS.fullmatch(cell) or _WHOLE.fullmatch(cell) for cell in known)
    ):
        return ""
    return (
        f"Column {name!r} has three digits after each point, and is read as 9.999: if the point "
        "stands between thousands, export it without; with decimal commas give --decimal ,"
    )


def _apart_asked(name: str, counts: Counter[str], values: Mapping[str, float]) -> str:
    """Ask about an extreme value that comes again and again, outside the range of all others."""
    rows = Counter[float]()
    for cell, value in values.items():
        rows[value] += counts[cell]
    found = []
    listed = sorted(rows)
    for _ in range(2):  # another may hide behind the first
        for extreme, rest in ((listed[-1:], listed[:-1]), (listed[:1], listed[1:])):
            if len(rest) >= 2 and rows[extreme[0]] >= _AGAIN and _is_apart(extreme[0], rest, rows):
                found.append(extreme[0])
                listed = rest
    if not found:
        return ""
    asked = " ".join(f"--missing {name}={text_of(one)}" for one in sorted(found))
    many = ", ".join(text_of(one) for one in sorted(found))
    return (
        f"Column {name!r}: {many} comes again, apart from all other values: if it stands for “not "
        f"known”, give {asked}"
    )


def _is_apart(value: float, others: Sequence[float], rows: Mapping[float, int]) -> bool:
    low, high = others[0], others[-1]
    gap = value - high if value > high else low - value
    if is_typical(value):
        if value < 0:
            return low >= 0
        return gap > 0.5 * (high - low) or gap > 3 * float(np.median(np.diff(others)) + high - low)
    return gap > 2 * (high - low) and rows[value] >= FLOOR


def is_typical(value: float) -> bool:
    """Tell whether people write a number for “not known”: -1, -9, 99, 999, 888, -99.9."""
    text = text_of(abs(value)).replace(".", "")
    return value == -1 or (len(text) > 1 - (value < 0) and set(text) in ({"9"}, {"8"}, {"7"}))


# Dates --------------------------------------------------------------------------------------------


def _dates(name: str, counts: Counter[str], known: Sequence[str], floor: int) -> _Read | None:
    filled = [cell for cell in known if cell.lower() not in MISSING_NUMBERS]
    if not filled:
        return None
    found = max((_days(one, filled) for one in _DATES), key=len)
    if len(found) < len(filled):
        either = _matches(_EITHER, filled)
        days = {day: _days(_EITHER, filled, day) for day in ("a", "b")}
        if len(either) == len(filled) == len(days["a"]) == len(days["b"]):
            asked = (
                f"Column {name!r} has dates whose day and month cannot be told apart, and is read "
                "as text: write them as 2026-01-31, or leave the column out with --ignore."
            )
            return _Read((name,), {}, asked)
        found = max(found, days["a"], days["b"], key=len)
    if 2 * sum(counts[cell] for cell in found) <= sum(counts[cell] for cell in filled):
        return None
    others = [cell for cell in filled if cell not in found]
    if others:
        return _Read((name,), {}, _others_asked(name, "dates", others, counts, floor))
    hours = [hour for _, hour in found.values() if hour is not None]
    names = [f"{name} ({one})" for one in ("days", "weekday", "month")]
    if any(hours):
        names.append(f"{name} (hour)")
    cells = {cell: _date_cells(*one)[: len(names)] for cell, one in found.items()}
    cells |= {cell: ("",) * len(names) for cell in counts if cell not in cells}
    said = (
        f"Column {name!r} has dates: it is read as days since {_DAY_0}, weekday and month"
        f"{', and hour' if any(hours) else ''}."
    )
    return _Read(
        tuple(names), cells, _far_asked(name, {cell: day for cell, (day, _) in found.items()}), said
    )


def _others_asked(
    name: str, what: str, others: Sequence[str], counts: Mapping[str, int], floor: int
) -> str:
    """Ask about the cells of a column that are not of its kind."""
    few = sorted(others, key=lambda cell: (-counts[cell], cell))
    return (
        f"Column {name!r} holds {what} but for {_listed(few)}, in "
        f"{counted(sum(counts[cell] for cell in others), floor)}, and is read as text: if they "
        "stand for “not known”, give --missing VALUE for each; else correct them, or leave the "
        "column out with --ignore."
    )


def _far_asked(name: str, days: Mapping[str, date]) -> str:
    """Ask about days that nobody lived, such as 31.12.9999; they are nobody's, and so are shown."""
    far = sorted(
        cell for cell, day in days.items() if not 1850 <= day.year < 2100 or day == _FIRST_DAY
    )
    if not far or len(far) > _MOST_SHOWN:
        return ""
    asked = " ".join(f"--missing '{name}={cell}'" for cell in far)
    return (
        f"Column {name!r} has days that stand for none: if they stand for “not known”, give {asked}"
    )


def _matches(form: re.Pattern[str], cells: Iterable[str]) -> dict[str, re.Match[str]]:
    found = {cell: form.fullmatch(cell) for cell in cells}
    return {cell: match for cell, match in found.items() if match is not None}


def _days(
    form: re.Pattern[str], cells: Sequence[str], day: str = ""
) -> dict[str, tuple[date, int | None]]:
    """Return day and hour of the cells that are dates of a form; none where some say it is another.

    Among whole numbers a date must be no chance.
    """
    found = dict[str, tuple[date, int | None]]()
    if not _matches(form, cells[:: 1 + len(cells) // _SAMPLE]):
        return found  # most columns are no dates, and may have a million cells
    for cell, match in _matches(form, cells).items():
        with suppress(ValueError):
            found[cell] = _parts(match, day)
    return found if form is not _COMPACT or len(found) == len(cells) else {}


def _parts(match: re.Match[str], day: str) -> tuple[date, int | None]:
    """Return day and hour of a cell; a day that no calendar has is a ValueError."""
    facts = match.groupdict()
    if "name" in facts:
        name = facts["name"][:3]
        month = 1 + _MONTHS.index(_OTHER_MONTHS.get(name.lower(), name.title()))
    else:
        month = int(facts["m"] if "m" in facts else facts["b" if day == "a" else "a"])
    found = date(int(facts["y"]), month, int(facts["d"] if "d" in facts else facts[day]))
    if not facts["h"]:
        return found, None
    hour = int(facts["h"])
    if facts["half"]:
        hour = hour % 12 + 12 * (facts["half"].upper() == "PM")
    if hour > 24:
        raise ValueError(hour)
    return found, hour % 24


def _date_cells(day: date, hour: int | None) -> tuple[str, ...]:
    return (
        str((day - _DAY_0).days),
        _DAYS[day.weekday()],
        _MONTHS[day.month - 1],
        "" if hour is None else str(hour),
    )


# Words --------------------------------------------------------------------------------------------


def _listed(cells: Sequence[str]) -> str:
    forms = list(dict.fromkeys(map(_form, cells)))
    more = len(forms) - _MOST_SHOWN
    return ", ".join(forms[:_MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _form(cell: str) -> str:
    """Return a cell's form in quotes: its digits as 9."""
    shown = re.sub(r"\d", "9", cell)
    return repr(shown if len(shown) <= _MOST_LETTERS else f"{shown[:_MOST_LETTERS]}...")
