"""`simulate --config`: the settings file of a run repeats it, and names no code to run."""

from __future__ import annotations

import inspect
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from coordinator import simulation
from coordinator.cli.simulate import simulate
from pate_fed.data import load_dataset
from pate_fed.mechanisms import SPECS, specs_with
from pate_fed.planning import RunSettings, resolve, terms_of
from pate_fed.record import Settings
from pate_fed.report.run_directory import RunDirectory
from protocols.forms import FORMS
from protocols.suites import DEFAULT_SUITE
from tests.support.command import Command, pate_fed, small_run, write_table
from tests.support.markers import sampled

__all__ = ["pate_fed"]  # a fixture


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Write a table with two more columns of yes and no."""
    path = write_table(tmp_path / "table.csv")
    head, *rows = path.read_text("utf-8").splitlines()
    yes_no = ("no", "yes")
    more = [f"{row},{yes_no[at % 3 == 0]},{yes_no[at % 5 == 0]}" for at, row in enumerate(rows)]
    path.write_text("\n".join([f"{head},frail,smokes", *more, ""]), "utf-8")
    return path


class Asked(Exception):  # noqa: N818 - it ends a command before its work
    """The settings with which a simulation was to begin."""


@pytest.fixture
def begun(pate_fed: Command, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the settings with which `simulate` would begin, for these arguments."""
    found: list[RunSettings] = []

    def stop(settings: RunSettings, out: Path, **_: object) -> None:
        settings.check(FORMS)
        found.append(settings)
        raise KeyboardInterrupt

    monkeypatch.setattr(simulation, "simulate", stop)

    def run(*arguments: object) -> RunSettings:
        ended = pate_fed("simulate", *arguments)
        assert found, ended.err
        return found.pop()

    return run


COLUMNS: Final = ("--label", "sick", "--patient-id", "patient", "--hospital", "clinic")
OPTIONS: Final = [
    *(pytest.param(("--mechanism", name), id=name) for name in SPECS),
    *(
        pytest.param(("--mechanism", name, "--noise", "parties"), id=f"{name} at the parties")
        for name in specs_with("parties")
    ),
    *(
        pytest.param(("--mechanism", name, "--sum", "verified"), id=f"{name} verified")
        for name in specs_with("aggregators")
    ),
    pytest.param(
        ("--mechanism", "confident", "--sigma1", 6.5, "--sigma2", 0.1 + 4.2), id="two noises"
    ),
    pytest.param(("--vote-threshold", 7, "--sigma2", 0.1 + 4.2), id="noise"),
    pytest.param(("--mechanism", "interactive", "--confidence", 0.7), id="confidence"),
    pytest.param(("--mechanism", "stable-gaussian", "--test-delta", 1e-7), id="test"),
    pytest.param(("--unit", "party", "--teachers", 1), id="unit"),
    pytest.param(("--weights", "1,2,3", "--party-epsilons", "60,50.5,70"), id="of each hospital"),
    pytest.param(
        (
            "--sum",
            "masked",
            "--noise",
            "parties",
            "--colluders",
            2,
            "--parties",
            7,
            "--partition",
            "iid",
        ),
        id="sum",
    ),
    pytest.param(("--partition", "dirichlet", "--patients", 15), id="partition"),
    pytest.param(("--records-per-teacher", 11, "--epsilon", 60), id="records of a teacher"),
    pytest.param(
        ("--select", "least-confident", "--vote-threshold", 6, "--max-answers", 5), id="queries"
    ),
    pytest.param(("--batch-size", 3, "--select", "cluster-votes"), id="batches"),
    pytest.param(("--teacher", "forest", "--student", "forest", "--coverage", 0.5), id="models"),
    pytest.param(
        ("--teacher", "neighbors", "--votes-per-patient", 2, "--mechanism", "gnmax"),
        id="records that vote",
    ),
    pytest.param(("--class-balance", "natural", "--prevalence", "0.25,0.75"), id="classes"),
    pytest.param(("--ignore", "age", "--partition", "iid"), id="columns"),
    pytest.param(
        ("--missing", "age=99", "--map", "clinic:clinic-0=north", "--drop-unlabeled"), id="cells"
    ),
    pytest.param(("--positive", "YES", "--delta", "1e-6"), id="positive"),
    pytest.param(("--label", "frail", "--label", "smokes", "--label-cap", 1), id="several labels"),
    pytest.param(("--purpose", '-x, 5 % of "all"\t'.strip(), "--seed", 3), id="purpose"),
    pytest.param(
        ("--evaluate", "private", "--evaluation-epsilon", 2, "--evaluate-by", "clinic"),
        id="evaluation",
    ),
    pytest.param(("--suite", DEFAULT_SUITE, "--engine", "local"), id="suite"),
]


