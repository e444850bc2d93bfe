"""No message, log, file, traceback or repr holds one party's votes (rule R10, PROTOCOL section 6).

One party's teachers cast a marker histogram; then everything that a run leaves behind is searched
for it. The canaries show that the search finds what it looks for.
"""

from __future__ import annotations

import json
import pickle
import struct
import subprocess
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from coordinator.errors import VoidBatchError
from coordinator.runs.request import RunRequest
from coordinator.simulation.simulated_federation import SimulatedFederation
from coordinator.simulation.simulated_hospitals import Hospital, HospitalsBlueprint
from party.decision.node import PartyNode
from pate_fed.data import Records
from pate_fed.inputs import Inputs
from pate_fed.queries import QueryBatch
from pate_fed.record.metrics import Quality
from pate_fed.teachers import TeacherEnsemble
from protocols.identity import SigningIdentity
from protocols.values import encode_value
from tests.support.command import Command, pate_fed, write_table
from tests.support.federation import CLASSES, Federation, unanimous
from tests.support.marker import (
    MARKED_TEACHERS,
    MARKERS,
    findings,
    findings_in_files,
    held_in_memory,
    marked_votes,
    printed,
    rows_in_memory,
)
from tests.support.markers import sampled
from tests.support.released_sums import sums

__all__ = ["pate_fed"]  # a fixture

MARKED = 1
PLACES_AT_A_PARTY = [
    pytest.param("party.decision.own_votes.count_votes", id="while counting"),
    pytest.param("protocols.additive.add_streams", id="while hiding"),
]
SIGMA = 20_000.0

CANARIES = [
    pytest.param(np.array(MARKERS, dtype="<i8").tobytes(), id="int64 little-endian"),
    pytest.param(np.array(MARKERS, dtype=">i8").tobytes(), id="int64 big-endian"),
    pytest.param(np.array(MARKERS, dtype="<u4").tobytes(), id="uint32 little-endian"),
    pytest.param(np.array(MARKERS, dtype=">u4").tobytes(), id="uint32 big-endian"),
    pytest.param(np.array(MARKERS, dtype="<f8").tobytes(), id="float64"),
    pytest.param(json.dumps(list(MARKERS)).encode(), id="JSON"),
    pytest.param(json.dumps({"votes": list(map(float, MARKERS))}).encode(), id="JSON of floats"),
    pytest.param(pickle.dumps(list(MARKERS)), id="pickled list"),
    pytest.param(pickle.dumps(np.array(MARKERS)), id="pickled array"),
    pytest.param(encode_value(list(MARKERS)), id="CBOR"),
    pytest.param(encode_value({"votes": MARKERS[1]}), id="one count in CBOR"),
    pytest.param(pickle.dumps(MARKERS[1]), id="one pickled count"),
    pytest.param(str(np.array([MARKERS])).encode(), id="printed array"),
    pytest.param(repr(np.array(MARKERS, dtype=float)).encode(), id="printed floats"),
    pytest.param(f"{MARKERS[0]:,} votes".encode(), id="text with commas"),
    pytest.param(f"got {MARKERS[2]}; otherwise".encode(), id="a message"),
    pytest.param(hex(MARKERS[1]).encode(), id="hexadecimal"),
]


def findings_in_memory(data: bytes, *, least: int = 1) -> list[str]:
    return held_in_memory([data], least=least)


def findings_in_a_file(data: bytes, *, least: int = 1) -> list[str]:
    with TemporaryDirectory() as folder:
        (Path(folder) / "kept").write_bytes(data)
        return findings_in_files(Path(folder), least=least)


