"""Settings that people edit: a TOML file with a checked kind for every value.

The kinds are those of a frozen dataclass's fields. A fault names file, key, rule and value; of a
field that is not shown (``repr=False``) it leaves out the value.
"""

from __future__ import annotations

import hashlib
import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from pate_fed.nodes.console import CodedError

T = TypeVar("T")

Fault = Callable[[str, object], Exception]
"""Makes an error from a rule and the value that broke it."""

VERSION_KEY = "schema_version"
_MOST_SHOWN = 80


def read_settings(
    path: Path, settings: Callable[..., T], *, version: int, advice: str, fault: type[Exception]
) -> T:
    """Read settings from a file.

    Args:
        path: The file.
        settings: A dataclass. A `fault` of its own is told with the file's name.
        version: Of the file.
        advice: The rule of the fault where there is no file.
        fault: Makes the exception from a rule and the value that broke it.

    Raises:
        Exception: a `fault`: there is no such file, or its settings are wrong.
    """
    return digested_settings(path, settings, version=version, advice=advice, fault=fault)[0]


def digested_settings(
    path: Path, settings: Callable[..., T], *, version: int, advice: str, fault: type[Exception]
) -> tuple[T, bytes]:
    """Read settings as `read_settings` does; return them and the SHA-256 of the file's bytes."""
    content = _read(path, advice, fault)
    table = _parsed(content, path.name, fault)
    came = table.pop(VERSION_KEY, "none")
    if came != version or type(came) is not int:
        raise fault(f"{path.name}: {VERSION_KEY} must be {version}", _shown(came))
    made = _made(settings, table, where=f"{path.name}: ", fault=fault)
    return made, hashlib.sha256(content).digest()


def of_kind(value: object, hint: Any, *, key: str, fault: Fault, is_shown: bool = True) -> Any:
    """Return a value as its field has it: lists as that kind, whole numbers as floats.

    Args:
        value: As TOML has it.
        hint: The field's type.
        key: Its name in a fault.
        fault: Makes the error.
        is_shown: Whether a fault may show the value.

    Raises:
        Exception: a `fault`: it is of another kind.
    """
    kind = _without_none(hint)
    if not _is_of(value, kind):
        came = _shown(value) if is_shown else "another kind of value"
        raise fault(f"{key} must be {_words(kind)}", came)
    if kind is float:
        return float(value)  # type: ignore[arg-type]
    origin = get_origin(kind)
    return origin(value) if origin in (tuple, frozenset) else value


def _read(path: Path, advice: str, fault: Fault) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise fault(advice, path.parent) from error
    except OSError as error:
        raise fault(f"{path.name} must be readable", error.strerror) from error


def _parsed(content: bytes, name: str, fault: Fault) -> dict[str, Any]:
    try:
        return tomllib.loads(content.decode("utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise fault(f"{name} must be TOML", error) from error
    except (ValueError, RecursionError) as error:
        raise fault(f"{name} must be TOML", type(error).__name__) from error


def _made(settings: Callable[..., T], table: Mapping[str, Any], *, where: str, fault: Any) -> T:
    known: dict[str, Field[Any]] = {one.name: one for one in fields(settings)}  # type: ignore[arg-type]
    hints = get_type_hints(settings)
    unknown = sorted(set(table) - set(known))
    if unknown:
        raise fault(f"{where}every key must be known", ", ".join(unknown))
    values: dict[str, Any] = {}
    for name, one in known.items():
        if name in table:
            value, hint, key = table[name], hints[name], f"{where}{name}"
            if is_dataclass(hint):
                of_kind(value, dict[str, Any], key=key, fault=fault, is_shown=one.repr)
                made = _made(hint, value, where=f"{where}[{name}] ", fault=fault)  # type: ignore[arg-type]
                values[name] = made
            elif _is_of_tables(hint):
                values[name] = _tables(hint, value, one, where=where, fault=fault)
            else:
                values[name] = of_kind(value, hint, key=key, fault=fault, is_shown=one.repr)
        elif one.default is MISSING and one.default_factory is MISSING:
            raise fault(f"{where}{name} must be there", "none")
    try:
        return settings(**values)
    except fault as error:
        refused: CodedError = error
        raise fault(f"{where}{refused.must}", refused.got) from error


def _is_of_tables(hint: Any) -> bool:
    """Tell whether a field holds one table of settings for each of any number of names."""
    return get_origin(hint) is dict and is_dataclass(get_args(hint)[1])


def _tables(hint: Any, came: object, one: Field[Any], *, where: str, fault: Any) -> dict[str, Any]:
    key, made = f"{where}{one.name}", {}
    of_kind(came, dict[str, Any], key=key, fault=fault, is_shown=one.repr)
    for name, table in came.items():  # type: ignore[attr-defined]  # it is a table
        inner = f"[{one.name}.{_shown(name)[1:-1]}]"
        of_kind(table, dict[str, Any], key=f"{where}{inner}", fault=fault, is_shown=one.repr)
        made[name] = _made(get_args(hint)[1], table, where=f"{where}{inner} ", fault=fault)
    return made


def _is_of(value: object, kind: Any) -> bool:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (tuple, frozenset):
        return type(value) is list and all(_is_of(one, arguments[0]) for one in value)
    if origin is Literal:
        return type(value) is str and value in arguments
    if origin is dict:
        return type(value) is dict
    if kind is float:  # TOML has infinity and NaN, and a bound of those bounds nothing
        return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]
    return type(value) is kind


def _words(kind: Any) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (tuple, frozenset):
        return f"a list, and everything in it {_words(arguments[0])}"
    if origin is Literal:
        return " or ".join(repr(one) for one in arguments)
    words = {
        str: "a text",
        int: "a whole number",
        float: "a finite number",
        bool: "true or false",
        dict: "a table",
    }
    return words[origin or kind]


def _without_none(hint: Any) -> Any:
    """Return the kind without None: TOML has no word for a value that is left out."""
    if get_origin(hint) is UnionType:
        [hint] = [one for one in get_args(hint) if one is not NoneType]
    return hint


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
