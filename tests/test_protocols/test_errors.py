from __future__ import annotations

import re

import pytest

from protocols import errors
from protocols.errors import (
    BadSignatureError,
    ProtocolError,
    RefusedError,
    RemoteProtocolError,
    TooFewPartiesError,
)

ALL = [
    kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)
]


def test_every_error_has_a_code_of_its_own() -> None:
    codes = [kind.code for kind in ALL]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"PF-2\d\d", code) for code in codes)


def test_the_tree_at_the_top_names_every_error_with_its_code() -> None:
    tree = dict(re.findall(r"(\w+Error) +(PF-\d+)", errors.__doc__ or ""))
    assert tree == {kind.__name__: kind.code for kind in ALL if kind is not ProtocolError}


def test_a_message_says_what_must_hold_and_what_came() -> None:
    error = BadSignatureError("a must hold", 7)
    assert (error.must, error.got, str(error)) == ("a must hold", "7", "a must hold, got 7")


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
