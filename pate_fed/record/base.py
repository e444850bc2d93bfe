"""A table of a run's files: each field with its type, its meaning, its unit, and who may see it.

From such a table are derived its reading and writing, its public edition, its JSON schema, and its
part of the reference page. The JSON of a table has a key for each field; one whose field has a
default is left out where it does not apply.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Literal, Self, get_origin

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, ValidationError
from pydantic.fields import FieldInfo

from pate_fed.errors import RunDirectoryError
from pate_fed.wording import did_you_mean

SCHEMA_VERSION: Final = 1

Count = Annotated[int, Field(ge=0, le=2**53)]
Number = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Interval = Annotated[tuple[Share, ...], Field(min_length=2, max_length=2)]

Public = Literal["yes", "pool", "no"]
"""Whether a field is in the public edition: "pool" only where everybody may see the public inputs.

A field is public where the stated epsilon covers it, or where it was fixed before the run without
a look at records.
"""


@dataclass(frozen=True, slots=True)
class About:
    """What a field means: metadata of its annotation.

    Attributes:
        unit: Its unit; "" for a plain number or a text.
    """

    text: str
    public: Public
    unit: str = ""

    def __get_pydantic_json_schema__(
        self, core: Any, handler: GetJsonSchemaHandler
    ) -> dict[str, object]:
        unit = {"x-unit": self.unit} if self.unit else {}
        return {**handler(core), "description": self.text, "x-public": self.public, **unit}


class RecordTable(BaseModel):
    """A table of a file: strict, frozen, and with no other field."""

    FILE: ClassVar = ""
    """Name of its file; "" for a table within one."""

    model_config = ConfigDict(
        allow_inf_nan=False, extra="forbid", frozen=True, hide_input_in_errors=True, strict=True
    )

    @classmethod
    def read(cls, text: str | bytes) -> Self:
        """Read the JSON of a table, strictly.

        Raises:
            RunDirectoryError: it is no JSON, of another schema version, or a value is missing,
                unknown or of another kind. The error names a value's place and kind, not the value.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            faults = error.errors(include_url=False)
        # Another version explains all other faults.
        name = cls.FILE
        first = min(faults, key=lambda one: one["loc"] != ("schema_version",))
        path, came, kind = ".".join(map(str, first["loc"])), first["input"], first["type"]
        if kind == "json_invalid":
            raise RunDirectoryError(f"{name} must be JSON", first["ctx"]["error"])
        if not path:
            raise RunDirectoryError(f"{name} must hold an object", type(came).__name__)
        if kind == "missing":
            raise RunDirectoryError(f"{name}: {path} must be there")
        if kind == "extra_forbidden":
            hint = did_you_mean(path, cls.model_fields)
            raise RunDirectoryError(
                f"{name}: each key must be one of this version{hint}", repr(path)
            )
        if path == "schema_version" and type(came) is int:
            raise RunDirectoryError(f"{name}: {path} must be {SCHEMA_VERSION}", came)
        rule = first["msg"].removeprefix("Input should be ")
        raise RunDirectoryError(f"{name}: {path} must be {rule}", f"another {type(came).__name__}")

    def as_text(self) -> str:
        """Return the content of its file."""
        return json.dumps(self.as_json(), indent=2, sort_keys=True) + "\n"

    def as_json(self) -> dict[str, object]:
        """Return the table as JSON values."""
        return self.model_dump(mode="json", exclude_defaults=True)

    def changed(self, **fields: object) -> Self:
        """Return the table with other values in these fields, checked again."""
        return type(self)(**{**dict(self), **fields})

    def public_edition(self, *, with_pool: bool) -> Self:
        """Return the public fields alone, those of the pool `with_pool`; the rest is empty."""
        shown = ("yes", "pool") if with_pool else ("yes",)
        return type(self)(**{
            name: _public_part(getattr(self, name), with_pool=with_pool)
            if about(field).public in shown
            else _nothing(field)
            for name, field in type(self).model_fields.items()
        })  # fmt: skip


class File(RecordTable):
    """The table of a whole file."""

    schema_version: Annotated[int, Field(ge=SCHEMA_VERSION, le=SCHEMA_VERSION), About("1", "yes")]


def about(field: FieldInfo) -> About:
    """Return what a field means."""
    [found] = [one for one in field.metadata if isinstance(one, About)]
    return found


def _public_part(value: object, *, with_pool: bool) -> object:
    if isinstance(value, RecordTable):
        return value.public_edition(with_pool=with_pool)
    if isinstance(value, tuple):
        return tuple(_public_part(one, with_pool=with_pool) for one in value)
    if isinstance(value, dict):
        return {name: _public_part(one, with_pool=with_pool) for name, one in value.items()}
    return value


def _nothing(field: FieldInfo) -> object:
    """Return the value of a field that is left out."""
    if not field.is_required():
        return field.default
    kind = get_origin(field.annotation)
    return kind() if kind in (dict, tuple) else None
