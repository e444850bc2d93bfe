"""Stored renderings: the wording of pages and commands, one text file each in `tests/renderings`.

`make renderings` writes them anew; what a change does to the words is then read in the diff. All
other tests assert facts.
"""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Mapping
from difflib import unified_diff
from html.parser import HTMLParser
from pathlib import Path
from types import MappingProxyType

RENDERINGS = Path(__file__).parents[1] / "renderings"
_VOID = frozenset({"meta", "link", "br", "input", "hr", "img", "path", "use", "rect"})
_INLINE = frozenset(
    {"a", "abbr", "b", "code", "data", "em", "i", "kbd", "q", "s", "small", "span", "strong"}
    | {"sub", "sup", "time", "u", "var", "wbr"}
)
_VARYING = (
    (r"\b\d{4}-\d{2}-\d{2}(?:[ T]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?Z?)?\b", "DATE"),
    (r"\b[0-9a-f]{12,}\b", "KEY"),
    (r"\b(?:[a-z]{3,8} +){11}[a-z]{3,8}\b(?=\n|$)", "TWELVE WORDS"),
    (r"\b[\d,.]+ (?:bytes|kB)(?! on average)\b", "N bytes"),
    (r"pate_fed \d[\w.]*", "pate_fed VERSION"),
    (rf"\b{re.escape(getpass.getuser())}, command line", "USER, command line"),
    (r"Usage: .*?(?=pate-)", "Usage: "),
)
"""Differs from run to run, or from machine to machine."""


class _Words(HTMLParser):
    """The text of a page: one line for each block, the cells of a table's row side by side."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self._hidden: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._hidden or tag in ("style", "script", "svg"):
            self._hidden += [] if tag in _VOID else [tag]
            return
        if tag in ("td", "th"):
            self.text += " | "
        elif tag not in _INLINE:
            self.text += "\n"
        for name, value in attrs:
            if name in ("aria-label", "placeholder", "title", "alt") and value:
                self.text += f"[{value}] "

    def handle_endtag(self, tag: str) -> None:
        if self._hidden:
            while self._hidden and self._hidden.pop() != tag:
                pass
        elif tag not in _INLINE and tag not in ("td", "th"):
            self.text += "\n"

    def handle_data(self, data: str) -> None:
        if not self._hidden or self._hidden[-1] == "desc":
            self.text += re.sub(r"\s+", " ", data)


def words_of(page: str, *, whole: bool = True) -> str:
    """The text of an HTML page, without markup; or of what stands between its `main` tags alone."""
    if not whole:
        page = page[page.index("<main") : page.index("</main>")]
    lines = (" ".join(line.split()).removeprefix("| ") for line in _Words(page).text.split("\n"))
    return "\n".join(line for line in lines if line)


def changed_lines(text: str, base: str) -> str:
    """The lines of a text that its base lacks: what a variant of a page says otherwise."""
    known = set(_normal(base).split("\n"))
    return "\n".join(line for line in _normal(text).split("\n") if line not in known)


def sections(parts: dict[str, str]) -> str:
    """One text of several, each under its name; without those that are empty."""
    return "\n\n".join(f"=== {name}\n{text.strip()}" for name, text in parts.items() if text)


def hold(name: str, text: str, names: Mapping[str, str] = MappingProxyType({})) -> None:
    """Compare a text with the stored rendering; where they are renewed, store it.

    Args:
        name: Name of the file, without its ending.
        text: The text. Dates, keys and the like are replaced.
        names: What else differs from run to run, each with the word to write.
    """
    for found, word in names.items():
        text = text.replace(found, word)
    text = _normal(text)
    path = RENDERINGS / f"{name}.txt"
    if os.environ.get("PATE_FED_RENEW_RENDERINGS"):
        path.write_text(text, encoding="utf-8")
    else:
        stored = path.read_text(encoding="utf-8") if path.exists() else ""
        changed = list(unified_diff(stored.split("\n"), text.split("\n"), lineterm="", n=0))
        assert changed == [], f"`make renderings` renews {path.name}:\n" + "\n".join(changed)


def _normal(text: str) -> str:
    for pattern, word in _VARYING:
        text = re.sub(pattern, word, text)
    return "\n".join(line.rstrip() for line in text.strip().split("\n")) + "\n"
