"""A tally as a process: served, killed at every step, ended; its status, doctor and marks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from coordinator.errors import TallyUnreachableError
from coordinator.tally.book import TallyBook
from coordinator.tally.book_rows import read_charges
from coordinator.tally.tally_client import TallyClient
from coordinator.tally.tally_doctor import TallyProbes, examine_tally
from coordinator.tally.tally_schema import TallyOpenedRow
from pate_fed.accounting import Outcomes
from pate_fed.nodes import FAIL, OK, WARN
from protocols import wire
from protocols.values import encode_value
from protocols.vote_messages import Acceptance
from tests.support.command import Command, pate_fed
from tests.support.loopback_home import ROOT, environment, free_ports
from tests.support.mortal_tally import MOMENTS
from tests.support.tallied import NOW, Rows, TalliedBatch, TalliedRun, make_tally, served

__all__ = ["pate_fed"]

STEPS = range(5)
"""Of a tally's end: its secrets, and an exchange with each of the four requests."""


class Process:
    """A tally's process, which may die and begin again."""

    def __init__(self, folder: Path) -> None:
        self.port = free_ports(1)[0]
        self.folder, self.coordinator, key = make_tally(folder / "tally", port=self.port)
        self.client = TallyClient(self.folder.card, key, timeout_s=30)
        self.log = folder / "log"
        self.variables = environment(folder)
        self.deaths = 0

    def start(self, moment: str = "") -> None:
        words = ("-m", "tests.support.mortal_tally", str(self.folder.folder), moment)
        self.process = self.launch(*words)
        assert self.process.stdout is not None
        with self.process.stdout as said:
            assert int(said.readline()) == self.port

    def launch(self, *words: str, said: int | None = None) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, *words],
                stdout=subprocess.PIPE,
                stderr=said or log,
                env=self.variables,
                cwd=ROOT,
            )

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)

    def check(self, packet: bytes) -> bytes:
        """Ask; where the process dies of it, ask the next one."""
        return self.until_answered(lambda: self.client.check(packet))

    def state(self, offer: bytes) -> bytes:
        return self.until_answered(lambda: self.client.state(offer))

    def until_answered(self, call: Any) -> bytes:
        while True:
            try:
                said: bytes = call()
            except TallyUnreachableError:
                assert self.process.wait(60) == -signal.SIGKILL
                self.deaths += 1
                self.start(self.moments.pop(0) if self.moments else "")
            else:
                return said

    moments: list[str] = []  # noqa: RUF012 - each test sets its own


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    made = Process(tmp_path)
    yield made
    if getattr(made, "process", None) is not None and made.process.poll() is None:
        made.process.kill()
        made.process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_tally_killed_at_every_step_has_one_coin_one_charge_and_the_same_bytes(
    process: Process, moment: str
) -> None:
    process.moments = [f"{moment} {step}" for step in STEPS]
    process.start(f"{moment} state")
    run = TalliedRun(process.coordinator, process.state, process.check, now=int(time.time()))
    assert process.deaths == 1
    batch = TalliedBatch(run, 0, 1, 2)
    told = batch.open()
    assert process.deaths == 1 + len(STEPS)
    assert process.client.state(run.offer) == run.statement
    for request, answer in zip(told[::2], told[1::2], strict=True):
        assert process.client.check(batch.packet(request)) == answer
    assert process.end() == 0
    with closing(process.folder.database()) as database, database.transaction() as connection:
        ledger = read_charges(connection, served(run)).outcomes
        opened = connection.execute(select(TallyOpenedRow.place, TallyOpenedRow.plan_digest)).all()
    assert Outcomes(ledger.asks, ledger.answers) == Outcomes(3, 3)
    assert len(ledger.entries) == 1
    assert opened == [(place, batch.digest) for place in (0, 1, 2)]
    assert batch.machine.opened is not None
    assert abs(batch.machine.opened - batch.exact).max() < 200


class TestCommand:
    def test_it_serves_until_it_is_told_to_end_and_logs_no_vote(
        self, process: Process, pate_fed: Command
    ) -> None:
        words = ("-m", "coordinator.cli", "tally", "serve", "--folder", process.folder.folder)
        process.process = process.launch(*map(str, words), said=subprocess.PIPE)
        assert process.process.stderr is not None
        log = process.process.stderr.readline()
        batch = self.open_batch(process)
        second = pate_fed("tally", "serve", "--folder", process.folder.folder)
        assert (second.code, "PF-448" in second.err) == (4, True)
        shown = pate_fed("tally", "status", "--folder", process.folder.folder, "--format", "json")
        assert shown.json["served"] is True
        doctor = pate_fed("tally", "doctor", "--folder", process.folder.folder, "--format", "json")
        assert doctor.json["exit"] == 0
        process.process.send_signal(signal.SIGTERM)
        log += process.process.communicate(timeout=60)[1]
        assert process.process.returncode == 0
        lines = [json.loads(line) for line in log.splitlines()]
        assert [line["event"] for line in lines] == ["served", *["answered"] * 5]
        assert not any(form in log for row in batch.exact for form in forms_of_row(row))
        assert not process.folder.is_served

    def open_batch(self, process: Process) -> TalliedBatch:
        state, check = process.client.state, process.client.check
        run = TalliedRun(process.coordinator, state, check, now=int(time.time()))
        batch = TalliedBatch(run, 4, 0)
        batch.open()
        return batch

    def test_its_status_says_what_was_opened_and_charged(
        self, process: Process, pate_fed: Command
    ) -> None:
        named = ("tally", "status", "--folder", process.folder.folder)
        assert pate_fed(*named, "--format", "json").json["runs"] == []
        process.start()
        batch = self.open_batch(process)
        waits = TalliedBatch(batch.run, 5)
        waits.until(Acceptance)
        process.end()
        [run] = pate_fed(*named, "--format", "json").json["runs"]
        assert run["plans"] == {batch.digest.hex(): True, waits.digest.hex(): False}
        assert (run["name"], run["hospitals"], run["rejected"]) == ("lung", 3, {})
        assert (run["asks"], run["answers"]) == ([2, 12], [2, 12])
        shown = pate_fed(*named)
        assert batch.digest.hex()[:16] in shown.out


