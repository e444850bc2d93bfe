"""The form of a new run: its fields are rows of the table of settings."""

from __future__ import annotations

import pytest
from starlette.datastructures import FormData

from coordinator.console.new_run import FIELDS, FormField
from coordinator.errors import ConsoleError
from coordinator.runs.run_options import DEPLOYED_OPTIONS
from pate_fed.accounting.ranges import RANGES

ALL = {one.row.name: one for fields in FIELDS.values() for one in fields}
SENT = {
    "queries": ("4", 4),
    "epsilon": ("2.5", 2.5),
    "delta": ("1e-6", 1e-6),
    "unit": ("party", "party"),
    "mechanism": ("threshold", "threshold"),
    "sigma2": ("9", 9.0),
    "vote_threshold": ("15", 15.0),
    "noise": ("parties", "parties"),
    "form": ("masked", "masked"),
    "batch_size": ("3", 3),
    "teacher": ("neighbors", "neighbors"),
    "patient_votes": ("3", 3),
    "student": ("forest", "forest"),
    "coverage": ("0.9", 0.9),
    "purpose": ("why", "why"),
}
CHOSEN = [name for name in ALL if DEPLOYED_OPTIONS[name].choices]
NUMBERS = [name for name in ALL if DEPLOYED_OPTIONS[name].kind in {int, float}]


def named(name: str) -> FormField:
    return ALL[name]


def test_the_form_has_the_settings_of_a_deployed_run_but_for_rare_ones() -> None:
    rare = {"sigma1", "confidence", "test_delta", "suite", "prevalence"}
    assert ALL.keys() == DEPLOYED_OPTIONS.keys() - rare
    assert all(one.row is DEPLOYED_OPTIONS[name] for name, one in ALL.items())
    assert [ALL[name].key for name in ("queries", "form")] == ["ask", "sum"]


@pytest.mark.parametrize("name", ALL)
def test_a_value_goes_from_the_form_to_its_setting(name: str) -> None:
    sent, value = SENT[name]
    assert named(name).read(FormData({named(name).key: sent})) == value


@pytest.mark.parametrize("name", ALL)
def test_an_open_setting_is_the_usual_one_or_refused(name: str) -> None:
    one = named(name)
    must = "required" in one.attributes or (bool(one.choices) and "" not in one.choices)
    assert must == (name in {"epsilon", "delta"})
    if must:
        with pytest.raises(ConsoleError):
            one.read(FormData({}))
    else:
        assert one.read(FormData({})) == (20 if name == "batch_size" else None)


@pytest.mark.parametrize("name", CHOSEN)
def test_what_is_no_choice_is_refused(name: str) -> None:
    usual = {"", DEPLOYED_OPTIONS[name].usual} if "" in named(name).choices else set()
    known = DEPLOYED_OPTIONS[name].choices
    names = set(known() if callable(known) else known)
    assert named(name).choices.keys() == (names - usual) | (usual & {""})
    with pytest.raises(ConsoleError):
        named(name).read(FormData({named(name).key: "another"}))


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_has_the_range_of_its_setting(name: str) -> None:
    shown, allowed = named(name).input({}), RANGES[DEPLOYED_OPTIONS[name].place[1]]
    if name == "delta":  # as text: browsers show such numbers badly
        assert shown["type"] == "text"
        return
    assert float(str(shown["min"])) == max(0, allowed.least)
    assert shown.get("max", allowed.most) == allowed.most
    assert ("step" in shown) == (DEPLOYED_OPTIONS[name].kind is float)
    with pytest.raises(ConsoleError):
        named(name).read(FormData({named(name).key: "many"}))
