"""Count noun clauses that open with "what" or "whoever", per 10,000 words.

Run `python -m benchmarks.wording` for one line per package, or with `--files` for one line per
file that holds any.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("protocols", "party", "coordinator", "pate_fed")
CLAUSE = re.compile(r"\b(?:what|whatever|whoever|whomever|whichever|that which)\b", re.IGNORECASE)
WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def docstrings(tree: ast.AST) -> Iterator[str]:
    """Yield the text of every docstring: modules, classes, functions, attributes."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield text


def shown(tree: ast.AST) -> Iterator[str]:
    """Yield the string constants of several words outside docstrings."""
    skipped = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if " " in text and id(node) not in skipped:
                yield text


def trees(*folders: str) -> Iterator[tuple[Path, ast.Module]]:
    """Yield the path and the syntax tree of every module below `folders`."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path, ast.parse(path.read_text(encoding="utf-8"))


def count(text: str) -> tuple[int, int]:
    """Return the words and the clauses of `text`; a question's "what" is no clause."""
    prose = re.sub(r"\bwhat\b[^.;:]*\?", "", text, flags=re.IGNORECASE)
    return len(WORD.findall(text)), len(CLAUSE.findall(prose))


def row(name: str, texts: list[str]) -> str:
    """Format the count of `texts` as one line."""
    words, clauses = count("\n\n".join(texts))
    return f"{name:<44} {words:>7} {clauses:>5} {10_000 * clauses / max(words, 1):>7.1f}"


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", action="store_true", help="one line per module")
    if parser.parse_args().files:
        for path, tree in trees(*PACKAGES):
            texts = list(docstrings(tree))
            if count("\n\n".join(texts))[1]:
                print(row(str(path.relative_to(ROOT)), texts))
        return
    print(f"{'texts':<44} {'words':>7} {'found':>5} {'/10,000':>7}")
    together: list[str] = []
    for package in PACKAGES:
        texts = [text for _, tree in trees(package) for text in docstrings(tree)]
        together += texts
        print(row(f"docstrings of {package}", texts))
    print(row("docstrings of all four", together))
    commands = trees("party/cli", "coordinator/cli")
    print(row("strings of the commands", [text for _, tree in commands for text in shown(tree)]))
    strings = [text for _, tree in trees(*PACKAGES) for text in shown(tree)]
    print(row("strings of all four", strings))
    pages = [page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").rglob("*.md"))]
    print(row("docs", [FENCED.sub("", page) for page in pages]))


if __name__ == "__main__":
    main()