@pytest.mark.parametrize("options", OPTIONS)
def test_the_settings_file_of_a_run_gives_its_settings_again(
    begun: Any, table: Path, tmp_path: Path, options: tuple[object, ...]
) -> None:
    """For every mechanism, and every setting (see below)."""
    usual = ("--queries", 6, "--epsilon", 90)
    given = begun("--data", "csv", "--data-file", table, *COLUMNS, *usual, *options)
    dataset = load_dataset(given.data, rng=np.random.default_rng(1))
    resolved = resolve(given, dataset, sums=FORMS, rng=np.random.default_rng(0))
    run = tmp_path / "run"
    with RunDirectory.open_new(run) as files:
        files.write_record(resolved.as_record())
    again = begun("--config", run / "run.toml", "--data-file", table)
    assert again.data == given.data
    # What was resolved stays as it is, and nothing else follows from the data.
    resolved_again = resolve(again, dataset, sums=FORMS, rng=np.random.default_rng(0))
    assert resolved_again.as_record() == resolved.as_record()
    assert again.as_record() == resolved.as_record()

    first, second = (
        terms_of(one, name="run", classes=2, pool_digest=bytes(32), sums=FORMS)
        for one in (resolved, resolved_again)
    )
    assert second == first


@pytest.mark.parametrize("cells", [("\\t", ","), (";", ","), ("\t", ".")])
def test_a_file_is_read_as_it_was(
    begun: Any, table: Path, tmp_path: Path, cells: tuple[str, str]
) -> None:
    form = ("--separator", cells[0], "--decimal", cells[1])
    given = begun("--data", "csv", "--data-file", table, *COLUMNS, *form)
    with RunDirectory.open_new(tmp_path / "run") as files:
        files.write_record(given.as_record())
    again = begun("--config", tmp_path / "run" / "run.toml", "--data-file", table)
    assert again == given


def test_every_setting_of_a_run_has_its_option_and_a_case_above() -> None:
    known = Settings.model_fields.keys() - {"file", "classes", "earlier"}
    assert known <= inspect.signature(simulate).parameters.keys()
    typed = {
        str(word).removeprefix("--").replace("-", "_")
        for case in OPTIONS
        for word in (*case.values[0], *COLUMNS, "--data", "--queries", "--epsilon", "--parties")  # type: ignore[attr-defined]
        if str(word).startswith("--")
    }
    free = {"device", "separator", "decimal"}  # a device needs hardware; see above
    spelled = {"sum": "form", "votes_per_patient": "patient_votes"}
    assert known - free <= {spelled.get(one, one) for one in typed}


@pytest.mark.slow
@sampled()
@pytest.mark.parametrize("mechanism", [*SPECS])
def test_a_run_is_repeated_from_its_settings(
    pate_fed: Command, table: Path, tmp_path: Path, mechanism: str
) -> None:
    """Every file but those with keys, times and words is the same to the byte."""
    first, again = tmp_path / "first", tmp_path / "again"
    usual = ("--parties", 3, "--teachers", 4, "--queries", 8, "--epsilon", 90, "--seed", 5)
    columns = ("--data", "csv", "--data-file", table, "--label", "sick")
    ended = pate_fed("simulate", *columns, *usual, "--mechanism", mechanism, "--out", first)
    assert ended.code == 0, ended.err
    ended = pate_fed(
        "simulate", "--config", first / "run.toml", "--data-file", table, "--out", again
    )
    assert ended.code == 0, ended.err
    for name in ("labels.csv", "run.toml", "privacy.json"):
        assert (again / name).read_bytes() == (first / name).read_bytes()


@pytest.mark.slow
def test_what_is_typed_counts_before_the_file(
    pate_fed: Command, table: Path, tmp_path: Path
) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    assert pate_fed(*small_run(table, first), "--seed", "5").code == 0
    ended = pate_fed(
        *("simulate", "--config", first / "run.toml", "--data-file", table),
        *("--seed", "6", "--student", "forest", "--out", again),
    )
    assert ended.code == 0, ended.err
    kept = tomllib.loads((again / "run.toml").read_text("utf-8"))
    assert (kept["seed"], kept["student"]) == (6, "forest")


