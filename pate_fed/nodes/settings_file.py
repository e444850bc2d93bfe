"""Text from outside becomes values: settings files, JSON and the environment, checked by pydantic.

A frozen dataclass says the kinds; its fields' metadata say the bounds, as `pydantic.Field` names
them; its docstring says the meanings. A fault names file, key, rule and value; of a field that is
not shown (``repr=False``) it leaves out the value. pydantic is loaded at the first use: it is slow.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args, get_type_hints

from pate_fed.errors import Shown
from pate_fed.regular_files import MOST_SETTINGS_BYTES, read_regular
from pate_fed.wording import did_you_mean

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")

Fault = Callable[[str, Shown], Exception]
"""Makes an error from a rule and the value that broke it."""

VERSION_KEY = "schema_version"
_MOST_SHOWN = 80
_MOST_LEVELS = 16
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
_WORDS: Final[Mapping[str, str]] = {
    "string_type": "a text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a finite number",
    "float_parsing": "a finite number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "frozen_set_type": "a list",
    "dict_type": "a table",
    "dataclass_type": "a table",
    "greater_than": "above {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than": "below {lt:g}",
    "less_than_equal": "at most {le:g}",
}
"""Plain words for kinds and bounds; pydantic's own words for all else."""

_ADAPTERS: Final[dict[type, Any]] = {}
"""The reader of each dataclass: making one takes longer than reading a file with it."""


def read_settings(
    path: Path, settings: type[T], *, version: int, advice: str, fault: type[Exception]
) -> T:
    """Read settings from a file.

    Args:
        settings: A dataclass. A `fault` of its own is told with the file's name.
        advice: The rule of the fault where there is no file.
        fault: Makes the exception from a rule and the value that broke it.

    Raises:
        Exception: a `fault`: there is no such file, or its settings are wrong.
    """
    return digested_settings(path, settings, version=version, advice=advice, fault=fault)[0]


def digested_settings(
    path: Path, settings: type[T], *, version: int, advice: str, fault: type[Exception]
) -> tuple[T, bytes]:
    """Read settings as `read_settings` does; return them and the SHA-256 of the file's bytes."""
    content = _read(path, advice, fault)
    table = _parsed(content, path.name, fault)
    came = table.pop(VERSION_KEY, "none")
    if came != version or type(came) is not int:
        raise fault(f"{path.name}: {VERSION_KEY} must be {version}", _shown(came))
    made = checked(settings, table, where=f"{path.name}: ", fault=fault)
    return made, hashlib.sha256(content).digest()


def checked(kind: type[T], table: Mapping[str, Any], *, where: str, fault: type[Exception]) -> T:
    """Return the values of a TOML or JSON table as a dataclass, each of exactly its field's kind.

    Args:
        where: The place of the table, in front of a key.
        fault: Makes the exception from a rule and the value that broke it.

    Raises:
        Exception: a `fault`: a value is wrong, missing or unknown.
    """
    # As JSON, whose lists and tables may become tuples, sets and dataclasses however strict we are.
    text = json.dumps(table, default=lambda date: {str(date): "a date"})
    return _validated(kind, lambda known: known.validate_json(text, strict=True), where, fault)


def with_environment(
    settings: T,
    *,
    prefix: str,
    only: Collection[str],
    fault: type[Exception],
    table: str = "",
    others: Collection[str] = (),
) -> T:
    """Return settings with the values that the environment overrides.

    The variable of a key is prefix and key in capitals; of a key in a table, the table's name, two
    underscores and the key come after the prefix.

    Args:
        settings: A dataclass, as its file has it.
        prefix: Of all our variables. Others may have it too: orchestrators name variables after
            services. Only a likely slip is refused.
        only: Keys that may be overridden.
        fault: Makes the exception from a rule and the value that broke it.
        table: More of the prefix of these keys' variables.
        others: Further known variables, without prefix.

    Raises:
        Exception: a `fault`: a variable is wrong, misspelled or of another key.
    """
    from pydantic import create_model  # noqa: PLC0415
    from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsError  # noqa: PLC0415

    kind = type(settings)
    of_file = {table + one.name.upper() for one in fields(kind)}  # type: ignore[arg-type]
    known = {table + name for name in _variables_of(kind, only)}.union(others)
    _refuse_slips(prefix, known, of_file, fault)
    prefix += table
    kinds: dict[str, Any] = {name: (get_type_hints(kind)[name], ...) for name in only}
    variables = create_model("Variables", __base__=BaseSettings, **kinds)
    source = EnvSettingsSource(variables, env_prefix=prefix, env_nested_delimiter="__")
    try:
        given: dict[str, Any] | None = source()
    except (SettingsError, RecursionError):
        given = None
    if given is None:  # not from the other error, which holds the value
        must = f"{prefix}... must be JSON where it holds a table or a list"
        raise fault(must, "another text")
    if not given:
        return settings
    values: dict[str, Any] = asdict(settings)  # type: ignore[call-overload]  # a dataclass
    named = []
    for name, value in given.items():
        named += [f"{name}__{key}" for key in value] if isinstance(value, dict) else [name]
        values[name] = {**values[name], **value} if isinstance(value, dict) else value
    where = f"{', '.join(prefix + name.upper() for name in named)}: "
    return _validated(kind, lambda known: known.validate_python(values), where, fault)


