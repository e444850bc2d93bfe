"""Writes the fields of a run's files into the reference page, from the record's types.

Run from the repository root: ``python -m tests.support.record_tables``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from pate_fed.record import TABLES, RecordTable, about

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "run-directory.md"
_ORDER = ("no", "pool", "yes")
_WORDS = {
    str: "text",
    bool: "true or false",
    int: "whole number",
    float: "number",
    type(None): "null",
}


class Field(NamedTuple):
    """A field of a file, or of each row of one of its lists and tables."""

    path: str
    kind: str
    text: str
    public: str


def fields_of(kind: type[RecordTable], place: str = "", public: str = "yes") -> Iterator[Field]:
    """All fields, in order: `[]` stands for each row of a list, `*` for any name."""
    for name, field in kind.model_fields.items():
        said, path = about(field), f"{place}.{name}".lstrip(".")
        seen = min(public, said.public, key=_ORDER.index)
        inner, step, word = _kind_of(field.annotation)
        unit = f"; in {said.unit}" if said.unit else ""
        if not field.is_required():
            word = f"{word.removesuffix(' or null')}, or absent"
        yield Field(path, word, said.text + unit, seen)
        if inner is not None:
            yield from fields_of(inner, path + step, seen)


def _kind_of(kind: Any) -> tuple[type[RecordTable] | None, str, str]:
    """The table inside a type, the step to it, and the type in words."""
    args, origin = get_args(kind), get_origin(kind)
    if isinstance(kind, type) and issubclass(kind, RecordTable):
        return kind, "", "table"
    if origin in (Union, UnionType):
        inner, step, _ = _kind_of(args[0])
        return inner, step, " or ".join(_kind_of(one)[2] for one in args)
    if origin is dict:
        inner, step, word = _kind_of(args[1])
        return inner, f".*{step}", f"{word} by name"
    if origin is tuple:
        inner, step, word = _kind_of(args[0])
        return inner, f"[]{step}", f"list: {word}"
    if origin is Literal:
        return None, "", " or ".join(f"`{one}`" for one in args)
    if origin is not None:  # Annotated
        return _kind_of(args[0])
    return None, "", _WORDS[kind]


def table(kind: type[RecordTable]) -> str:
    """The fields of a file as rows."""
    rows = [f"| `{one.path}` | {one.kind} | {one.text} | {one.public} |" for one in fields_of(kind)]
    return "\n".join(["| key | type | meaning | public |", "|---|---|---|---|", *rows])


def marked(file: str) -> re.Pattern[str]:
    """Where a file's table stands in the page."""
    begin, end = (re.escape(f"<!-- {word} of {file} -->") for word in ("fields", "end"))
    return re.compile(f"(?<={begin}\n).*?(?=\n{end})", re.DOTALL)


def written(page: str) -> str:
    """The page with the tables of today."""
    for file, kind in TABLES.items():
        page = marked(file).sub(lambda _, kind=kind: table(kind), page)  # type: ignore[misc]
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
