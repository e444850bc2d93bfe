"""Writes the lists of fields in the wire format's page, from the types in the code.

Run from the repository root: ``python -m tests.support.wire_format_tables``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from protocols.fields import Between, Length, Letters, Line, Message, field_types
from protocols.wire import MESSAGE_TYPES

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "wire-format.md"
BEGIN, END = "<!-- messages: written by a program -->\n", "<!-- end of messages -->\n"


def tables() -> str:
    """One block: the message types in the order of their numbers, each with its fields."""
    return "\n".join(["```text", "\n".join(map(_section, MESSAGE_TYPES.values())), "```", ""])


def written_tables(page: str) -> str:
    """What stands between the marks."""
    return page.partition(BEGIN)[2].partition(END)[0]


def _section(kind: type[Message]) -> str:
    purpose = f'"{kind.PURPOSE}"' if kind.PURPOSE else "unsigned"
    fields = field_types(kind)
    width = max(map(len, fields)) + 2
    return "\n".join(
        [
            f"{kind.TYPE} {kind.__name__}: {purpose}, {kind.MAX_BYTES:,}",
            *(f"  {name:{width}}{_described(hint)}" for name, hint in fields.items()),
            "",
        ]
    )


def _described(hint: Any) -> str:
    base, bound = get_args(hint)[:2] if get_origin(hint) is Annotated else (hint, None)
    if get_origin(base) is tuple:
        return f"[{_span(bound)}] {_described(get_args(base)[0])}"
    if base is bool:
        return "true/false"
    if isinstance(bound, Between):
        return f"{bound.least:,}..{bound.most:,}"
    assert isinstance(bound, Length)
    if isinstance(bound, Letters):
        return f"name:{_span(bound)}"
    if isinstance(bound, Line):
        return f"line:{_span(bound)}"
    if base is str:
        return f"text:{_span(bound)}"
    return f"bytes:{_span(bound)}"


def _span(size: Length) -> str:
    return f"{size.least:,}" if size.least == size.most else f"{size.least:,}..{size.most:,}"


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    PAGE.write_text(before + BEGIN + tables() + END + rest.partition(END)[2], encoding="utf-8")
