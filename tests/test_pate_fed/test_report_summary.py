"""The terminal summary: one screen, plain words, exact numbers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from pate_fed.accounting.costs import NO_BOUND_METHOD
from pate_fed.report import render_summary
from tests.support.sample_run import (
    metrics_of,
    privacy_of,
    sample_metrics,
    sample_parties,
    sample_privacy,
)


def _render(metrics: dict[str, Any], privacy: dict[str, Any], run_dir: str = "runs/a") -> str:
    text = render_summary(metrics_of(metrics), privacy_of(privacy), run_dir)
    lines = text.split("\n")
    assert len(lines) <= 24
    assert max(map(cell_len, lines)) <= 80
    assert all(letter.isprintable() or letter == "\n" for letter in text)
    return text


def test_a_private_number_is_never_in_the_summary() -> None:
    assert "2.13" not in _render(sample_metrics(), sample_privacy())


@pytest.mark.parametrize(("student", "said"), [(0.41, True), (0.6734, False), (None, False)])
def test_a_student_worse_than_a_hospital_is_said_plainly(student: float | None, said: bool) -> None:
    metrics = sample_metrics()
    if student is None:
        metrics["scores"]["student"] = None
    else:
        metrics["scores"]["student"]["accuracy"] = student
    text = _render(metrics, sample_privacy())
    assert ("better alone" in text) is said


@pytest.mark.parametrize("most", [1, 3, 2**31])
def test_where_records_vote_the_unit_has_the_cap_of_a_patient(most: int) -> None:
    privacy = sample_privacy()
    privacy["privacy_unit"] = "record"
    privacy["mechanism"]["patient_votes"] = most
    text = _render(sample_metrics(), privacy)
    said = text.partition("\nunit ")[2].partition("\nneighbors ")[0]
    assert re.findall(r"[0-9]+", said)[-1] == str(most)


def test_a_real_run_is_not_called_simulated() -> None:
    metrics, privacy = sample_metrics(), sample_privacy()
    metrics["simulated"] = privacy["simulated"] = False
    assert "SIMULATED" not in _render(metrics, privacy)


def test_a_second_number_stands_only_where_it_is_proved_and_names_its_method() -> None:
    privacy = sample_privacy()
    privacy["views"]["removal"]["method"] = "another way"
    text = " ".join(_render(sample_metrics(), privacy).split())
    assert re.search("epsilon 3.457, .* method: another way", text)
    privacy["views"]["removal"] = None
    assert "vote cast" not in _render(sample_metrics(), privacy)


def test_a_mechanism_that_protects_nobody_has_neither_number_nor_budget() -> None:
    text = " ".join(_render(sample_metrics(), sample_privacy(NO_BOUND_METHOD)).split())
    assert f"method: {NO_BOUND_METHOD}" in text
    assert "budget none" in text
    assert "epsilon 5" not in text


def test_a_full_screen_cuts_texts_before_it_drops_a_line() -> None:
    """Everything at its longest, and still one line for the warnings."""
    metrics, privacy = sample_metrics(), sample_privacy()
    number = 10**12
    metrics["scores"]["student"]["accuracy"] = 0.1
    metrics["parties"] = metrics["teachers"] = number
    metrics["queries"] = dict.fromkeys(metrics["queries"], number)
    metrics["warnings"] = ["word " * 100]
    privacy["neighboring_definition"] = "word " * 100
    privacy["unit_votes"] = number
    for view in ("public", "coordinator"):
        privacy["views"][view].update(method="word " * 100, epsilon=float(number))
    privacy["ledger"] = [
        {"batch": batch, "state": "forfeited", "asked": 0, "answered": 0, "charged": 0}
        for batch in range(40)
    ]
    text = _render(metrics, privacy)
    for name in ("Queries", "Privacy cost", "unit", "neighbors", "void batches"):
        assert f"\n{name} " in text
    assert "1 more warning: see report.html" in text


def test_warnings_that_do_not_fit_are_counted() -> None:
    metrics = sample_metrics()
    metrics["warnings"] = [f"warning number {number}" for number in range(12)]
    text = _render(metrics, sample_privacy())
    shown = text.count("warning number")
    assert shown >= 3
    assert f"{12 - shown} more warnings: see report.html" in text


def test_all_warnings_are_shown_where_they_fit() -> None:
    metrics = sample_metrics()
    metrics["warnings"] = ["the first", "the second"]
    text = _render(metrics, sample_privacy())
    assert "the first" in text
    assert "the second" in text
    assert "more warning" not in text


def test_a_long_place_keeps_its_end() -> None:
    place = str(Path("/" + "long/" * 40) / "run")
    text = _render(sample_metrics(), sample_privacy(), place)
    assert text.endswith("long/run/report.html")


_TEXTS = st.text(max_size=300)


@given(
    text=_TEXTS,
    number=st.integers(0, 10**12),
    warnings=st.lists(_TEXTS, max_size=30),
    void=st.integers(0, 40),
    hospitals=st.integers(3, 12),
)
def test_the_summary_fits_one_screen_whatever_it_says(
    text: str, number: int, warnings: list[str], void: int, hospitals: int
) -> None:
    metrics, privacy = sample_metrics(), sample_privacy()
    metrics["scores"]["student"]["accuracy"] = 0.1
    metrics["warnings"] = warnings
    metrics["parties"] = metrics["teachers"] = number
    metrics["queries"] = dict.fromkeys(metrics["queries"], number)
    privacy["neighboring_definition"] = text
    privacy["unit_votes"] = number
    privacy["parties"] = sample_parties(hospitals, alike=hospitals % 2 == 0)
    for view in ("public", "coordinator"):
        privacy["views"][view].update(method=text, epsilon=float(number))
    privacy["ledger"] += [
        {"batch": 3 + extra, "state": "forfeited", "asked": 15, "answered": 0, "charged": 15}
        for extra in range(void)
    ]
    shown = _render(metrics, privacy, text.replace("\x00", "") or "x")
    if warnings:
        assert "Warning" in shown or "more warning" in shown


@pytest.mark.parametrize(
    ("form", "simulated"), [("additive", True), ("additive", False), ("plain", False)]
)
def test_a_simulation_claims_secrecy_for_the_protocol_only(form: str, simulated: bool) -> None:
    metrics = {**sample_metrics(), "simulated": simulated}
    privacy = {**sample_privacy(), "simulated": simulated, "sum": form}
    text = " ".join(_render(metrics, privacy).split())
    assert ("its votes" in text) is (form == "plain")
    assert ("The protocol" in text) is simulated


@pytest.mark.parametrize("model", ["central", "distributed"])
def test_the_coordinator_saw_noisy_sums_only_where_it_never_saw_another(model: str) -> None:
    """A run with noise at the hospitals may reuse answers of one without."""
    privacy = sample_privacy()
    privacy["noise"]["place"], privacy["trust_model"] = "parties", model
    text = " ".join(_render(sample_metrics(), privacy).split())
    assert ("noisy sum" in text) is (model == "distributed")
