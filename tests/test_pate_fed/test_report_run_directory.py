"""The run directory: whole or not at all, and read back strictly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pate_fed.errors import InvalidParameterError, RunDirectoryError
from pate_fed.record import Settings
from pate_fed.report import RunDirectory, read_run, render_report, replace_report
from pate_fed.run_folder import forget_unfinished, refuse_existing
from tests.support.markers import sampled
from tests.support.sample_run import (
    fill,
    sample_labels,
    sample_metrics,
    sample_parties,
    sample_privacy,
    sample_settings,
    write_sample,
)

ROOT = Path(__file__).parents[2]


def test_a_run_directory_appears_whole_with_all_its_files(tmp_path: Path) -> None:
    write_sample(tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "labels.csv",
        "manifest.json",
        "metrics.json",
        "privacy.json",
        "run.toml",
        "student",
        "transcript.jsonl",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_nothing_stands_in_the_final_place_while_a_run_is_written(tmp_path: Path) -> None:
    with RunDirectory.open_new(tmp_path / "run") as run:
        fill(run)
        assert not (tmp_path / "run").exists()
        assert run.folder.parent == tmp_path
        assert run.folder.name.startswith(".run.partial-")
        assert run.folder.stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(ValueError("broken"), id="an error"),
        pytest.param(KeyboardInterrupt(), id="Ctrl-C"),
        pytest.param(SystemExit(3), id="an exit"),
    ],
)
def test_a_failure_leaves_nothing_behind(tmp_path: Path, error: BaseException) -> None:
    def work() -> None:
        with RunDirectory.open_new(tmp_path / "made" / "too" / "run") as run:
            fill(run)
            raise error

    with pytest.raises(type(error)):
        work()
    assert list(tmp_path.iterdir()) == []


@sampled()
@pytest.mark.parametrize("fatal", ["mkdir", "rename"])
def test_what_a_killed_process_left_is_forgotten_and_the_place_is_free_again(
    tmp_path: Path, fatal: str
) -> None:
    script = (
        "import os, pathlib, sys\n"
        "from pate_fed.report import RunDirectory\n"
        "from tests.support.sample_run import fill\n"
        "def die(*_, **__): os._exit(9)\n"
        "with RunDirectory.open_new(sys.argv[1]) as run:\n"
        "    fill(run)\n"
        f"    pathlib.Path.{fatal} = die\n"
    )
    target = tmp_path / "run"
    ended = subprocess.run([sys.executable, "-c", script, str(target)], cwd=ROOT, check=False)
    assert ended.returncode == 9
    assert len(list(tmp_path.iterdir())) == (1 if fatal == "mkdir" else 2)
    forget_unfinished(target)
    assert list(tmp_path.iterdir()) == []
    write_sample(target)
    before = sorted(path.name for path in target.iterdir())
    forget_unfinished(target)  # what is finished stays
    assert sorted(path.name for path in target.iterdir()) == before


def test_a_failed_rename_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_self: Path, _target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "rename", refuse)
    with (
        pytest.raises(RunDirectoryError, match="No space left"),
        RunDirectory.open_new(tmp_path / "run") as run,
    ):
        fill(run)
    assert list(tmp_path.iterdir()) == []


def test_parents_that_others_use_by_now_stay(tmp_path: Path) -> None:
    def work() -> None:
        with RunDirectory.open_new(tmp_path / "a" / "run"):
            (tmp_path / "a" / "other").touch()
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        work()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["other"]


def _make_folder(path: Path) -> None:
    path.mkdir()


def _make_full_folder(path: Path) -> None:
    path.mkdir()
    (path / "theirs").write_text("keep", encoding="utf-8")


def _make_file(path: Path) -> None:
    path.write_text("keep", encoding="utf-8")


def _make_dangling_link(path: Path) -> None:
    path.symlink_to(path.parent / "nowhere")


_OBSTACLES = [
    pytest.param(_make_folder, id="empty folder"),
    pytest.param(_make_full_folder, id="folder with a file"),
    pytest.param(_make_file, id="file"),
    pytest.param(_make_dangling_link, id="dangling link"),
]


@pytest.mark.parametrize("make", _OBSTACLES)
def test_an_existing_path_is_refused_before_any_work(tmp_path: Path, make: Any) -> None:
    make(tmp_path / "run")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(RunDirectoryError, match="exist"):
        refuse_existing(tmp_path / "run")
    with (
        pytest.raises(RunDirectoryError, match="exist"),
        RunDirectory.open_new(tmp_path / "run"),
    ):
        pytest.fail("the block must not be entered")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("make", _OBSTACLES)
def test_what_appeared_meanwhile_is_not_overwritten(tmp_path: Path, make: Any) -> None:
    theirs: list[Path] = []

    def work() -> None:
        with RunDirectory.open_new(tmp_path / "run") as run:
            make(tmp_path / "run")
            theirs.extend(path for path in tmp_path.rglob("*") if path != run.folder)
            fill(run)

    with pytest.raises(RunDirectoryError, match="exist"):
        work()
    assert sorted(tmp_path.rglob("*")) == sorted(theirs)


def test_a_place_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for act in (refuse_existing, lambda path: RunDirectory.open_new(path).__enter__()):
        with pytest.raises(RunDirectoryError, match="writable"):
            act(tmp_path / "file" / "run")


def test_a_free_place_is_not_refused_and_not_made(tmp_path: Path) -> None:
    refuse_existing(tmp_path / "not" / "yet" / "run")
    assert list(tmp_path.iterdir()) == []


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    run = write_sample(tmp_path / "run")
    assert run.metrics.as_json() == sample_metrics()
    assert run.privacy.as_json() == sample_privacy()
    assert run.settings.as_json() == sample_settings()
    assert list(run.labels) == [(str(query_id), label) for query_id, label in sample_labels()]
    assert repr(run) == "FinishedRun(labels=30, files=7)"


def test_json_is_sorted_indented_and_ends_in_a_newline(tmp_path: Path) -> None:
    with RunDirectory.open_new(tmp_path / "run") as run:
        run.write_json("x.json", {"b": 2, "a": 0.5, "c": True})
    text = (tmp_path / "run" / "x.json").read_text(encoding="utf-8")
    assert text == '{\n  "a": 0.5,\n  "b": 2,\n  "c": true\n}\n'


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(float("nan"), id="not a number"),
        pytest.param(float("inf"), id="infinity"),
        pytest.param(np.zeros(2), id="an array"),
        pytest.param({1, 2}, id="a set"),
    ],
)
def test_json_holds_finite_plain_values_only(tmp_path: Path, value: object) -> None:
    with (
        pytest.raises(InvalidParameterError, match=r"x\.json "),
        RunDirectory.open_new(tmp_path / "run") as run,
    ):
        run.write_json("x.json", {"value": value})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../x.json", "a/b.json", "", "/x.json"])
def test_a_file_stays_inside_the_run_directory(tmp_path: Path, name: str) -> None:
    with (
        pytest.raises((InvalidParameterError, RunDirectoryError)),
        RunDirectory.open_new(tmp_path / "run") as run,
    ):
        run.write_json(name, {})
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_written_once(tmp_path: Path) -> None:
    with RunDirectory.open_new(tmp_path / "run") as run:
        run.write_labels([])
        with pytest.raises(RunDirectoryError, match="File exists"):
            run.write_labels([(1, "other")])
    assert (tmp_path / "run" / "labels.csv").read_bytes() == b"query_id,label\n"


def test_settings_leave_out_what_is_none(tmp_path: Path) -> None:
    changed = {"seed": None, "data": "digits", "file": None}
    run = write_sample(tmp_path / "run", settings=changed)
    assert run.settings == Settings(data="digits")
    assert (tmp_path / "run" / "run.toml").read_text(encoding="utf-8") == 'data = "digits"\n'


def test_labels_are_rows_with_plain_line_ends(tmp_path: Path) -> None:
    with RunDirectory.open_new(tmp_path / "run") as run:
        run.write_labels([(4, "nine"), (17, ""), (5, 'a "b", c')])
    assert (tmp_path / "run" / "labels.csv").read_bytes() == (
        b"query_id,label\n4,nine\n17,\n5,a \\x22b\\x22\\x2c c\n"
    )


def test_labels_lead_back_to_the_rows_asked_about(tmp_path: Path) -> None:
    write_sample(tmp_path / "run")
    (tmp_path / "run" / "labels.csv").unlink()
    RunDirectory(tmp_path / "run").write_labels(
        [(2, "nine"), (0, "")], row_names=["31", "7", "a/b, c.png"], drawn_in={0: "first"}
    )
    assert (tmp_path / "run" / "labels.csv").read_bytes() == (
        b"query_id,label,row,drawn_in\n2,nine,a/b\\x2c c.png,\n0,,31,first\n"
    )
    assert read_run(tmp_path / "run").labels == (("2", "nine"), ("0", ""))


@given(rows=st.lists(st.tuples(st.integers(0), st.text(st.characters(exclude_categories=["Cs"])))))
@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_any_label_comes_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, str]]
) -> None:
    folder = tmp_path_factory.mktemp("labels") / "run"
    write_sample(folder)
    (folder / "labels.csv").unlink()
    RunDirectory(folder).write_labels(rows)
    assert list(read_run(folder).labels) == [(str(query_id), label) for query_id, label in rows]


@pytest.mark.parametrize(
    "name", ["run.toml", "manifest.json", "metrics.json", "privacy.json", "labels.csv"]
)
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    write_sample(tmp_path / "run")
    (tmp_path / "run" / name).unlink()
    with pytest.raises(RunDirectoryError, match=f"readable {name}"):
        read_run(tmp_path / "run")


@sampled()
@pytest.mark.parametrize("name", ["manifest.json", "metrics.json", "privacy.json"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b'{"schema_version": 2}', "schema_version .* 2", id="version 2"),
        pytest.param(b'{"schema_version": true}', "schema_version ", id="version true"),
        pytest.param(b"{}", "schema_version ", id="no version"),
        pytest.param(b"{", "JSON", id="cut off"),
        pytest.param(b"", "JSON", id="empty"),
        pytest.param(b'{"schema_version": NaN}', "schema_version ", id="not a number"),
        pytest.param(b"[" * 100_000, "JSON", id="too deep"),
        pytest.param(b"[]", "got list", id="a list"),
        pytest.param(b"\xff\xfe{}", "UTF-8", id="other bytes"),
    ],
)
def test_a_broken_json_file_is_a_coded_error(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    write_sample(tmp_path / "run")
    (tmp_path / "run" / name).write_bytes(content)
    with pytest.raises(RunDirectoryError, match=message) as caught:
        read_run(tmp_path / "run")
    assert name in str(caught.value)
    assert caught.value.code == "PF-140"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        pytest.param("run.toml", "a = \n", "TOML", id="settings"),
        pytest.param("labels.csv", "", "query_id,label", id="no header"),
        pytest.param("labels.csv", "a,b\n", "query_id,label", id="other header"),
        pytest.param("labels.csv", "query_id,label\n1\n", "row 2", id="short row"),
        *(
            pytest.param("labels.csv", f"query_id,label\n1,a\\{code}\n", "CSV", id=f"escape {code}")
            for code in ("", "n", "x4", "ud800", "U00200000", "Uffffffff")
        ),
        pytest.param(
            "labels.csv",
            "query_id,label,drawn_in,row\n",
            "query_id,label",
            id="columns in another order",
        ),
        pytest.param("labels.csv", 'query_id,label\n1,"x\n', "CSV", id="open quote"),
    ],
)
def test_a_broken_table_is_a_coded_error(
    tmp_path: Path, name: str, content: str, message: str
) -> None:
    write_sample(tmp_path / "run")
    (tmp_path / "run" / name).write_text(content, encoding="utf-8")
    with pytest.raises(RunDirectoryError, match=message):
        read_run(tmp_path / "run")


@pytest.mark.parametrize(
    ("file", "path", "value"),
    [
        pytest.param("metrics.json", "scores.student.accuracy", 1.5, id="accuracy above 1"),
        pytest.param("metrics.json", "queries.asked", -1, id="negative count"),
        pytest.param("metrics.json", "queries.asked", True, id="truth as a count"),
        pytest.param("metrics.json", "per_class", {"a": {"answered": 1}}, id="half an entry"),
        pytest.param("metrics.json", "warnings", [1], id="a warning that is no text"),
        pytest.param("privacy.json", "privacy_unit", "patient", id="unknown unit"),
        pytest.param("privacy.json", "views.public.epsilon", "4.9", id="epsilon as text"),
        pytest.param("privacy.json", "charged", 1.01, id="charged above 1"),
        pytest.param("privacy.json", "ledger", [{"asked": 1}], id="half a batch"),
        pytest.param("privacy.json", "threat_model", None, id="no trust sentence"),
        pytest.param("privacy.json", "views.removal", {"epsilon": 4}, id="a bare number"),
        pytest.param("privacy.json", "parties", [{"party": "a"}], id="half a hospital"),
        *(
            pytest.param(
                "privacy.json",
                "parties",
                [{**sample_parties(1)[0], key: value}],
                id=f"{key} {value}",
            )
            for key, value in (
                ("unit_votes", None),
                ("method", 1),
                ("epsilon", "5"),
            )
        ),
        pytest.param("privacy.json", "budget.order_of_series", "6", id="order as text"),
        pytest.param("metrics.json", "queries.reinforced", 0.5, id="half a label"),
    ],
)
def test_a_value_of_another_kind_is_named(
    tmp_path: Path, file: str, path: str, value: object
) -> None:
    write_sample(tmp_path / "run")
    content = json.loads((tmp_path / "run" / file).read_text(encoding="utf-8"))
    *tables, last = path.split(".")
    place = content
    for key in tables:
        place = place[key]
    place[last] = value
    (tmp_path / "run" / file).write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(RunDirectoryError, match=f"{file}: {path}[.\\w]* "):
        read_run(tmp_path / "run")
    del place[last]
    (tmp_path / "run" / file).write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(RunDirectoryError, match=f"{file}: {path} must be there"):
        read_run(tmp_path / "run")


def test_a_run_directory_that_is_absent_is_a_coded_error(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="folder"):
        read_run(tmp_path / "nowhere")


def test_the_report_is_the_same_when_made_again_from_the_directory(tmp_path: Path) -> None:
    with RunDirectory.open_new(tmp_path / "run") as run:
        fill(run)
        run.write_report(render_report(run.read_back()))
    report = tmp_path / "run" / "report.html"
    first = report.read_bytes()
    replace_report(tmp_path / "run", render_report(read_run(tmp_path / "run")))
    assert report.read_bytes() == first


def test_a_report_is_replaced_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sample(tmp_path / "run")
    replace_report(tmp_path / "run", "old")

    def refuse(_descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", refuse)
    before = sorted((tmp_path / "run").iterdir())
    with pytest.raises(RunDirectoryError, match="Input/output error"):
        replace_report(tmp_path / "run", "new")
    assert (tmp_path / "run" / "report.html").read_text(encoding="utf-8") == "old"
    assert sorted((tmp_path / "run").iterdir()) == before


@pytest.mark.parametrize(
    ("file", "path"),
    [
        pytest.param("privacy.json", path, id=path)
        for path in (
            "budget.order_of_series",
            "charged",
            "mechanism.sigma2",
            "mechanism.vote_threshold",
            "noise.delta_slack",
            "views.public.epsilon",
            "views.removal",
        )
    ]
    + [pytest.param("metrics.json", "queries.pool", id="queries.pool")],
)
def test_what_does_not_apply_may_be_null(tmp_path: Path, file: str, path: str) -> None:
    write_sample(tmp_path / "run")
    content = json.loads((tmp_path / "run" / file).read_text(encoding="utf-8"))
    *tables, last = path.split(".")
    place = content
    for key in tables:
        place = place[key]
    place[last] = None
    (tmp_path / "run" / file).write_text(json.dumps(content), encoding="utf-8")
    assert read_run(tmp_path / "run")


@pytest.mark.parametrize("name", ["confidence", "test_delta", "unit_votes", "gamma", "constant"])
def test_a_parameter_that_few_mechanisms_have_may_be_missing_but_not_be_of_another_kind(
    tmp_path: Path, name: str
) -> None:
    write_sample(tmp_path / "run")
    file = tmp_path / "run" / "privacy.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    assert name not in content["mechanism"]
    for value, is_read in ((1, True), (None, True), ("1", False), (-1, False)):
        content["mechanism"][name] = value
        file.write_text(json.dumps(content), encoding="utf-8")
        if is_read:
            assert getattr(read_run(tmp_path / "run").privacy.mechanism, name) == value
        else:
            with pytest.raises(RunDirectoryError, match=f"privacy.json: mechanism.{name} "):
                read_run(tmp_path / "run")