class TestSearch:
    @pytest.mark.parametrize("leak", CANARIES)
    def test_it_finds_what_is_there(self, leak: bytes) -> None:
        assert findings(b"before\0" + leak + b"\nafter")

    @pytest.mark.parametrize("form", ["<I", ">I", "<q", ">q"])
    def test_one_count_is_found_where_it_is_no_chance(self, form: str) -> None:
        """Four bytes are in random ones now and then; eight, or four near others, are not."""
        one, other = (struct.pack(form, number) for number in MARKERS[1:])
        for found in (findings, findings_in_memory, findings_in_a_file):
            assert found(b"before" + one + b"between" + other)
            assert found(b"before" + one + b"between" + other, least=2)
            assert bool(found(b"before" + one)) is (len(one) == 8)
            assert bool(found(one + b"between " * 9 + one)) is (len(one) == 8)
            assert bool(found(one + b"between " * 9 + other)) is (len(one) == 8)
            assert not found(b"before" + one, least=2)

    def test_a_fraction_of_a_second_is_no_count(self) -> None:
        assert not findings(b"2026-03-01 12:00:07.104729+00:00 took 3.224737 s")
        assert findings(b"votes.104729 and 224737.0")

    def test_of_small_numbers_two_have_to_be_there(self) -> None:
        assert findings(b"took 20242 ns", (20_242, -10_163))
        assert not findings(b"took 20242 ns", (20_242, -10_163), least=2)
        assert findings(b"[20242, -10163]", (20_242, -10_163), least=2)

    def test_it_finds_nothing_in_numbers_alike(self) -> None:
        digests = b"104729aa 0104729 f350377 224737e9 1047290"
        assert findings(digests) == []

    def test_it_finds_what_an_object_holds(self) -> None:
        class Holder:
            def __init__(self) -> None:
                self.votes = {"deep": [np.array([MARKERS], dtype=np.int32)]}

        assert held_in_memory(Holder())

    def test_it_finds_a_plain_sum_on_the_wire(self) -> None:
        # The same run without hiding: every form of search must strike.
        federation = marked_federation(form="plain")
        federation.run.set_up()
        federation.ask(0, 1)
        assert any(findings(packet) for packet in federation.transport.packets)

    def test_it_finds_a_vector_that_was_kept(self) -> None:
        federation = marked_federation()
        federation.run.set_up()
        assert not held_in_memory(*federation.nodes)
        federation.nodes[MARKED]._kept = np.array([MARKERS])  # type: ignore[attr-defined]
        assert held_in_memory(*federation.nodes)


def marked_federation(**changed: Any) -> Federation:
    """A federation whose second party votes the marker histogram; others are unanimous."""
    votes = {
        place: unanimous(MARKED_TEACHERS, CLASSES) if place != MARKED else marked_votes
        for place in range(3)
    }
    terms = {"sigma2": SIGMA}
    return Federation(teachers=MARKED_TEACHERS, votes=votes, terms=terms, **changed)


def assert_clean(*texts: str | bytes) -> None:
    for text in texts:
        data = text.encode() if isinstance(text, str) else text
        assert findings(data) == []


class TestRun:
    def test_no_packet_log_or_repr_holds_a_marker(
        self, everything_logged: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
    ) -> None:
        federation = marked_federation()
        federation.run.set_up()
        federation.ask(0, 1)
        packets_while_open = len(federation.transport.packets)
        federation.ask(2, 3)
        federation.run.close()
        assert federation.run.per_instance_cost.epsilon > 0
        assert packets_while_open > 24
        assert_clean(*federation.transport.packets)
        assert_clean(everything_logged.text, *capfd.readouterr())
        roots = (federation.run, federation.run.round, federation.store, *federation.nodes)
        shown = list(printed(*roots))
        assert len(shown) > 100
        assert_clean(*shown)

    def test_no_party_keeps_its_votes_and_the_coordinator_never_has_them(self) -> None:
        federation = marked_federation()
        federation.run.set_up()
        federation.ask(0, 1)
        # The open batch: y is journalled, the sum is in the coordinator's memory.
        assert held_in_memory(*federation.nodes) == []
        assert held_in_memory(federation.run, federation.store) == []
        federation.run.close()
        assert held_in_memory(*federation.nodes, federation.run, federation.store) == []

    def test_exact_sum_is_never_sent_kept_logged_or_printed(
        self, everything_logged: pytest.LogCaptureFixture
    ) -> None:
        federation = marked_federation()
        federation.run.set_up()
        federation.ask(0, 1)
        federation.run.close()
        peers = 2 * MARKED_TEACHERS
        rows = [
            (peers + MARKERS[0], MARKERS[1], MARKERS[2]),
            (MARKERS[0], peers + MARKERS[1], MARKERS[2]),
        ]
        for row in rows:
            assert held_in_memory(federation.run, federation.store, rows=[row]) == []
            for packet in federation.transport.packets:
                assert findings(packet, row) == []
            assert findings(everything_logged.text.encode(), row) == []
            for text in printed(federation.run, federation.store):
                assert findings(text.encode(), row) == []

    @sampled()
    @pytest.mark.parametrize("answer", [None, b"garbage"])
    def test_failed_batch_tells_nothing(
        self, answer: bytes | None, everything_logged: pytest.LogCaptureFixture
    ) -> None:
        federation = marked_federation()
        federation.run.set_up()
        federation.on_vectors_of(0, lambda _: answer)
        with pytest.raises(VoidBatchError) as void:
            federation.ask(0, 1)
        assert_clean(everything_logged.text, *traceback.format_exception(void.value))
        assert_clean(*federation.transport.packets)
        assert_clean(*printed(federation.run, federation.store, *federation.nodes))
        assert held_in_memory(*federation.nodes, federation.run, federation.store) == []

    @sampled()
    @pytest.mark.parametrize("place", PLACES_AT_A_PARTY)
    def test_party_whose_error_quotes_its_votes_is_silent(
        self,
        place: str,
        monkeypatch: pytest.MonkeyPatch,
        everything_logged: pytest.LogCaptureFixture,
    ) -> None:
        federation = marked_federation()
        federation.run.set_up()
        monkeypatch.setattr(place, raising_with_votes)
        with pytest.raises(VoidBatchError, match=r"\[no ") as void:
            federation.ask(0, 1)
        assert void.value.reservation == "forfeited"
        assert [len(answer) for _, answer in federation.transport.answers[-3:]] == [1, 1, 1]
        assert_clean(str(void.value), everything_logged.text, *federation.transport.packets)
        assert federation.party_states(MARKED) == ["reserved"]


