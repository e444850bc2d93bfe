"""`pate-fed transcript verify`: good, or broken at a line that is named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pate_fed.report.run_directory import digests_of
from protocols.identity import SigningIdentity
from protocols.transcript import seal_files
from tests.support.command import Command, pate_fed, small_run, write_table
from tests.support.markers import sampled
from tests.support.rounds import MemoryRun, ready_run
from tests.support.sample_run import sample_manifest

__all__ = ["pate_fed"]


@pytest.fixture
def run() -> MemoryRun:
    run = ready_run(3)
    run.sum([np.arange(3)] * 3)
    run.settle()
    run.close()
    return run


@pytest.fixture
def run_dir(run: MemoryRun, tmp_path: Path) -> Path:
    write(run, tmp_path)
    return tmp_path


def write(run: MemoryRun, folder: Path) -> None:
    lines = [
        json.dumps(line, sort_keys=True) for line in run.coordinator.closing.signed_transcript()
    ]
    (folder / "transcript.jsonl").write_text("".join(f"{line}\n" for line in lines))
    named = {
        **sample_manifest(),
        "run_id": run.coordinator.run_id.hex(),
        "transcript_head": run.coordinator.transcript.head.hex(),
        "earlier_setups": [],
    }
    (folder / "manifest.json").write_text(json.dumps(named))
    seal = run.coordinator.closing.seal_results(digests_of(folder))
    (folder / "seal.json").write_text(json.dumps(seal))


def test_a_simulated_run_is_good(pate_fed: Command, tmp_path: Path) -> None:
    table = write_table(tmp_path / "table.csv")
    out = tmp_path / "run"
    assert pate_fed(*small_run(table, out)).code == 0
    ended = pate_fed("transcript", "verify", out)
    assert ended.code == 0
    assert ended.out.startswith("good: ")
    assert ended.err == ""
    manifest = json.loads((out / "manifest.json").read_text())
    shown = pate_fed("transcript", "verify", out, "--format", "json")
    assert shown.code == 0
    assert shown.json["good"] is True
    assert shown.json["run_id"] == manifest["run_id"]
    assert shown.json["head"] == manifest["transcript_head"]
    assert len(shown.json["parties"]) >= 3


SEALED = ["labels.csv", "privacy.json", "metrics.json", "manifest.json", "run.toml"]


@pytest.mark.slow
def test_a_changed_result_is_named(pate_fed: Command, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert pate_fed(*small_run(write_table(tmp_path / "table.csv"), out)).code == 0
    student = [f"student/{path.name}" for path in (out / "student").iterdir()]
    assert {*SEALED, *student, "transcript.jsonl", "sent.csv"} == set(
        json.loads((out / "seal.json").read_text())["files"]
    )
    for name in (*SEALED, *student):
        file = out / name
        true = file.read_bytes()
        for content in (true + b"\n", None):
            file.unlink() if content is None else file.write_bytes(content)
            ended = pate_fed("transcript", "verify", out)
            wanted = "PF-140" if (name, content) == ("manifest.json", None) else "PF-418"
            assert (ended.code, ended.error_code, ended.out) == (5, wanted, "")
            assert name in ended.err
        file.write_bytes(true)
    (out / "report.html").write_text("written anew")
    (out / "notes.txt").write_text("ours")
    assert pate_fed("transcript", "verify", out).code == 0


def test_a_seal_is_of_this_run_and_by_its_coordinator(
    pate_fed: Command, run: MemoryRun, run_dir: Path
) -> None:
    """Who changes a result cannot seal it anew, and an earlier run's seal does not fit."""
    (run_dir / "labels.csv").write_text("query_id,label\n0,well\n")
    files = digests_of(run_dir)
    files.pop("seal.json")
    head = run.coordinator.transcript.head
    stranger, mine = SigningIdentity.generate(), run.coordinator_identity
    true = seal_files(files, head=head, coordinator=mine)
    for seal in (
        seal_files(files, head=head, coordinator=stranger),
        seal_files(files, head=bytes(32), coordinator=mine),
        {**true, "files": {**files, "labels.csv": "00" * 32}},
        {**true, "files": {}},
        {"files": files},
        [],
    ):
        (run_dir / "seal.json").write_text(json.dumps(seal))
        ended = pate_fed("transcript", "verify", run_dir)
        assert (ended.code, ended.error_code) == (5, "PF-418"), seal
    (run_dir / "seal.json").write_text(json.dumps(true))
    assert pate_fed("transcript", "verify", run_dir).code == 0


def test_people_can_pin_whose_run_it_must_be(
    pate_fed: Command, run: MemoryRun, run_dir: Path
) -> None:
    mine = run.coordinator_identity.fingerprint.hex()
    parties = [part for seat in run.coordinator.seats for part in ("--party", seat.hex())]
    right = pate_fed("transcript", "verify", run_dir, "--coordinator", mine, *parties)
    assert right.code == 0
    for wrong in (["--coordinator", "00" * 32], parties[:2], ["--party", "00" * 32]):
        ended = pate_fed("transcript", "verify", run_dir, *wrong)
        assert (ended.code, ended.error_code) == (5, "PF-414")


@sampled()
@pytest.mark.parametrize("place", range(7))
def test_a_line_that_is_gone_is_named(pate_fed: Command, run_dir: Path, place: int) -> None:
    file = run_dir / "transcript.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    assert len(lines) == 7
    file.write_text("".join(lines[:place] + lines[place + 1 :]))
    ended = pate_fed("transcript", "verify", run_dir)
    assert (ended.code, ended.error_code, ended.out) == (5, "PF-414", "")
    assert f"line {place + 1}" in ended.err


def test_a_broken_transcript_is_one_json_object_where_json_was_asked_for(
    pate_fed: Command, run_dir: Path
) -> None:
    file = run_dir / "transcript.jsonl"
    file.write_text(file.read_text()[:-1])
    ended = pate_fed("transcript", "verify", run_dir, "--format", "json")
    assert (ended.code, ended.out) == (5, "")
    error = json.loads(ended.err)
    assert error["code"] == "PF-414"
    assert error["must"].startswith("line 7 ")


def test_a_good_transcript_of_another_run_is_broken(pate_fed: Command, run_dir: Path) -> None:
    other = ready_run(3)
    other.close()
    lines = [
        json.dumps(line, sort_keys=True) for line in other.coordinator.closing.signed_transcript()
    ]
    (run_dir / "transcript.jsonl").write_text("".join(f"{line}\n" for line in lines))
    ended = pate_fed("transcript", "verify", run_dir)
    assert (ended.code, ended.error_code) == (5, "PF-414")


@sampled()
@pytest.mark.parametrize("name", ["transcript.jsonl", "manifest.json"])
@pytest.mark.parametrize("content", [None, b"", b"\xff", b"[]", b"{}", b"[" * 100_000])
def test_files_that_cannot_be_read_are_one_line(
    pate_fed: Command, run_dir: Path, name: str, content: bytes | None
) -> None:
    (run_dir / name).unlink()
    if content is not None:
        (run_dir / name).write_bytes(content)
    ended = pate_fed("transcript", "verify", run_dir)
    assert ended.code == 5
    assert ended.error_code == (
        "PF-414" if name == "transcript.jsonl" and content is not None else "PF-140"
    )


def test_a_directory_that_is_none_is_one_line(pate_fed: Command, tmp_path: Path) -> None:
    ended = pate_fed("transcript", "verify", tmp_path / "none")
    assert (ended.code, ended.error_code) == (5, "PF-140")
