"""`pate-fed account`: what votes would cost, by every method side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.command import Command, pate_fed
from tests.support.real_data import real_data

__all__ = ["pate_fed"]

METHODS = {
    "formal_gdp",
    "formal_label",
    "formal_joint",
    "per_instance_paper",
    "per_instance_cks",
    "per_instance_exact",
    "sanitized",
}


def write_votes(path: Path, votes: Any = None) -> Path:
    rng = np.random.default_rng(3)
    made = rng.multinomial(50, [0.7, 0.2, 0.1], size=40)
    np.save(path, made if votes is None else votes)
    return path


def price(pate_fed: Command, votes: Path, *more: object) -> dict[str, Any]:
    ended = pate_fed(
        *("account", votes, "--vote-threshold", 30, "--sigma1", 15, "--sigma2", 8),
        *("--format", "json", *more),
    )
    assert (ended.code, ended.err) == (0, "")
    found: dict[str, Any] = json.loads(ended.out)
    return found


def test_every_method_says_unit_neighbors_view_method_and_whether_it_may_be_shown(
    pate_fed: Command, tmp_path: Path
) -> None:
    found = price(pate_fed, write_votes(tmp_path / "votes.npy"))
    assert set(found["epsilon"]) == METHODS
    for row in found["epsilon"].values():
        assert {"epsilon", "unit", "neighbors", "view", "method", "releasable"} <= set(row)
    shown = {name for name, row in found["epsilon"].items() if row["releasable"]}
    assert shown == {"formal_gdp", "formal_label", "formal_joint"}


def test_formal_bounds_are_ordered_and_exact_is_below_the_papers(
    pate_fed: Command, tmp_path: Path
) -> None:
    epsilon = {
        name: row["epsilon"]
        for name, row in price(pate_fed, write_votes(tmp_path / "votes.npy"))["epsilon"].items()
    }
    assert epsilon["formal_label"] < epsilon["formal_gdp"]
    assert epsilon["per_instance_exact"] < epsilon["per_instance_cks"]
    assert epsilon["per_instance_cks"] < epsilon["per_instance_paper"]


def test_caps_that_are_not_whole_make_formal_numbers_private(
    pate_fed: Command, tmp_path: Path
) -> None:
    votes = write_votes(tmp_path / "votes.npy")
    found = price(pate_fed, votes, "--max-answers", 20.5, "--max-refusals", 19.5)
    assert not any(row["releasable"] for row in found["epsilon"].values())
    assert found["epsilon"]["formal_joint"]["max_answers"] == 20.5


@pytest.mark.parametrize("kind", ["uint8", "int16", "int64", "float32", "float64"])
def test_every_width_of_number_gives_the_same_result(
    pate_fed: Command, tmp_path: Path, kind: str
) -> None:
    votes = np.random.default_rng(3).multinomial(50, [0.7, 0.2, 0.1], size=12)
    plain = price(pate_fed, write_votes(tmp_path / "plain.npy", votes))
    other = price(pate_fed, write_votes(tmp_path / "other.npy", votes.astype(kind)))
    assert plain == other


@pytest.mark.parametrize(
    ("votes", "code"),
    [
        pytest.param(np.array([[3, -1], [1, 1]]), "PF-102", id="negative"),
        pytest.param(np.array([[3, 1], [1, 1]]), "PF-102", id="rows of different sums"),
        pytest.param(np.array([[3.5, 0.5]]), "PF-102", id="not whole"),
        pytest.param(np.array([[np.nan, 1.0]]), "PF-102", id="not a number"),
        pytest.param(np.array([[np.inf, 1.0]]), "PF-102", id="infinite"),
        pytest.param(np.array([[4], [4]]), "PF-102", id="one class"),
        pytest.param(np.array([4, 4]), "PF-102", id="one axis"),
        pytest.param(np.zeros((0, 3)), "PF-102", id="no query"),
        pytest.param(np.zeros((2, 3)), "PF-102", id="no votes"),
        pytest.param(np.array([["a", "b"]]), "PF-102", id="text"),
        pytest.param(np.array([[2**40, 1]]), "PF-102", id="too many votes"),
    ],
)
def test_votes_that_no_teachers_cast_are_refused(
    pate_fed: Command, tmp_path: Path, votes: Any, code: str
) -> None:
    path = write_votes(tmp_path / "votes.npy", votes)
    ended = pate_fed("account", path, "--mechanism", "gnmax", "--sigma2", 8)
    assert ended.error_code == code
    assert ended.code != 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        pytest.param(("--sigma2", 0), "PF-101", id="no noise"),
        pytest.param(("--sigma2", 8, "--delta", 1), "PF-101", id="delta of 1"),
        pytest.param(("--sigma2", 8, "--rows", "5:2"), "PF-101", id="rows backwards"),
        pytest.param(("--sigma2", 8, "--rows", "0:99"), "PF-101", id="rows beyond the end"),
        pytest.param(("--sigma2", 8, "--rows", "x"), "PF-402", id="no rows"),
        pytest.param(("--sigma2", 8, "--sigma1", 9), "PF-401", id="a check for GNMax"),
    ],
)
def test_bad_parameters_are_refused(
    pate_fed: Command, tmp_path: Path, arguments: tuple[object, ...], code: str
) -> None:
    votes = write_votes(tmp_path / "votes.npy")
    ended = pate_fed("account", votes, "--mechanism", "gnmax", *arguments)
    assert ended.error_code == code


@pytest.mark.parametrize("content", [b"", b"no numpy file", b"\x93NUMPY\x01\x00", b"\x80\x04."])
def test_files_that_are_no_array_are_refused(
    pate_fed: Command, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "votes.npy"
    path.write_bytes(content)
    broken = pate_fed("account", path, "--mechanism", "gnmax", "--sigma2", 8)
    assert (broken.code, broken.error_code) == (5, "PF-111")
    gone = pate_fed("account", tmp_path / "none.npy", "--mechanism", "gnmax", "--sigma2", 8)
    assert (gone.code, gone.error_code) == (5, "PF-111")


def test_pickled_arrays_are_refused(pate_fed: Command, tmp_path: Path) -> None:
    path = tmp_path / "votes.npy"
    np.save(path, np.array([[{}]], dtype=object), allow_pickle=True)
    ended = pate_fed("account", path, "--mechanism", "gnmax", "--sigma2", 8)
    assert ended.error_code == "PF-111"


@pytest.mark.parametrize(
    ("name", "rows", "threshold", "sigma1", "delta", "expected"),
    [
        pytest.param("mnist", "0:640", 200, 150, 1e-5, (1.9988, 14.0, 1.7119, 0.936), id="mnist"),
        pytest.param("adult", "0:1500", 300, 200, 1e-5, (1.6782, 15.5, 1.4136, 0.968), id="adult"),
    ],
)
def test_published_votes_cost_what_the_paper_says(  # noqa: PLR0917 - a table's columns
    pate_fed: Command,
    name: str,
    rows: str,
    threshold: float,
    sigma1: float,
    delta: float,
    expected: tuple[float, float, float, float],
) -> None:
    votes = real_data(f"data/pate_votes/pate2018_counts/{name}_250_teachers.npy")
    ended = pate_fed(
        *("account", votes, "--rows", rows, "--vote-threshold", threshold, "--sigma1", sigma1),
        *("--sigma2", 40, "--delta", delta, "--format", "json"),
    )
    epsilon = json.loads(ended.out)["epsilon"]
    paper, order, cks, exact = expected
    assert epsilon["per_instance_paper"]["epsilon"] == pytest.approx(paper, abs=5e-5)
    assert epsilon["per_instance_paper"]["order"] == order
    assert epsilon["per_instance_cks"]["epsilon"] == pytest.approx(cks, abs=5e-5)
    assert epsilon["per_instance_exact"]["epsilon"] == pytest.approx(exact, abs=0.002)


def test_text_fits_a_terminal(pate_fed: Command, tmp_path: Path) -> None:
    votes = write_votes(tmp_path / "votes.npy")
    ended = pate_fed("account", votes, "--vote-threshold", 30, "--sigma1", 15, "--sigma2", 8)
    assert ended.code == 0
    assert max(len(line) for line in ended.out.splitlines()) <= 80
    assert ended.out.count("PRIVATE") == 4