class TestDoctor:
    def found(self, process: Process, **around: Any) -> dict[str, str]:
        probes = TallyProbes(**around)
        return {one.name: one.state for one in examine_tally(process.folder.folder, probes)}

    def test_a_new_tally_is_well(self, process: Process) -> None:
        assert set(self.found(process).values()) == {OK}

    @pytest.mark.parametrize("name", ["identity.key", "tally.crt", "coordinator.json", "tally.db"])
    def test_a_missing_file_is_found(self, process: Process, name: str) -> None:
        process.folder.path(name).unlink()
        assert self.found(process)["files"] == FAIL

    @pytest.mark.parametrize("name", ["identity.key", "tally.key", "tally.db"])
    def test_a_file_that_others_may_read_is_found(self, process: Process, name: str) -> None:
        process.folder.path(name).chmod(0o644)
        assert self.found(process)["file rights"] == FAIL

    def test_a_certificates_end_is_found(self, process: Process) -> None:
        for days, state in ((3600, OK), (3640, WARN), (3660, FAIL)):
            now = datetime.now(UTC) + timedelta(days=days)
            assert self.found(process, clock=lambda now=now: now)["certificate"] == state

    def test_a_clock_before_the_tally_was_made_is_found(self, process: Process) -> None:
        assert self.found(process, clock=lambda: datetime(2020, 1, 1, tzinfo=UTC))["clock"] == FAIL

    def test_a_certificate_of_another_host_is_found(self, process: Process) -> None:
        path = process.folder.path("tally.toml")
        path.write_text(path.read_text().replace("127.0.0.1:", "tally.example.org:"))
        assert self.found(process)["certificate"] == FAIL

    def test_a_taken_port_a_full_disk_and_a_damaged_database_are_found(
        self, process: Process
    ) -> None:
        assert self.found(process, why_not_ours=lambda *_: "in use")["service"] == FAIL
        assert self.found(process, free_disk=lambda _: 10)["disk"] == FAIL
        process.folder.path("tally.db").write_bytes(b"no database" * 999)
        assert self.found(process)["database"] == FAIL

    def test_a_service_whose_port_is_free_is_found(self, process: Process) -> None:
        held = process.folder.lock()
        assert self.found(process)["service"] == FAIL
        assert self.found(process, why_not_ours=lambda *_: "in use")["service"] == OK
        os.close(held)

    def test_without_settings_nothing_else_is_looked_at(self, process: Process) -> None:
        process.folder.path("tally.toml").unlink()
        assert self.found(process) == {"settings": FAIL}


def forms_of_row(row: Rows) -> list[bytes]:
    """Byte forms of a row of counts: of all of its counts together, so that none is chance."""
    kinds = ("<u2", "<u4", "<i8", ">u4", ">i8", "<f8")
    numbers = row.tolist()
    return [
        *(row.astype(kind).tobytes() for kind in kinds),
        *(json.dumps(numbers, separators=(sep, ":")).encode() for sep in (",", ", ")),
        encode_value(numbers),
    ]


class TestMarks:
    """Neither a hospital's votes nor an exact sum is in anything that a tally keeps."""

    def test_no_row_of_a_hospital_and_no_exact_sum_is_in_its_files(self, tmp_path: Path) -> None:
        folder, coordinator, _ = make_tally(tmp_path / "tally")
        with closing(folder.database()) as database:
            book = TallyBook(
                database,
                identity=folder.identity,
                coordinator=coordinator.public,
                clock=lambda: float(NOW),
            )
            told: list[bytes] = []

            def check(packet: bytes) -> bytes:
                answer = book.check(packet)
                told.extend((*wire.unpack(packet, max_bytes=2**30), answer))
                return answer

            run = TalliedRun(coordinator, book.state, check, quotas=(997, 991, 983))
            batch = TalliedBatch(run, 0, 1)
            batch.open()
            everything = b"\n".join(
                [path.read_bytes() for path in folder.folder.iterdir() if path.is_file()] + told
            )
        hospitals = [run.rows(place, 2) for place in range(3)]
        rows = [row for votes in (*hospitals, batch.exact) for row in votes]
        assert len(rows) == 8
        assert min(len(form) for row in rows for form in forms_of_row(row)) > 4
        assert [row for row in rows if any(form in everything for form in forms_of_row(row))] == []
        # The search finds what is there.
        for row in rows:
            for form in forms_of_row(row):
                assert any(one in everything + form for one in forms_of_row(row))
        # What was opened is there as two shares, and is not the exact sum.
        assert batch.machine.opened is not None
        assert np.abs(batch.machine.opened - batch.exact).max() > 0
