"""Tests assert facts; the product's sentences stand in `tests/renderings` alone.

``python -m tests.test_sentences`` lists the quoted sentences that are left.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

MOST = 60
"""Quoted sentences in all tests: words of the tests' own, and where a sentence is the fact."""

_TESTS = Path(__file__).parent
_PRODUCT = ("coordinator", "party", "pate_fed", "protocols")
_WORD = re.compile(r"[A-Za-z][A-Za-z'\u2019-]*")
_LEAST_ASSERTED, _LEAST_MATCHED = 3, 2
"""Words in a row, as the product has them, that make a sentence; fewer name a thing."""

Quoted = tuple[str, int, str]
"""File, line and text."""


@lru_cache
def said() -> str:
    """All that the product can say: its sources, each string in one piece."""
    paths = (path for name in _PRODUCT for path in (_TESTS.parent / name).rglob("*.*"))
    text = " ".join(path.read_text("utf-8") for path in paths if path.suffix in (".py", ".j2"))
    return " ".join(re.sub(r"[\"']\s+f?[\"']", "", text).split())


def is_sentence(text: str, least: int) -> bool:
    """Whether so many words in a row stand in the product, too."""
    rows = re.split(r"[^A-Za-z'\u2019,.:; -]", text)
    for row in rows:
        words = [word for word in row.split(" ") if word]
        for at in range(len(words) - least + 1):
            some = words[at : at + least]
            if all(map(_WORD.match, some)) and " ".join(some).strip(",.:;") in said():
                return True
    return False


def literals(node: ast.AST) -> Iterator[tuple[int, str]]:
    """The strings of an expression; a value within one is a pair of braces."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.lineno, node.value
    elif isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.param":
        for value in node.args:  # its id is none
            yield from literals(value)
    elif isinstance(node, ast.JoinedStr):
        parts = (getattr(part, "value", "{}") for part in node.values)
        yield node.lineno, "".join(one if isinstance(one, str) else "{}" for one in parts)
    else:
        for child in ast.iter_child_nodes(node):
            yield from literals(child)


def tables(function: ast.AST) -> dict[str, list[ast.AST]]:
    """Where the values of a test's names stand: its table of cases, its loops and assignments."""
    known: dict[str, list[ast.AST]] = {}

    def note(names: ast.AST | list[str], row: ast.AST) -> None:
        if isinstance(names, ast.Name):
            names = [names.id]
        elif isinstance(names, ast.Tuple):
            names = [getattr(one, "id", "") for one in names.elts]
        elif isinstance(names, ast.AST):
            return
        cells = [row]
        if len(names) > 1:
            cells = row.args if isinstance(row, ast.Call) else getattr(row, "elts", [])
        for name, cell in zip(names, cells, strict=False):
            known.setdefault(name, []).append(cell)

    for node in ast.walk(function):
        if isinstance(node, ast.For):
            for row in getattr(node.iter, "elts", []):
                note(node.target, row)
        elif isinstance(node, ast.Assign):
            note(node.targets[0], node.value)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("parametrize"):
            names = [name for _, text in literals(node.args[0]) for name in re.split(", ?", text)]
            for row in getattr(node.args[1], "elts", []):
                note(names, row)
    return known


def asserted(function: ast.AST) -> Iterator[tuple[ast.AST, int]]:
    """The expressions that a test asserts or matches, each with the words that make a sentence."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            yield node.test, _LEAST_ASSERTED
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("pytest.raises", "raises"):
            yield from ((one.value, _LEAST_MATCHED) for one in node.keywords if one.arg == "match")


def quoted(path: Path) -> list[Quoted]:
    """The sentences that a file's tests assert, each once."""
    found = set[Quoted]()
    tree = ast.parse(path.read_text("utf-8"))
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            known = tables(function)
            for expression, least in asserted(function):
                names = [one.id for one in ast.walk(expression) if isinstance(one, ast.Name)]
                for node in (expression, *(one for name in names for one in known.get(name, []))):
                    for line, text in literals(node):
                        if is_sentence(text, least):
                            found.add((f"{path.parent.name}/{path.name}", line, text))
    return sorted(found)


def all_quoted() -> list[Quoted]:
    """The sentences of all tests."""
    paths = set(_TESTS.rglob("test_*.py")) - {Path(__file__)}
    return [one for path in sorted(paths) for one in quoted(path)]


def test_few_sentences_are_quoted() -> None:
    found = all_quoted()
    assert len(found) <= MOST, "\n".join(f"{path}:{line}: {text}" for path, line, text in found)


def test_a_sentence_is_found_wherever_it_stands(tmp_path: Path) -> None:
    """In an assertion, a match, a table of cases, a loop, an assignment; and no fact is."""
    lines = """
@pytest.mark.parametrize(("words", "code"), [pytest.param("must be there", "PF-101", id="any")])
def test_any(words, code):
    \"\"\"No sentence of a docstring: must be there.\"\"\"
    said = f"{code} must be readable"
    for each in ("must be whole", "fact"):
        assert each in ended.out
    assert said in ended.out
    assert "7 of one hospital" in ended.out, "must be a sentence for a reader"
    assert words in ended.out
    with pytest.raises(ValueError, match="must be"):
        call("no sentence of a call: must be there")
    assert (ended.code, "PF-101", "--option", "zebras sing softly here", "two words") == facts
"""
    path = tmp_path / "test_made.py"
    path.write_text(lines, encoding="utf-8")
    expected = (
        *("must be there", "{} must be readable", "must be whole", "7 of one hospital", "must be"),
    )
    assert tuple(text for _, _, text in quoted(path)) == expected


if __name__ == "__main__":
    for where, line, text in all_quoted():
        print(f"{where}:{line}: {text}")
    print(len(all_quoted()))