def raising_with_votes(*_: object, **__: object) -> None:
    """Fail as carelessly as a library may, with the votes in the text and in local variables."""
    votes = np.array(MARKERS)
    raise ValueError(f"could not add {votes.tolist()}", votes)


class Marked(TeacherEnsemble):
    """Teachers that vote the marker histogram on queries, and something plain on test records."""

    @property
    def teachers(self) -> int:
        return MARKED_TEACHERS

    def vote(self, inputs: Inputs) -> NDArray[np.int64]:
        # Two classes here: the third marker goes to class 0 as well.
        batch = QueryBatch(tuple(range(len(inputs))), inputs.features)
        return marked_votes(batch) % 2

    def _learn(self, *_: object, **__: object) -> object:
        raise AssertionError("never trained")

    def _scores(self, *_: object, **__: object) -> NDArray[np.float64]:
        raise AssertionError("never asked")

    def _dump(self, *_: object) -> bytes:
        raise AssertionError("never kept")

    def _restore(self, *_: object) -> object:
        raise AssertionError("never kept")


COUNTS = (MARKERS[0] + MARKERS[2], MARKERS[1])
"""The marked hospitals' histogram over two classes."""

SECRETS = (*MARKERS, *COUNTS, *(3 * count for count in COUNTS))
"""One hospital's counts, and the exact sum of three."""


