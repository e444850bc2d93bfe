"""A file of settings is of its kinds, or a fault names the file, the key and what came."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from pate_fed.errors import InvalidParameterError
from pate_fed.nodes import read_settings


@dataclass(frozen=True)
class Inner:
    rows: int = 0


@dataclass(frozen=True)
class Outer:
    name: str
    port: int = 1
    share: float = 0.5
    is_on: bool = False
    hosts: tuple[str, ...] = ()
    places: frozenset[Literal["here", "there"]] = frozenset()
    most: int | None = 3
    rules: dict[str, Any] = field(default_factory=dict)
    url: str = field(default="", repr=False)
    inner: Inner = Inner()

    def __post_init__(self) -> None:
        if self.port < 1:
            raise InvalidParameterError("port must be at least 1", self.port)


def read(folder: Path, text: str) -> Outer:
    (folder / "some.toml").write_text(text, encoding="utf-8")
    return read_settings(
        folder / "some.toml",
        Outer,
        version=2,
        advice="a folder must hold some.toml",
        fault=InvalidParameterError,
    )


def test_every_kind_is_read_as_its_field_has_it(tmp_path: Path) -> None:
    text = """
        schema_version = 2
        name = "n"
        port = 7
        share = 1
        is_on = true
        hosts = ["a", "b"]
        places = ["here"]
        most = 4
        rules = {x = 1}
        url = "u"
        [inner]
        rows = 5
    """
    read_back = read(tmp_path, text)
    assert read_back == Outer(
        *("n", 7, 1.0, True, ("a", "b"), frozenset({"here"}), 4, {"x": 1}, "u", Inner(5))
    )
    assert type(read_back.share) is float


def test_what_is_left_out_has_its_default(tmp_path: Path) -> None:
    assert read(tmp_path, 'schema_version = 2\nname = "n"\n') == Outer("n")


@pytest.mark.parametrize(
    ("line", "must", "got"),
    [
        pytest.param("name = 7", "name must be a text", "7", id="text"),
        pytest.param("port = '7'", "port must be a whole number", "'7'", id="whole number"),
        pytest.param("port = true", "port must be a whole number", "True", id="truth as number"),
        pytest.param("port = 7.0", "port must be a whole number", "7.0", id="7.0 for 7"),
        pytest.param("port = 0", "port must be at least 1", "0", id="its own check"),
        pytest.param("share = nan", "share must be a finite number", "nan", id="not a number"),
        pytest.param("share = inf", "share must be a finite number", "inf", id="no bound"),
        pytest.param("share = true", "share must be a finite number", "True", id="no number"),
        pytest.param("is_on = 1", "is_on must be true or false", "1", id="truth"),
        pytest.param(
            "hosts = 'a.b'", "hosts must be a list, and everything in it a text", "'a.b'", id="list"
        ),
        pytest.param(
            "hosts = ['a', 1]",
            "hosts must be a list, and everything in it a text",
            "['a', 1]",
            id="one in a list",
        ),
        pytest.param(
            "places = ['away']",
            "places must be a list, and everything in it 'here' or 'there'",
            "['away']",
            id="another word",
        ),
        pytest.param("most = 'all'", "most must be a whole number", "'all'", id="may be left out"),
        pytest.param("rules = 1", "rules must be a table", "1", id="table"),
        pytest.param("inner = 1", "inner must be a table", "1", id="section"),
        pytest.param("inner = {rows = 'x'}", "[inner] rows must be a whole number", "'x'", id="in"),
        pytest.param("inner = {r = 1}", "[inner] every key must be known", "r", id="unknown in"),
        pytest.param("other = 1\nmore = 2", "every key must be known", "more, other", id="unknown"),
        pytest.param(
            f"port = '{'x' * 200}'", "port must be a whole number", f"'{'x' * 79}...", id="long"
        ),
    ],
)
def test_a_value_that_cannot_be_is_named_with_its_file_and_key(
    tmp_path: Path, line: str, must: str, got: str
) -> None:
    name = "" if line.startswith("name") else 'name = "n"\n'
    with pytest.raises(InvalidParameterError) as caught:
        read(tmp_path, f"schema_version = 2\n{name}{line}\n")
    assert (caught.value.must, caught.value.got) == (f"some.toml: {must}", got)


def test_a_value_that_may_hold_a_secret_is_not_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        read(tmp_path, 'schema_version = 2\nname = "n"\nurl = ["u://me:password@h"]\n')
    assert caught.value.must == "some.toml: url must be a text"
    assert "password" not in str(caught.value)


def test_a_key_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameterError, match=r"some\.toml: name must be there, got none"):
        read(tmp_path, "schema_version = 2\n")


@pytest.mark.parametrize("line", ["", "schema_version = 1", "schema_version = '2'"])
def test_another_version_is_named(tmp_path: Path, line: str) -> None:
    with pytest.raises(InvalidParameterError, match=r"some\.toml: schema_version must be 2, got"):
        read(tmp_path, f'name = "n"\n{line}\n')


def test_a_slip_in_the_file_is_told_by_its_line(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameterError, match=r"some\.toml must be TOML, got .*line 2"):
        read(tmp_path, "schema_version = 2\nname = n\n")


def test_bytes_that_are_no_text_are_refused_without_them(tmp_path: Path) -> None:
    (tmp_path / "some.toml").write_bytes(b"\xff secret")
    with pytest.raises(InvalidParameterError) as caught:
        read_settings(
            tmp_path / "some.toml", Outer, version=2, advice="", fault=InvalidParameterError
        )
    assert str(caught.value) == "some.toml must be TOML, got UnicodeDecodeError"


def test_a_folder_without_it_gets_the_advice(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameterError, match=r"a folder must hold it, got .*nowhere"):
        read_settings(
            tmp_path / "nowhere" / "some.toml",
            Outer,
            version=2,
            advice="a folder must hold it",
            fault=InvalidParameterError,
        )
