"""Settings are of their kinds, or a fault names place, key, rule and value, and no secret."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pytest

from pate_fed.errors import InvalidParameterError
from pate_fed.nodes import (
    checked,
    read_settings,
    schema_of,
    typed_in,
    with_environment,
)
from tests.support.everything_said import everything_said

SECRET = "correct horse battery staple"


@dataclass(frozen=True)
class Inner:
    """A table in a table.

    Attributes:
        rows: Its rows.
    """

    rows: int = 0


@dataclass(frozen=True)
class Outer:
    """Some settings.

    They are no real ones.

    Attributes:
        name: Its name,
            in two lines.
        inner: A table.
    """

    name: str
    port: int = field(default=1, metadata={"ge": 1})
    share: float = 0.5
    is_on: bool = False
    hosts: tuple[str, ...] = ()
    places: frozenset[Literal["here", "there"]] = frozenset()
    most: int | None = 3
    rules: dict[str, Any] = field(default_factory=dict)
    url: str = field(default="", repr=False)
    inner: Inner = Inner()

    def __post_init__(self) -> None:
        if self.port == 13:
            raise InvalidParameterError("port must be lucky", self.port)


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
    ("line", "named", "got"),
    [
        pytest.param("name = 7", "name", "7", id="text"),
        pytest.param("port = '7'", "port", "'7'", id="whole number"),
        pytest.param("port = true", "port", "True", id="truth as number"),
        pytest.param("port = 7.0", "port", "7.0", id="7.0 for 7"),
        pytest.param("port = 0", "port", "0", id="bound"),
        pytest.param("port = 13", "port", "13", id="its own check"),
        pytest.param("share = nan", "share", "nan", id="not a number"),
        pytest.param("share = inf", "share", "inf", id="no bound"),
        pytest.param("share = true", "share", "True", id="no number"),
        pytest.param("is_on = 1", "is_on", "1", id="truth"),
        pytest.param("hosts = 'a.b'", "hosts", "'a.b'", id="list"),
        pytest.param(
            "hosts = ['a', 1]",
            "hosts[1]",
            "1",
            id="one in a list",
        ),
        pytest.param(
            "places = ['away']",
            "places[0]",
            "'away'",
            id="another word",
        ),
        pytest.param("most = 'all'", "most", "'all'", id="may be left out"),
        pytest.param("rules = 1", "[rules]", "1", id="table"),
        pytest.param("inner = 1", "[inner]", "1", id="section"),
        pytest.param("inner = {rows = 'x'}", "[inner] rows", "'x'", id="in"),
        pytest.param("inner = {x = 1}", "[inner] every key", "x", id="unknown in"),
        pytest.param(
            "inner = {row = 1}",
            "[inner] every key",
            "row",
            id="a slip in",
        ),
        pytest.param("prot = 1", "every key", "prot", id="a slip"),
        pytest.param("name = 2020-01-01", "name", "{'2020-01-01': 'a date'}", id="date"),
        pytest.param("other = 1\nmore = 2", "every key", "more, other", id="unknown"),
        pytest.param(f"port = '{'x' * 200}'", "port", f"'{'x' * 79}...", id="long"),
    ],
)
def test_a_value_that_cannot_be_is_named_with_its_file_and_key(
    tmp_path: Path, line: str, named: str, got: str
) -> None:
    name = "" if line.startswith("name") else 'name = "n"\n'
    with pytest.raises(InvalidParameterError) as caught:
        read(tmp_path, f"schema_version = 2\n{name}{line}\n")
    assert caught.value.must.startswith(f"some.toml: {named} ")
    assert caught.value.got == got


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(f"url = ['{SECRET}']", id="a list"),
        pytest.param(f"url = {{ password = '{SECRET}' }}", id="a table"),
        pytest.param(f"url = {{ '{SECRET}' = 1 }}", id="a key"),
        pytest.param(f"urls = '{SECRET}'", id="under an unknown key"),
        pytest.param(f"url = '{SECRET}'\nport = 0", id="beside another fault"),
        pytest.param(f"url = '{SECRET}'\nport = 13", id="beside a fault of its own"),
        pytest.param(f"url = '{SECRET}'\nport = '", id="beside a slip"),
    ],
)
def test_no_error_says_a_secret_however_it_is_shown(tmp_path: Path, line: str) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        read(tmp_path, f'schema_version = 2\nname = "n"\n{line}\n')
    assert SECRET not in everything_said(caught.value)
    with pytest.raises(InvalidParameterError) as caught:
        typed_in(Outer, {"name": "n", "url": [SECRET]}, fault=InvalidParameterError)
    assert SECRET not in everything_said(caught.value)


def test_the_test_above_would_see_a_secret(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        read(tmp_path, f'schema_version = 2\nname = ["{SECRET}"]\n')
    assert SECRET in everything_said(caught.value)


def test_settings_do_not_show_a_secret(tmp_path: Path) -> None:
    settings = read(tmp_path, f'schema_version = 2\nname = "n"\nurl = "{SECRET}"\n')
    assert settings.url == SECRET
    assert SECRET not in f"{settings} {settings!r}"


class TestTheEnvironment:
    @staticmethod
    def over(settings: Outer) -> Outer:
        return with_environment(
            settings,
            prefix="SOME_",
            only=("port", "share", "hosts", "most", "inner"),
            fault=InvalidParameterError,
            others={"STORE_URL"},
        )

    def test_without_variables_settings_are_those_of_the_file(self) -> None:
        settings = Outer("n", port=3, inner=Inner(4))
        assert self.over(settings) is settings

    @pytest.mark.parametrize(
        ("variable", "text", "changed"),
        [
            pytest.param("SOME_PORT", "8443", {"port": 8443}, id="number"),
            pytest.param("SOME_SHARE", "0.25", {"share": 0.25}, id="share"),
            pytest.param("SOME_HOSTS", '["b"]', {"hosts": ("b",)}, id="list"),
            pytest.param("SOME_INNER__ROWS", "5", {"inner": Inner(5)}, id="key of a table"),
            pytest.param("SOME_INNER", '{"rows": 5}', {"inner": Inner(5)}, id="table"),
        ],
    )
    def test_a_variable_overrides_its_key_and_no_other(
        self, monkeypatch: pytest.MonkeyPatch, variable: str, text: str, changed: dict[str, Any]
    ) -> None:
        settings = Outer("n", port=3, share=0.75, url=SECRET, inner=Inner(4))
        monkeypatch.setenv(variable, text)
        assert self.over(settings) == replace(settings, **changed)

    @pytest.mark.parametrize("name", ["name", "url", "rules", "is_on"])
    def test_a_key_that_may_not_be_overridden_is_refused(
        self, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        monkeypatch.setenv(f"SOME_{name.upper()}", SECRET)
        with pytest.raises(InvalidParameterError) as caught:
            self.over(Outer("n", url=SECRET))
        assert caught.value.must.startswith(f"SOME_{name.upper()} ")
        assert SECRET not in everything_said(caught.value)

    @pytest.mark.parametrize(
        ("slip", "meant"),
        [
            ("SOME_PROT", "SOME_PORT"),
            ("some_prot", "SOME_PORT"),
            ("SOME_INNER_ROWS", "SOME_INNER__ROWS"),
            ("SOME_INNER__ROW", "SOME_INNER__ROWS"),
            ("SOME_STORE", "SOME_STORE_URL"),
        ],
    )
    def test_a_slip_is_refused_with_the_name_that_was_meant(
        self, monkeypatch: pytest.MonkeyPatch, slip: str, meant: str
    ) -> None:
        monkeypatch.setenv(slip, "7")
        with pytest.raises(InvalidParameterError) as caught:
            self.over(Outer("n"))
        assert re.fullmatch(rf"{slip} .*\(.* {meant}\?\)", caught.value.must)

    def test_known_variables_and_those_of_others_are_no_slips(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("SOME_STORE_URL", "SOME_QUITE_ELSE", "OTHER_PROT", "SOMEPORTS"):
            monkeypatch.setenv(name, "7")
        settings = Outer("n")
        assert self.over(settings) is settings

    def test_a_table_has_a_longer_prefix(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def over() -> Inner:
            fault = InvalidParameterError
            return with_environment(
                Inner(4), prefix="SOME_", table="INNER_", only={"rows"}, fault=fault
            )

        monkeypatch.setenv("SOME_INNER_ROWS", "5")
        assert over() == Inner(5)
        monkeypatch.setenv("SOME_INNERROWS", "6")
        with pytest.raises(InvalidParameterError, match=r"SOME_INNERROWS .* SOME_INNER_ROWS\?"):
            over()

    @pytest.mark.parametrize(
        ("variable", "text", "named", "got"),
        [
            ("SOME_PORT", "many", "SOME_PORT: port", "'many'"),
            ("SOME_PORT", "0", "SOME_PORT: port", "'0'"),
            ("SOME_PORT", "13", "SOME_PORT: port", "13"),
            ("SOME_SHARE", "nan", "SOME_SHARE: share", "'nan'"),
            ("SOME_SHARE", "inf", "SOME_SHARE: share", "'inf'"),
            (
                "SOME_INNER__ROWS",
                "x",
                "SOME_INNER__ROWS: [inner] rows",
                "'x'",
            ),
            (
                "SOME_INNER",
                '{"row": 1}',
                "SOME_INNER__ROW: [inner] every key",
                "row",
            ),
            (
                "SOME_HOSTS",
                f"[{SECRET}",
                "SOME_...",
                "another text",
            ),
        ],
    )
    def test_a_variable_that_cannot_be_is_named(
        self, monkeypatch: pytest.MonkeyPatch, variable: str, text: str, named: str, got: str
    ) -> None:
        monkeypatch.setenv(variable, text)
        with pytest.raises(InvalidParameterError) as caught:
            self.over(Outer("n", url=SECRET))
        assert caught.value.must.startswith(f"{named} ")
        assert caught.value.got == got
        assert SECRET not in everything_said(caught.value)


class TestTheSchema:
    def test_it_names_every_key_with_kind_bound_default_and_meaning(self) -> None:
        schema = schema_of(Outer, version=2)
        assert schema["required"] == ["schema_version", "name"]
        assert schema["additionalProperties"] is False
        assert schema["description"] == "Some settings."
        keys = schema["properties"]
        assert keys["schema_version"] == {"const": 2}
        assert keys["name"]["description"] == "Its name, in two lines."
        assert (keys["port"]["type"], keys["port"]["minimum"], keys["port"]["default"]) == (
            "integer",
            1,
            1,
        )
        assert schema["$defs"]["Inner"]["properties"]["rows"]["description"] == "Its rows."

    def test_a_part_of_a_file_has_no_version(self) -> None:
        assert [*schema_of(Inner)["properties"]] == ["rows"]


def test_a_value_of_json_is_held_to_its_kind_as_strictly() -> None:
    assert checked(Inner, {"rows": 1}, where="", fault=InvalidParameterError) == Inner(1)
    with pytest.raises(InvalidParameterError, match=r"^x: rows .*, got '1'$"):
        checked(Inner, {"rows": "1"}, where="x: ", fault=InvalidParameterError)


def test_a_key_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameterError, match=r"some\.toml: name .*, got none"):
        read(tmp_path, "schema_version = 2\n")


@pytest.mark.parametrize("line", ["", "schema_version = 1", "schema_version = '2'"])
def test_another_version_is_named(tmp_path: Path, line: str) -> None:
    with pytest.raises(InvalidParameterError, match=r"some\.toml: schema_version .*\b2, got"):
        read(tmp_path, f'name = "n"\n{line}\n')


def test_a_slip_in_the_file_is_told_by_its_line(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameterError, match=r"some\.toml .*, got .*line 2"):
        read(tmp_path, "schema_version = 2\nname = n\n")


def test_bytes_that_are_no_text_are_refused_without_them(tmp_path: Path) -> None:
    (tmp_path / "some.toml").write_bytes(b"\xff secret")
    with pytest.raises(InvalidParameterError) as caught:
        read_settings(
            tmp_path / "some.toml", Outer, version=2, advice="", fault=InvalidParameterError
        )
    assert caught.value.must.startswith("some.toml ")
    assert caught.value.got == "UnicodeDecodeError"
    assert "secret" not in everything_said(caught.value)


def test_a_folder_without_it_gets_the_advice(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameterError, match=r"got .*nowhere"):
        read_settings(
            tmp_path / "nowhere" / "some.toml",
            Outer,
            version=2,
            advice="a folder must hold it",
            fault=InvalidParameterError,
        )
