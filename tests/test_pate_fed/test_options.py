"""`pate_fed.options`: one row for each setting, from its option to `run.toml` and back."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest

from pate_fed.data import DataSource
from pate_fed.options import OPTIONS, Option, fields_of, option_of
from pate_fed.planning import RunSettings
from pate_fed.record import Settings
from pate_fed.rule import CAPS, Caps, Rule
from protocols.suites import DEFAULT_SUITE

PARTS = {"data": DataSource, "rule": Rule, "caps": Caps, "": RunSettings}
WITHOUT = {("", "party_teachers"), ("rule", "dropouts"), ("caps", "labels")}
"""Fields that planning alone fills in; labels are counted by their columns."""

NO_KEY = {"data_dir", "data_file"}
"""Settings that `run.toml` leaves out: paths of this machine."""

OF_CHOICE = {"data": "csv", "mechanism": "confident"}


def value_of(option: Option, place: int) -> Any:
    """Return a value that no other setting has."""
    if option.name in OF_CHOICE:
        return OF_CHOICE[option.name]
    if option.name in {"separator", "decimal"}:
        return {"separator": "\t", "decimal": ","}[option.name]
    if option.name == "map":
        return ("old=new",)
    kind = get_args(option.kind)[0] if get_origin(option.kind) else option.kind
    number = (place + 2) / 100 if kind is float else place + 2
    one = kind(f"{option.name}-{place}" if kind in (str, Path) else number)
    return (one,) if get_origin(option.kind) else one


ALL = {name: value_of(option, place) for place, (name, option) in enumerate(OPTIONS.items())}


@pytest.mark.parametrize("part", PARTS)
def test_every_field_of_settings_has_one_row(part: str) -> None:
    places = [one.place[1] for one in OPTIONS.values() if one.place[0] == part]
    own = {one.name for one in fields(PARTS[part])} - {name for name in PARTS if name}
    assert len(places) == len(set(places))
    assert set(places) == own - {field for held, field in WITHOUT if held == part}


def test_settings_of_every_name_hold_every_value() -> None:
    settings = RunSettings.of(ALL)
    assert {name: option.of(settings) for name, option in OPTIONS.items()} == ALL


def test_run_toml_gives_every_value_again() -> None:
    record = Settings.of_toml(RunSettings.of(ALL).as_record().as_text())
    kept = {name: getattr(record, name) for name in OPTIONS.keys() - NO_KEY}
    assert kept == {name: value for name, value in ALL.items() if name not in NO_KEY}
    assert record.file == Path(ALL["data_file"]).name
    assert Settings.model_fields.keys() - OPTIONS.keys() == {"file", "classes", "earlier"}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_changed_value_changes_its_field_alone(name: str) -> None:
    given = {"data": "digits", "suite": DEFAULT_SUITE, "mechanism": "gnmax", "separator": ";"}
    usual = RunSettings.of(given)
    if name == "data":
        changed = usual.changed({"data": "breast-cancer"})
    else:
        changed = usual.changed({name: ALL[name]})
    different = {each for each, option in OPTIONS.items() if option.of(usual) != option.of(changed)}
    assert different == {name}
    assert usual.changed({}) == usual


def test_names_that_are_left_out_keep_their_usual_values() -> None:
    given = {"suite": DEFAULT_SUITE, "data": "digits"}
    settings = RunSettings.of({**dict.fromkeys(OPTIONS), **given})
    assert settings == RunSettings.of(given)
    assert settings.caps == CAPS
    usual = {name: one.usual for name, one in OPTIONS.items() if one.usual is not None}
    assert {name: OPTIONS[name].of(settings) for name in usual} == usual


@pytest.mark.parametrize(
    ("given", "mechanism"),
    [
        ({"data": "digits"}, "threshold"),
        ({"data": "csv", "data_file": Path("a.csv"), "label": "ill"}, "gnmax"),
        (
            {"data": "csv", "data_file": Path("a.csv"), "label": "ill", "vote_threshold": 3.0},
            "threshold",
        ),
        ({"data": "digits", "mechanism": "lnmax"}, "lnmax"),
    ],
)
def test_the_mechanism_is_the_usual_one_unless_it_is_named(
    given: dict[str, Any], mechanism: str
) -> None:
    assert RunSettings.of({**given, "suite": DEFAULT_SUITE}).rule.mechanism == mechanism


def test_a_flag_is_found_by_its_settings_name_or_its_field() -> None:
    assert [option_of(name) for name in ("queries", "max_asks")] == ["--queries"] * 2
    assert [option_of(name) for name in ("noise", "noise_place")] == ["--noise"] * 2
    assert [option_of(name) for name in ("form", "label_column")] == ["--sum", "--label"]
    assert option_of("expected_dropouts") == "--expected-dropouts"


def test_values_of_python_are_what_the_command_line_reads() -> None:
    """A hospital refuses terms whose epsilon is a whole number: their bytes are others."""
    written = {"epsilon": 3, "sigma2": 12, "weights": (1, 2), "prevalence": (1, 0.5)}
    table = {"data": "csv", "data_file": "a.csv", "label": "ill"}
    settings = RunSettings.of({**table, "suite": DEFAULT_SUITE, **written})
    assert settings.data.data_file == Path("a.csv")
    found = (settings.epsilon, settings.rule.sigma2, *(settings.prevalence or ()))
    assert list(map(repr, found)) == ["3.0", "12.0", "1.0", "0.5"]
    assert settings.weights == (1, 2)
    assert settings.changed({"epsilon": 4}).epsilon.hex() == (4.0).hex()


def test_a_part_has_its_own_fields() -> None:
    assert fields_of("rule", {"noise": "parties", "queries": 3}) == {"noise_place": "parties"}
    with pytest.raises(KeyError):
        fields_of("rule", {"sigma3": 1.0})
