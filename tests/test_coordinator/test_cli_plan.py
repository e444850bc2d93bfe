"""`pate-fed plan`: one object or one screen, a picture, and coded lines for what cannot be."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from pate_fed import planning
from pate_fed.planning import PlanRequest
from pate_fed.wording import epsilon_text
from tests.support.command import Command, pate_fed, write_table
from tests.support.markers import sampled

__all__ = ["pate_fed"]

COMMAND_LINE = Path(__file__).parents[2] / "docs" / "reference" / "command-line.md"


@pytest.fixture(autouse=True, scope="module")
def _planned_once() -> Iterator[None]:
    """Make each plan once: it follows from its request alone."""
    planned: dict[PlanRequest, dict[str, Any]] = {}
    make = planning.plan

    def plan(request: PlanRequest, *, sums: Any) -> dict[str, Any]:
        if request not in planned:
            planned[request] = make(request, sums=sums)
        return deepcopy(planned[request])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "plan", plan)
        yield


@pytest.mark.slow
def test_command_prints_one_object_or_one_screen(pate_fed: Command) -> None:
    arguments = ("plan", "--parties", 30, "--classes", 2, "--epsilon", 3)
    found = json.loads(pate_fed(*arguments, "--format", "json").out)
    assert found["forecast"]["epsilon_over_answers"]
    text = pate_fed(*arguments).out
    assert len(text.splitlines()) <= 30
    assert max(len(line) for line in text.splitlines()) <= 80
    assert epsilon_text(found["forecast"]["prices"]["public"]["epsilon"], padded=True) in text


def test_queries_that_do_not_fit_are_refused_with_the_number_that_does(pate_fed: Command) -> None:
    arguments = ("plan", "--parties", 30, "--teachers", 1, "--sigma2", 9, "--epsilon", 1)
    ended = pate_fed(*arguments, "--queries", 50)
    assert (ended.code, ended.error_code) == (3, "PF-131")


@pytest.mark.slow
def test_more_hospitals_than_lines_are_grouped(pate_fed: Command) -> None:
    budgets = ",".join(["9"] * 13 + ["1.5", "9"])
    arguments = ("plan", "--parties", 15, "--teachers", 4, "--classes", 2)
    mechanism = ("--sigma2", 24, "--unit", "record")
    text = pate_fed(*arguments, *mechanism, "--party-epsilons", budgets).out
    tightest, others = [line for line in text.splitlines() if "of one unit" in line]
    assert "party-14" in tightest
    assert "party-1 and 13 more" in others


@pytest.mark.slow
def test_the_picture_shows_every_bound_and_the_budget(tmp_path: Path, pate_fed: Command) -> None:
    picture = tmp_path / "plan.svg"
    arguments = ("plan", "--parties", 30, "--classes", 2, "--epsilon", 3, "--plot", picture)
    assert pate_fed(*arguments).code == 0
    drawn = picture.read_text(encoding="utf-8")
    assert drawn.startswith("<svg")
    assert "budget" in drawn
    before = picture.read_bytes()
    again = pate_fed(*arguments)
    assert again.code == 2
    assert "--plot" in again.err
    assert picture.read_bytes() == before


class TestCommand:
    ARGUMENTS = ("plan", "--noise", "parties", "--parties", 10, "--teachers", 4, "--classes", 3)

    @pytest.mark.slow
    def test_it_prints_one_object_or_text_of_80_columns(self, pate_fed: Command) -> None:
        text = pate_fed(*self.ARGUMENTS).out
        assert max(len(line) for line in text.splitlines()) <= 80
        found = pate_fed(*self.ARGUMENTS, "--format", "json").json
        assert found["noise"] == "parties"

    @pytest.mark.parametrize(
        ("more", "code"),
        [
            pytest.param(("--sigma2", 2), "PF-107", id="narrow noise"),
            pytest.param(("--sum", "additive", "--expected-dropouts", 1), "PF-106", id="sum"),
            pytest.param(("--plot", "pyproject.toml"), "PF-105", id="no picture"),
            pytest.param(("--colluders", 9), "PF-105", id="colluders"),
        ],
    )
    def test_what_cannot_be_is_a_coded_line(
        self, pate_fed: Command, more: tuple[object, ...], code: str
    ) -> None:
        ended = pate_fed(*self.ARGUMENTS, *more)
        assert (ended.code, ended.error_code) == (2, code)

    def test_colluders_are_for_noise_at_the_parties(self, pate_fed: Command) -> None:
        ended = pate_fed("plan", "--parties", 30, "--classes", 2, "--colluders", 1)
        assert (ended.code, ended.error_code) == (2, "PF-105")

    @pytest.mark.slow
    @sampled()
    @pytest.mark.parametrize("noise", ["coordinator", "parties"])
    def test_every_key_is_documented(self, pate_fed: Command, noise: str) -> None:
        arguments = ("plan", "--parties", 30, "--classes", 2, "--epsilon", 3, "--format", "json")
        found = pate_fed(*arguments, "--noise", noise).json
        page = COMMAND_LINE.read_text(encoding="utf-8").partition("## `pate-fed plan`")[2]
        named = set(re.findall(r"`(\w+)`", page))
        assert keys_of(found) <= named

    @pytest.mark.slow
    def test_the_sum_that_is_advised_says_what_it_withstands(self, pate_fed: Command) -> None:
        text = " ".join(pate_fed(*self.ARGUMENTS).out.split())
        assert "8 of 10 hospitals" in text
        masked = " ".join(pate_fed(*self.ARGUMENTS, "--expected-dropouts", 2).out.split())
        numbers = re.findall(r"\d+", masked.partition("--sum masked: ")[2])
        assert numbers[:5] == ["3", "10", "3", "3", "8"]


def keys_of(value: object) -> set[str]:
    if isinstance(value, dict):
        return set(value).union(*map(keys_of, value.values()))
    return set().union(*map(keys_of, value)) if isinstance(value, list) else set()


@pytest.mark.slow
def test_the_advised_sum_is_printed(pate_fed: Command) -> None:
    arguments = ("plan", "--parties", 30, "--classes", 2, "--epsilon", 3)
    assert "--sum additive: " in pate_fed(*arguments).out
    masked = " ".join(pate_fed(*arguments, "--expected-dropouts", 4).out.split())
    assert re.findall(r"\d+", masked.partition("--sum masked: ")[2])[:2] == ["9", "30"]


@pytest.mark.slow
@sampled()
@pytest.mark.parametrize("form", ["additive", "masked"])
@pytest.mark.parametrize("noise", ["parties", "coordinator"])
def test_a_run_takes_what_the_plan_says_and_costs_what_it_says(
    pate_fed: Command, tmp_path: Path, form: str, noise: str
) -> None:
    federation = ["--parties", 5, "--teachers", 4, "--queries", 8, "--epsilon", 20]
    chosen = ["--noise", noise, "--sum", form]
    planned = pate_fed("plan", *federation, "--classes", 2, *chosen, "--format", "json").json
    offer = planned["forecast"]
    rule = offer["mechanism"]
    assert rule["vote_threshold"] is None
    flags = ["--mechanism", rule["name"], "--sigma2", rule["sigma2"]]
    flags += ["--queries", offer["queries"]]
    run, table = tmp_path / "run", write_table(tmp_path / "table.csv", rows=240)
    data = ["--data", "csv", "--data-file", table, "--label", "sick", "--out", run]
    ended = pate_fed("simulate", *data, *federation, *chosen, *flags)
    assert (ended.code, ended.err) == (0, "")
    views = json.loads((run / "privacy.json").read_text(encoding="utf-8"))["views"]
    for view, price in offer["prices"].items():
        assert views[view]["epsilon"] == price["epsilon"]


class TestOutlook:
    ARGUMENTS = ("plan", "--parties", 100, "--teachers", 2, "--epsilon", 8)

    @pytest.fixture
    def pool(self, tmp_path: Path) -> Path:
        path = tmp_path / "pool.csv"
        rows = [f"{age},{weight}" for age in range(30, 50) for weight in range(60, 80)]
        path.write_text("\n".join(["age,weight", *rows]) + "\n", encoding="utf-8")
        return path

    @sampled()
    @pytest.mark.slow
    @pytest.mark.parametrize("noise", ["coordinator", "parties"])
    def test_a_forecast_knows_what_hospitals_have(
        self, pate_fed: Command, pool: Path, noise: str
    ) -> None:
        asked = (*self.ARGUMENTS, "--noise", noise, "--pool", pool, "--format", "json")
        found = pate_fed(*asked).json
        assert found["outlook"]["evidence"] > 25
        answers = round(found["forecast"]["expected_answered"])
        for records, said in (
            (answers // 8, "Expect the"),
            (answers, "A gain"),
            (2 * answers, "Expect no"),
        ):
            outlook = pate_fed(*asked, "--records", records).json["outlook"]
            assert outlook["says"].startswith(said)
            assert outlook["evidence"] == found["outlook"]["evidence"]

    @pytest.mark.slow
    def test_it_stands_below_the_plan(self, pate_fed: Command, pool: Path) -> None:
        shown = pate_fed(*self.ARGUMENTS, "--pool", pool).out
        found = pate_fed(*self.ARGUMENTS, "--pool", pool, "--format", "json").json
        assert found["outlook"]["says"] in " ".join(shown.split())

    @pytest.mark.parametrize(
        ("more", "told"),
        [
            pytest.param(("--pool", "nowhere.csv"), "nowhere.csv", id="no file"),
            pytest.param(("--pool", __file__, "--records", 0), "--records", id="no records"),
        ],
    )
    def test_what_cannot_be_is_a_coded_line(
        self, pate_fed: Command, more: tuple[object, ...], told: str
    ) -> None:
        ended = pate_fed(*self.ARGUMENTS, *more)
        assert ended.code in (2, 5)
        assert told in ended.err
        assert ended.error_code
