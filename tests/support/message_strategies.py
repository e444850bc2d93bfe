"""Hypothesis strategies for messages, read off the bounds in their fields' types."""

from __future__ import annotations

from types import UnionType
from typing import Annotated, Any, get_args, get_origin

from hypothesis import strategies as st

from protocols.fields import Between, Length, Letters, Line, Message, field_types
from protocols.wire import MESSAGE_TYPES

_ROOM = 40
"""How far above its least length a field may grow: bounds themselves have tests of their own."""


def messages(message_type: type[Message] | None = None) -> st.SearchStrategy[Message]:
    """Any valid message, of one type or of all."""
    if message_type is None:
        return st.sampled_from(list(MESSAGE_TYPES.values())).flatmap(messages)
    fields = [_of_type(hint) for hint in field_types(message_type).values()]
    return st.tuples(*fields).map(lambda values: message_type(*values))


def _of_type(hint: Any) -> st.SearchStrategy[Any]:
    bound: Any = None
    if get_origin(hint) is Annotated:
        hint, bound = get_args(hint)[:2]
    if isinstance(hint, UnionType):  # bytes, or a view of them
        size = {"min_size": bound.least, "max_size": min(bound.most, bound.least + _ROOM)}
        return st.binary(**size) | st.binary(**size).map(memoryview)
    if get_origin(hint) is tuple:
        item = _of_type(get_args(hint)[0])
        return st.lists(item, min_size=bound.least, max_size=min(bound.most, 4)).map(tuple)
    if hint is bool:
        return st.booleans()
    if hint is int:
        assert isinstance(bound, Between)
        edges = st.sampled_from([bound.least, bound.most])
        return edges | st.integers(bound.least, bound.most)
    assert isinstance(bound, Length)
    most = min(bound.most, bound.least + _ROOM)
    if hint is bytes:
        return st.binary(min_size=bound.least, max_size=most)
    assert hint is str
    if isinstance(bound, Letters):
        words = st.text("aZ7éß東한א", min_size=1, max_size=10)
        return st.lists(words, min_size=1, max_size=5).map(" ".join) | st.just("Больница 67")
    if isinstance(bound, Line):
        return st.text("aZ7éß東한א “”", max_size=most)
    letters = st.characters(min_codepoint=32, max_codepoint=126)
    return st.text(letters, min_size=bound.least, max_size=most)
