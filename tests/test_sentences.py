"""Tests assert facts; the product's sentences stand in `tests/renderings` alone.

``python -m tests.test_sentences`` lists the quoted sentences that are left.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

MOST = 60
"""Quoted sentences in all tests: words of the tests' own, and where a sentence is the fact."""

_TESTS = Path(__file__).parent
_WORD = r"[A-Za-z][A-Za-z'\u2019-]*[,.:;!?]?"
_SENTENCE = re.compile(rf"(?<![^\s(\"'`>]){_WORD}(?: {_WORD}){{2,}}(?![^\s)\"'`<.])")
"""Three words or more."""
_TEXT = re.compile(rf"(?<![^\s(\"'`>])(?:{_WORD} {_WORD}|{_WORD} \S+ {_WORD})(?![^\s)\"'`<.])")
"""Two words or more: enough for an error."""

Quoted = tuple[str, int, str]
"""File, line and text."""


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


def asserted(function: ast.AST) -> Iterator[tuple[ast.AST, re.Pattern[str]]]:
    """The expressions that a test asserts or matches, each with what counts as a sentence in it."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            yield node.test, _SENTENCE
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("pytest.raises", "raises"):
            yield from ((one.value, _TEXT) for one in node.keywords if one.arg == "match")


def quoted(path: Path) -> list[Quoted]:
    """The sentences that a file's tests assert, each once."""
    found = set[Quoted]()
    tree = ast.parse(path.read_text("utf-8"))
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            known = tables(function)
            for expression, sentence in asserted(function):
                names = [one.id for one in ast.walk(expression) if isinstance(one, ast.Name)]
                for node in (expression, *(one for name in names for one in known.get(name, []))):
                    for line, text in literals(node):
                        if sentence.search(text):
                            found.add((f"{path.parent.name}/{path.name}", line, text))
    return sorted(found)


def all_quoted() -> list[Quoted]:
    """The sentences of all tests."""
    return [one for path in sorted(_TESTS.rglob("test_*.py")) for one in quoted(path)]


def test_few_sentences_are_quoted() -> None:
    found = all_quoted()
    assert len(found) <= MOST, "\n".join(f"{path}:{line}: {text}" for path, line, text in found)


def test_a_sentence_is_found_wherever_it_stands(tmp_path: Path) -> None:
    """In an assertion, a match, a table of cases, a loop, an assignment; and no fact is."""
    lines = """
@pytest.mark.parametrize(("words", "code"), [pytest.param("in a table", "PF-101", id="any one id")])
def test_any(words, code):
    \"\"\"No sentence of a docstring.\"\"\"
    said = f"{code} in an assignment"
    for each in ("in a loop", "fact"):
        assert each in ended.out
    assert said in ended.out
    assert "in an assertion" in ended.out, "no sentence for a reader"
    assert words in ended.out
    with pytest.raises(ValueError, match="two words"):
        call("no sentence of a call")
    assert (ended.code, "PF-101", "--option", "two words") == ended.facts
"""
    path = tmp_path / "test_made.py"
    path.write_text(lines, encoding="utf-8")
    expected = ("in a table", "{} in an assignment", "in a loop", "in an assertion", "two words")
    assert tuple(text for _, _, text in quoted(path)) == expected


if __name__ == "__main__":
    for where, line, text in all_quoted():
        print(f"{where}:{line}: {text}")
    print(len(all_quoted()))