def record_of(value: object, *, leave_out: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a dataclass as a table of JSON, which `checked` reads.

    `leave_out` names keys; of a table in it, by the table's name.
    """
    known = _adapter(type(value))
    return known.dump_python(value, mode="json", exclude=dict(leave_out or {}))  # type: ignore[no-any-return]


def settings_text(settings: object, *, version: int) -> bytes:
    """Return a settings file's bytes, which `read_settings` reads."""
    import tomli_w  # noqa: PLC0415 - commands that only read need none

    return tomli_w.dumps({VERSION_KEY: version, **record_of(settings)}).encode()


def typed_in(kind: type[T], given: Mapping[str, object], *, fault: type[Exception]) -> T:
    """Return values that a person typed: a number may be a text; raise a `fault` at a wrong one."""
    return _validated(kind, lambda known: known.validate_python(given), "", fault)


def schema_of(kind: type[Any], *, version: int | None = None) -> dict[str, Any]:
    """Return the JSON schema of a settings file, with the meaning of every key."""
    schema: dict[str, Any] = _adapter(kind).json_schema()
    known = {one.__name__: one for one in _tables_of(kind)}
    for name, table in {kind.__name__: schema, **schema.get("$defs", {})}.items():
        table["description"] = inspect.getdoc(known[name]).partition("\n")[0]  # type: ignore[union-attr]
        for key, meaning in meanings(known[name]).items():
            if key in table["properties"]:
                table["properties"][key]["description"] = meaning
    if version is not None:
        schema["properties"] = {VERSION_KEY: {"const": version}, **schema["properties"]}
        schema["required"] = [VERSION_KEY, *schema.get("required", ())]
    return schema


def meanings(kind: type[Any]) -> dict[str, str]:
    """Return the meaning of each field of a dataclass, as its docstring says it."""
    text = (inspect.getdoc(kind) or "").partition("\nAttributes:\n")[2]
    found = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", text, re.MULTILINE)
    return {name: " ".join(meaning.split()) for name, meaning in found}


def _variables_of(kind: Any, only: Collection[str]) -> Iterator[str]:
    """Return the variables of some keys, without their prefix."""
    for name in only:
        yield name.upper()
        held = get_type_hints(kind)[name]
        if is_dataclass(held):
            yield from (f"{name}__{one.name}".upper() for one in fields(held))


def _refuse_slips(prefix: str, known: Set[str], of_file: Set[str], fault: Fault) -> None:
    """Refuse names that are close to those of known variables, and those of keys of the file."""
    for variable in sorted(os.environ):
        name = variable.upper().removeprefix(prefix)
        if not variable.upper().startswith(prefix) or name in known:
            continue
        hint = did_you_mean(name, known, prefix=prefix)
        if hint or name in of_file:
            must = f"{variable} must name a setting that the environment may change{hint}"
            raise fault(must, "another name")


def _adapter(kind: type[T]) -> TypeAdapter[T]:
    found: TypeAdapter[T] | None = _ADAPTERS.get(kind)
    if found is None:
        found = _ADAPTERS[kind] = _new_adapter(kind)
    return found


def _new_adapter(kind: type[T]) -> TypeAdapter[T]:
    from pydantic import ConfigDict, TypeAdapter, with_config  # noqa: PLC0415

    strict = ConfigDict(
        allow_inf_nan=False,  # a bound of those bounds nothing
        extra="forbid",
        hide_input_in_errors=True,
        ser_json_bytes="hex",
        val_json_bytes="hex",
    )
    for table in _tables_of(kind):
        with_config(strict)(table)
    return TypeAdapter(kind)


def _tables_of(kind: Any) -> list[type[Any]]:
    """Return a dataclass and all those that its fields hold."""
    if not is_dataclass(kind):
        return [one for inner in get_args(kind) for one in _tables_of(inner)]
    hints = get_type_hints(kind)
    return [kind, *(one for hint in hints.values() for one in _tables_of(hint))]  # type: ignore[list-item]


def _read(path: Path, advice: str, fault: Fault) -> bytes:
    try:
        return read_regular(path, most_bytes=MOST_SETTINGS_BYTES)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise fault(advice, path.parent) from error
    except OSError as error:
        raise fault(f"{path.name} must be readable", error.strerror) from error


def _parsed(content: bytes, name: str, fault: Fault) -> dict[str, Any]:
    try:
        table = tomllib.loads(content.decode("utf-8"))
    except tomllib.TOMLDecodeError as error:
        got = str(error)
    except (ValueError, RecursionError) as error:
        got = type(error).__name__
    else:
        if not _is_deep(table):
            return table
        got = f"more than {_MOST_LEVELS} levels"
    raise fault(f"{name} must be TOML", got)  # not from the other error, which holds the content


def _is_deep(table: object) -> bool:
    """Tell whether tables and lists lie in more of each other than any settings do."""
    level: list[Any] = [table]
    for _ in range(_MOST_LEVELS):
        held = [list(one.values()) if isinstance(one, dict) else one for one in level]
        level = [one for each in held for one in each if isinstance(one, dict | list)]
    return bool(level)


def _validated(
    kind: type[T], validate: Callable[[TypeAdapter[T]], T], where: str, fault: type[Exception]
) -> T:
    from pydantic import ValidationError  # noqa: PLC0415

    try:
        return validate(_adapter(kind))
    except fault as error:
        own: Any = error
        must, got = own.must, own.got
    except ValidationError as error:
        must, got = _first_fault(error.errors(include_url=False), kind)
    raise fault(f"{where}{must}", got)  # not from pydantic's error, which holds the value


def _first_fault(errors: Sequence[Any], kind: type[Any]) -> tuple[str, str]:
    """Return the rule that was broken first, and the value; an unknown key explains most others."""
    unknown = [one for one in errors if one["type"] in _UNKNOWN]
    if unknown:
        inside = unknown[0]["loc"][:-1]
        keys = sorted(str(one["loc"][-1]) for one in unknown if one["loc"][:-1] == inside)
        table, _ = _at(kind, inside)
        hint = did_you_mean(keys[0], [one.name for one in fields(table)])
        return f"{_tables(inside)}every key must be known{hint}", _shown(", ".join(keys))[1:-1]
    first = errors[0]
    own = first.get("ctx", {}).get("error")
    if own is not None:  # a fault of the dataclass itself, with a builtin parent
        return f"{_tables(first['loc'])}{own.must}", own.got
    *tables, name = (_shown(part)[1:-1] for part in first["loc"] if isinstance(part, str))
    key = _tables(tables) + name
    key += "".join(f"[{part}]" for part in first["loc"] if isinstance(part, int))
    if first["type"] == "missing":
        return f"{key} must be there", "none"
    words = _WORDS.get(first["type"])
    if words == _WORDS["dict_type"]:
        key = _tables([*tables, name]).rstrip()
    rule = words.format(**first.get("ctx", {})) if words else first["msg"].split(" be ", 1)[-1]
    is_shown = _at(kind, first["loc"])[1]
    return f"{key} must be {rule}", _shown(first["input"]) if is_shown else "another kind of value"


def _at(kind: Any, place: Sequence[int | str]) -> tuple[Any, bool]:
    """Return the kind of the value at a place, and whether a fault may show it."""
    is_shown = True
    for part in place:
        known = {one.name: one for one in fields(kind)} if is_dataclass(kind) else {}
        if part in known:
            is_shown &= known[str(part)].repr
            kind = _table_or_none(get_type_hints(kind)[str(part)])
        else:  # one of a table of tables, or of a list
            kind = (get_args(kind) or (kind,))[-1]
    return kind, is_shown


def _table_or_none(hint: Any) -> Any:
    """Return the dataclass of a hint that also allows none; any other hint as it is."""
    return next((one for one in get_args(hint) if is_dataclass(one)), hint)


def _tables(names: Sequence[int | str]) -> str:
    return f"[{'.'.join(map(str, names))}] " if names else ""


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