@sampled()
@pytest.mark.parametrize(
    "typed", [("--epsilon", "1"), ("--parties", "7"), ("--mechanism", "gnmax")]
)
def test_what_other_settings_followed_from_is_not_changed_alone(
    pate_fed: Command, table: Path, tmp_path: Path, typed: tuple[str, str]
) -> None:
    """Budgets and noise of the file would stay, and the number that was typed mean nothing."""
    first, again = tmp_path / "first", tmp_path / "again"
    assert pate_fed(*small_run(table, first), "--seed", "5").code == 0
    ended = pate_fed(
        *("simulate", "--config", first / "run.toml", "--data-file", table, *typed),
        *("--out", again),
    )
    assert (ended.code, ended.out) == (2, "")
    assert typed[0] in ended.err
    assert not again.exists()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param("this is no toml", "TOML", id="no TOML"),
        pytest.param("epsilom = 3\n", "'epsilom'", id="unknown key"),
        pytest.param("epsilom = 3\n", "epsilon", id="unknown key, and the likely one"),
        pytest.param('epsilon = "much"\n', "epsilon", id="a word for a number"),
        pytest.param('data = "oracle"\n', "oracle", id="unknown data"),
    ],
)
def test_a_file_that_is_not_understood_is_refused(
    pate_fed: Command, tmp_path: Path, text: str, told: str
) -> None:
    config = tmp_path / "run.toml"
    config.write_text(text, "utf-8")
    ended = pate_fed("simulate", "--config", config, "--out", tmp_path / "run")
    assert (ended.code, ended.out) == (2, "")
    assert told in ended.err
    assert not (tmp_path / "run").exists()


class TestCodeOfOnesOwn:
    """A file of a stranger names none that would run."""

    @pytest.fixture
    def ran(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A module that leaves a file where it is imported; returns that file's path."""
        mark = tmp_path / "ran"
        (tmp_path / "strangers.py").write_text(
            f"open({str(mark)!r}, 'w').close()\n"
            "from sklearn.dummy import DummyClassifier as make\n",
            "utf-8",
        )
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "strangers", raising=False)
        return mark

    @pytest.mark.parametrize(
        "name",
        [
            pytest.param("strangers:make", id="a module"),
            pytest.param("strangers.make:", id="no function"),
            pytest.param(":strangers", id="no module"),
            pytest.param(" strangers : make", id="blanks"),
        ],
    )
    def test_a_settings_file_never_names_it(
        self, pate_fed: Command, ran: Path, tmp_path: Path, name: str
    ) -> None:
        config = tmp_path / "run.toml"
        config.write_text(f'teacher = "{name}"\n', "utf-8")
        ended = pate_fed("simulate", "--config", config, "--out", tmp_path / "run")
        assert ended.error_code == "PF-402"
        assert "--teacher" in ended.err
        assert not ran.exists()

    def test_neither_does_the_directory_of_an_earlier_round(
        self, pate_fed: Command, table: Path, ran: Path, tmp_path: Path
    ) -> None:
        first = tmp_path / "first"
        own = ("--teacher", "strangers:make")
        assert pate_fed(*small_run(table, first), *own).code == 0
        assert ran.exists()
        ran.unlink()
        sys.modules.pop("strangers")
        rounds = ("simulate", "--after", first, "--data-file", table, "--queries", 2)
        out = ("--epsilon", 90, "--out", tmp_path / "second")
        ended = pate_fed(*rounds, *out)
        assert ended.error_code == "PF-402"
        assert not ran.exists()
        assert pate_fed(*rounds, *out, *own).code == 0

    def test_a_run_with_it_is_repeated_once_it_is_typed_again(
        self, pate_fed: Command, table: Path, ran: Path, tmp_path: Path
    ) -> None:
        first, again = tmp_path / "first", tmp_path / "again"
        own = ("--teacher", "strangers:make")
        assert pate_fed(*small_run(table, first), *own).code == 0
        kept = tomllib.loads((first / "run.toml").read_text("utf-8"))
        assert kept["teacher"] == "strangers:make"
        config = ("--config", first / "run.toml", "--data-file", table, "--out", again)
        assert pate_fed("simulate", *config).error_code == "PF-402"
        assert pate_fed("simulate", *config, *own).code == 0
        assert (again / "labels.csv").read_bytes() == (first / "labels.csv").read_bytes()
