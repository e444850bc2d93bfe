from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocols import errors
from protocols.envelope import SealingKey
from protocols.errors import (
    BadSignatureError,
    ProtocolError,
    RefusedError,
    RemoteProtocolError,
    RestoredJournalError,
    TooFewHeadsError,
    TooFewPartiesError,
    TooFewSharesError,
)
from protocols.identity import SigningIdentity
from protocols.pair_keys import PairRoots

ALL = [
    kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, Exception) and not name.startswith("_")
]
FACTS: dict[type[ProtocolError], dict[str, object]] = {
    RefusedError: {"reason": "PF-301", "peer": ""},
    RestoredJournalError: {"shown": 2, "counter": 1},
    TooFewPartiesError: {"received": 2, "threshold": 3},
    TooFewSharesError: {"received": 2, "threshold": 3},
    TooFewHeadsError: {"received": 2, "threshold": 3},
}
"""Errors that are made of facts, and make their own message."""
MADE_OF_FACTS = tuple(FACTS)


def test_every_error_has_a_code_of_its_own() -> None:
    codes = [kind.code for kind in ALL]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"PF-2\d\d", code) for code in codes)


def test_a_message_says_what_must_hold_and_what_came_where_it_is_public() -> None:
    error = BadSignatureError("a must hold", 7)
    assert (error.must, error.got, str(error)) == ("a must hold", "7", "a must hold, got 7")
    silent = BadSignatureError("a must hold")
    assert (silent.must, silent.got, str(silent)) == ("a must hold", "", "a must hold")


SECRETS = [
    b"key", bytearray(b"key"), memoryview(b"key"), (1, 2), [1], {1: 2}, 0.5, True, None,
    np.int64(3), np.arange(3), SigningIdentity.generate(), SealingKey(), PairRoots(bytes(32), {}),
    ValueError("text"),
]  # fmt: skip


@pytest.mark.parametrize("secret", SECRETS, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("kind", [kind for kind in ALL if kind not in MADE_OF_FACTS])
def test_no_secret_type_enters_an_error(kind: type[ProtocolError], secret: Any) -> None:
    with pytest.raises(TypeError):
        kind("a must hold", secret)


@pytest.mark.parametrize("secret", SECRETS, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("kind", [kind for kind in MADE_OF_FACTS if "received" in FACTS[kind]])
def test_no_secret_type_enters_an_error_of_counts(kind: type[ProtocolError], secret: Any) -> None:
    with pytest.raises(TypeError):
        kind(**{**FACTS[kind], "received": secret})  # type: ignore[arg-type]


def raised() -> Iterator[tuple[str, ast.Call]]:
    """Every error of ours that the package makes, with the place."""
    names = {kind.__name__ for kind in ALL}
    for path in sorted(Path(str(errors.__file__)).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            is_ours = isinstance(node, ast.Call) and ast.unparse(node.func) in names
            if isinstance(node, ast.Call) and is_ours and path.name != "errors.py":
                yield f"{path.name}:{node.lineno}", node


PUBLIC = {
    *("__name__", "PURPOSE", "code", "form", "got", "must", "name", "purpose", "reason", "state"),
    *("most_votes",),
    *("suite", "value", "allowed", "announced"),  # of an enum, of a field out of its bounds
    *("agreed", "bits", "epoch", "_epoch", "expected", "expires_at", "itemsize", "least", "most"),
    *("max_bytes", "MAX_BYTES", "nbytes", "parties", "prime", "row", "row_words", "shape"),
    *("threshold", "words", "y_bytes", "dtype", "ndim", "queries", "columns", "height"),
}
"""Sizes, counts, numbers of rows and epochs, names, codes: what an error may show, by its name."""


def is_public(node: ast.expr) -> bool:
    match node:
        case ast.Constant() | ast.Call(func=ast.Name(id="len")):
            return True
        case ast.JoinedStr(values=parts):
            return all(map(is_public, parts))
        case ast.FormattedValue(value=inner) | ast.Starred(value=inner):
            return is_public(inner)
        case ast.Call(func=ast.Name(id="str"), args=[inner]):
            return is_public(inner)
        case ast.BinOp(left=left, right=right):
            return is_public(left) and is_public(right)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name in PUBLIC or name.isupper()
        case _:
            return ast.unparse(node) == "frame[1:2]"  # the version


def test_an_error_shows_sizes_counts_versions_names_and_codes_alone() -> None:
    """What goes into a message anywhere in the package is on one list of public names."""
    calls = dict(raised())
    private = [place for place, call in calls.items() if not all(map(is_public, call.args))]
    assert len(calls) > 150
    assert private == []


@pytest.mark.parametrize("kind", [k for k in ALL if issubclass(k, RemoteProtocolError)])
def test_an_error_takes_its_senders_name(kind: type[RemoteProtocolError]) -> None:
    error = RefusedError("PF-301", peer="") if kind is RefusedError else kind("must", "got")
    named = error.from_peer("ab" * 32)
    assert (type(named), named.peer, str(named)) == (kind, "ab" * 32, str(error))


@pytest.mark.parametrize(
    "kind", [k for k in ALL if issubclass(k, RemoteProtocolError) and k is not RefusedError]
)
def test_an_error_may_name_two_of_whom_one_is_at_fault(kind: type[RemoteProtocolError]) -> None:
    error = kind("must", "got", pair=("ab" * 32, "coordinator"))
    assert (error.peer, error.pair) == ("", ("ab" * 32, "coordinator"))
    assert kind("must", "got").pair == ()
    # Who handed it on does not take the pair away.
    assert error.from_peer("cd" * 32).pair == error.pair


def test_facts_are_attributes() -> None:
    assert RefusedError("PF-301", peer="ab").reason == "PF-301"
    few = TooFewPartiesError(received=2, threshold=3)
    assert (few.received, few.threshold) == (2, 3)