def mark_hospitals(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Let all hospitals of simulations cast marker histograms."""

    def marked(*_: object, **__: object) -> list[Hospital]:
        keys = (SigningIdentity.generate().private_bytes for _ in range(count))
        return [Hospital(f"hospital-{at}", key, Marked()) for at, key in enumerate(keys)]

    request = SimulatedFederation.request

    def request_of_marked(federation: SimulatedFederation, name: str) -> RunRequest:
        asked = request(federation, name)
        teachers = (MARKED_TEACHERS,) * count
        return replace(asked, settings=replace(asked.settings, party_teachers=teachers))

    monkeypatch.setattr("coordinator.simulation.simulated_federation.train_hospitals", marked)
    monkeypatch.setattr("coordinator.simulation.run.yardsticks", half_right)
    monkeypatch.setattr(SimulatedFederation, "request", request_of_marked)


def half_right(*_: object, **__: object) -> dict[str, Quality]:
    """Yardsticks: two million teachers take their time over the test records."""
    half = Quality(accuracy=0.5, balanced_accuracy=0.5, auc=0.5)
    return dict.fromkeys(("average_hospital", "best_hospital", "pooled", "private_baseline"), half)


def arguments(table: Path, out: Path) -> list[object]:
    return [
        "simulate",
        *("--data", "csv", "--data-file", table, "--label", "sick", "--parties", 3),
        *("--teachers", 4, "--queries", 3, "--sigma2", SIGMA),
        *("--vote-threshold", 10, "--seed", 7, "--out", out),
    ]


@pytest.fixture
def marked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[object]:
    """Arguments of a run whose hospitals all cast marker histograms."""
    mark_hospitals(monkeypatch, 3)
    return arguments(write_table(tmp_path / "table.csv"), tmp_path / "run")


class TestCommandLine:
    @sampled()
    @pytest.mark.slow
    @pytest.mark.usefixtures("pictures")
    @pytest.mark.parametrize("how", ["text", "json"])
    def test_no_file_log_or_line_holds_a_count(
        self,
        pate_fed: Command,
        marked: list[object],
        tmp_path: Path,
        everything_logged: pytest.LogCaptureFixture,
        how: str,
    ) -> None:
        ended = pate_fed(*marked, "--format", how)
        assert (ended.code, ended.err) == (0, "")
        assert len(list((tmp_path / "run").rglob("*"))) >= 8
        assert findings_in_files(tmp_path / "run", SECRETS) == []
        for text in (ended.out, ended.err, everything_logged.text):
            assert findings(text.encode(), SECRETS) == []

    @pytest.mark.slow
    def test_files_would_be_searched(self, pate_fed: Command, marked: list[object]) -> None:
        # The quotas are public and in no file; the budget's numbers are: the search reads files.
        pate_fed(*marked)
        assert findings_in_files(Path(str(marked[-1])), (20_000,))

    @sampled()
    @pytest.mark.parametrize(
        "place",
        [
            pytest.param("coordinator.runs.labeling.deciding.open_sum", id="opening the sum"),
            pytest.param("coordinator.runs.labeling.deciding.CoordinatorNoise", id="adding noise"),
            pytest.param("pate_fed.lab.per_instance.gnmax_total_rdp", id="pricing"),
            pytest.param("pate_fed.report.ended_run.charged_price", id="writing down"),
        ],
    )
    @pytest.mark.parametrize("how", ["text", "json"])
    def test_error_where_votes_are_held_is_one_coded_line(
        self,
        *,
        pate_fed: Command,
        marked: list[object],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        everything_logged: pytest.LogCaptureFixture,
        place: str,
        how: str,
    ) -> None:
        monkeypatch.setattr(place, raising_with_votes)
        ended = pate_fed(*marked, "--format", how)
        assert (ended.code, ended.out) == (1, "")
        assert ended.err.count("\n") == 1
        assert "PF-490" in ended.err
        assert "ValueError" in ended.err
        assert " test_marker.py:" in ended.err
        assert findings(ended.err.encode(), SECRETS) == []
        assert findings(everything_logged.text.encode(), SECRETS) == []
        assert not (tmp_path / "run").exists()

    def test_error_in_teaching_costs_the_student_alone(
        self,
        pate_fed: Command,
        marked: list[object],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        everything_logged: pytest.LogCaptureFixture,
    ) -> None:
        monkeypatch.setattr("pate_fed.students.train_student", raising_with_votes)
        ended = pate_fed(*marked)
        assert (ended.code, (tmp_path / "run" / "student").exists()) == (0, False)
        for said in (ended.out, ended.err, everything_logged.text):
            assert findings(said.encode(), SECRETS) == []
        assert findings_in_files(tmp_path / "run", SECRETS) == []

    @sampled()
    @pytest.mark.parametrize("place", PLACES_AT_A_PARTY)
    def test_error_at_a_hospital_is_a_void_batch_and_exit_code_4(
        self,
        pate_fed: Command,
        marked: list[object],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        place: str,
    ) -> None:
        monkeypatch.setattr(place, raising_with_votes)
        ended = pate_fed(*marked)
        assert (ended.code, ended.error_code) == (4, "PF-411")
        assert "[no answer]" in ended.err
        assert findings(ended.err.encode(), SECRETS) == []
        assert not (tmp_path / "run").exists()

    @pytest.mark.slow
    def test_teachers_that_fail_are_seen_nowhere(
        self, pate_fed: Command, marked: list[object], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Marked, "vote", raising_with_votes)
        ended = pate_fed(*marked)
        assert (ended.code, ended.err) == (0, "")


@pytest.mark.slow
def test_nodes_of_a_simulation_print_no_votes(
    pate_fed: Command, marked: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[PartyNode] = []
    opened = HospitalsBlueprint.open

    def keep(self: HospitalsBlueprint) -> list[PartyNode]:
        kept.extend(opened(self))
        return kept

    monkeypatch.setattr(HospitalsBlueprint, "open", keep)
    assert pate_fed(*marked).code == 0
    assert len(kept) == 3
    for text in printed(*kept):
        assert findings(text.encode(), SECRETS) == []
    assert held_in_memory(*kept, rows=[COUNTS]) == []


def test_records_are_secret_too() -> None:
    records = Records(np.array([[4711.0]]), np.array([1]), ("patient 4711",))
    assert "4711" not in repr(records)


class TestMemory:
    """After a release no copy of the exact sum is in the coordinator's heap, freed or not.

    A person with a core dump, or the swapped pages, would else read what noise was to hide.
    """

    @pytest.mark.slow
    def test_a_deployment_leaves_no_copy_of_an_exact_sum(self) -> None:
        module = ("-m", "tests.support.released_sums", "deployed")
        with subprocess.Popen(
            [sys.executable, *module], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == b"released\n"
            left = rows_in_memory(process.pid, sums())
            process.stdin.write(b"\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"kept\n"
            kept = rows_in_memory(process.pid, sums())
            process.stdin.close()
        assert left == []
        assert len(kept) >= 2  # the search finds what is there: an array of two rows

    def test_only_a_simulation_adds_up_the_cost_on_the_votes(self) -> None:
        for simulated in (True, False):
            federation = Federation(simulated=simulated, policy={"simulated": simulated})
            federation.run.set_up()
            federation.ask(0, 1)
            assert (federation.run.per_instance_cost is not None) is simulated
