"""A journal on disk: killed anywhere, cut anywhere, damaged anywhere."""

from __future__ import annotations

import errno
import os
import random
import stat
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from party import file_journal
from party.errors import (
    JournalDamagedError,
    JournalError,
    JournalLockedError,
    JournalStorageError,
)
from party.file_journal import FIRST_LINE, FileJournal
from protocols.errors import KeyReuseError, RestoredJournalError
from tests.support import journal_victim
from tests.support.journal_victim import PLANS, RUN, acknowledging, live, queries_of

ROOT = Path(__file__).parents[2]
Y = b"a y " * 5_000


def filled(folder: Path, plans: int = 3) -> FileJournal:
    """A journal with every kind of record."""
    journal = FileJournal(folder)
    for place, plan in enumerate(PLANS[:plans]):
        journal.claim(queries_of(place), plan_digest=plan)
        journal.begin(run_id=RUN, epoch=place + 1, plan_digest=plan)
        journal.keep(plan, (Y + plan,), expires_at=10_000)
        journal.witness({b"peer": place + 1})
    journal.erase(PLANS[0])
    return journal


def file_of(folder: Path) -> Path:
    return folder / "journal"


def record_ends(folder: Path) -> list[int]:
    """Where the first line and each record end."""
    data = file_of(folder).read_bytes()
    ends = [len(FIRST_LINE)]
    while ends[-1] < len(data):
        length = int.from_bytes(data[ends[-1] : ends[-1] + 4], "big")
        ends.append(ends[-1] + 12 + length + 32)
    assert ends[-1] == len(data)
    return ends


class TestReopening:
    def test_everything_is_there_again(self, tmp_path: Path) -> None:
        with filled(tmp_path / "j") as journal:
            counter, head = journal.counter, journal.head
        with FileJournal(tmp_path / "j") as again:
            assert (again.counter, again.head) == (counter, head) == (13, head)
            assert again.find(PLANS[0]) is None
            assert [again.find(plan) for plan in PLANS[1:]] == [(Y + plan,) for plan in PLANS[1:]]
            assert again.count() == 9
            assert again.witnessed(b"peer") == 3
            assert all(again.any_answered([query]) for query in queries_of(2))
            for place, plan in enumerate(PLANS):
                with pytest.raises(KeyReuseError):
                    again.begin(run_id=RUN, epoch=50 + place, plan_digest=plan)
                with pytest.raises(KeyReuseError):
                    again.keep(plan, (Y,), expires_at=10_000)
            with pytest.raises(KeyReuseError):
                again.begin(run_id=RUN, epoch=3, plan_digest=b"x" * 32)
            again.begin(run_id=RUN, epoch=4, plan_digest=b"x" * 32)

    def test_two_journals_of_one_history_have_one_head(self, tmp_path: Path) -> None:
        heads = []
        for name in ("one", "two"):
            with filled(tmp_path / name) as journal:
                heads.append(journal.head)
        assert heads[0] == heads[1]
        assert file_of(tmp_path / "one").read_bytes() == file_of(tmp_path / "two").read_bytes()

    def test_a_call_that_is_refused_writes_nothing(self, tmp_path: Path) -> None:
        with filled(tmp_path / "j") as journal:
            before = (file_of(tmp_path / "j").read_bytes(), journal.counter, journal.head)
            for refused in (
                lambda: journal.begin(run_id=RUN, epoch=9, plan_digest=PLANS[0]),
                lambda: journal.keep(PLANS[1], (b"another y",), expires_at=10_000),
                lambda: journal.keep(b"never begun", (b"y",), expires_at=10_000),
                lambda: journal.claim([b"new", *queries_of(1)], plan_digest=b"p"),
            ):
                with pytest.raises(KeyReuseError):
                    refused()
            journal.erase(PLANS[0])
            journal.witness({b"peer": 2})
            assert before == (file_of(tmp_path / "j").read_bytes(), journal.counter, journal.head)

    def test_an_erased_y_is_gone_from_the_disk(self, tmp_path: Path) -> None:
        with filled(tmp_path / "j") as journal:
            names = {file.name for file in (tmp_path / "j" / "vectors").iterdir()}
            assert names == {plan.hex() for plan in PLANS[1:]}
            assert Y[:40] not in file_of(tmp_path / "j").read_bytes()
            journal.erase(PLANS[1])
            journal.erase(PLANS[2])
        assert not list((tmp_path / "j" / "vectors").iterdir())
        assert not [f for f in tmp_path.rglob("*") if f.is_file() and Y[:40] in f.read_bytes()]


class TestOrder:
    """What a kill cannot show, since the system outlives a process: the disk is waited for."""

    def test_a_call_returns_after_the_disk_has_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        steps: list[str] = []
        for name in ("write", "fsync", "replace", "unlink"):
            call = getattr(os, name)

            def noted(*arguments: object, name: str = name, call: object = call) -> object:
                steps.append(name)
                return call(*arguments)  # type: ignore[operator]

            monkeypatch.setattr(os, name, noted)

        def steps_of(act: Callable[[], None]) -> list[str]:
            steps.clear()
            act()
            return steps.copy()

        record = ["write", "fsync"]
        with FileJournal(tmp_path / "j") as journal:
            assert steps[:2] == record
            assert steps.count("fsync") >= 3  # the file and the folders that name it
            assert steps_of(lambda: journal.claim([b"q"], plan_digest=b"p")) == record
            begin = steps_of(lambda: journal.begin(run_id=RUN, epoch=1, plan_digest=PLANS[0]))
            assert begin == record
            keep = steps_of(lambda: journal.keep(PLANS[0], (Y, Y), expires_at=10_000))
            # The lengths, then each frame where it lies: nothing is joined for it.
            written = ["write", "write", "write"]
            assert keep == [*written, "fsync", "replace", "fsync", *record]
            assert steps_of(lambda: journal.erase(PLANS[0])) == [*record, "unlink", "fsync"]
            assert steps_of(lambda: journal.witness({b"p": 1})) == record
            assert steps_of(lambda: journal.halt(1)) == record


class TestDoors:
    def test_nobody_else_may_read_it(self, tmp_path: Path) -> None:
        mask = os.umask(0)
        try:
            filled(tmp_path / "j").close()
        finally:
            os.umask(mask)
        for path in (tmp_path / "j").rglob("*"):
            mode = stat.S_IMODE(path.stat().st_mode)
            assert mode == (0o700 if path.is_dir() else 0o600), path
        assert stat.S_IMODE((tmp_path / "j").stat().st_mode) == 0o700

    def test_a_journal_that_others_may_read_is_closed_to_them(self, tmp_path: Path) -> None:
        filled(tmp_path / "j").close()
        file_of(tmp_path / "j").chmod(0o644)
        FileJournal(tmp_path / "j").close()
        assert stat.S_IMODE(file_of(tmp_path / "j").stat().st_mode) == 0o600

    def test_it_is_open_once_at_a_time(self, tmp_path: Path) -> None:
        with filled(tmp_path / "j"), pytest.raises(JournalLockedError) as caught:
            FileJournal(tmp_path / "j")
        assert caught.value.code == "PF-331"
        FileJournal(tmp_path / "j").close()

    def test_another_process_is_kept_out(self, tmp_path: Path) -> None:
        code = (
            "import sys; from pathlib import Path; from party.file_journal import FileJournal\n"
            "try: FileJournal(Path(sys.argv[1]))\n"
            "except Exception as error: print(error.code)"
        )
        with filled(tmp_path / "j"):
            ended = subprocess.run(
                [sys.executable, "-c", code, tmp_path / "j"],
                cwd=ROOT, capture_output=True, text=True, check=True,
            )  # fmt: skip
        assert ended.stdout == "PF-331\n"

    def test_a_forked_process_cannot_write(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with filled(tmp_path / "j") as journal:
            monkeypatch.setattr(os, "getpid", lambda: 1)
            with pytest.raises(JournalStorageError):
                journal.claim([b"new"], plan_digest=b"p")

    def test_a_closed_journal_cannot_write(self, tmp_path: Path) -> None:
        journal = filled(tmp_path / "j")
        journal.close()
        journal.close()
        with pytest.raises(JournalStorageError):
            journal.claim([b"new"], plan_digest=b"p")
        assert not journal.any_answered([b"new"])

    def test_a_link_is_not_followed(self, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").write_bytes(b"")
        (tmp_path / "j").mkdir()
        file_of(tmp_path / "j").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(JournalStorageError):
            FileJournal(tmp_path / "j")

    @pytest.mark.parametrize("name", ["write", "fsync"])
    def test_after_a_write_that_failed_nothing_is_written_until_it_is_opened_anew(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        with filled(tmp_path / "j") as journal:
            counter = journal.counter

            def full(*arguments: object) -> int:
                raise OSError(errno.ENOSPC, "No space left on device")

            monkeypatch.setattr(os, name, full)
            with pytest.raises(JournalStorageError) as caught:
                journal.claim([b"new"], plan_digest=b"p")
            assert caught.value.code == "PF-333"
            monkeypatch.undo()
            with pytest.raises(JournalStorageError):
                journal.claim([b"other"], plan_digest=b"other")
            assert journal.counter == counter
            assert not journal.any_answered([b"new", b"other"])
        with FileJournal(tmp_path / "j") as again:
            # The write itself went through where only the wait for the disk failed.
            assert again.any_answered([b"new"]) is (name == "fsync")
            assert not again.any_answered([b"other"])

    def test_it_shows_nothing(self, tmp_path: Path) -> None:
        with filled(tmp_path / "j") as journal:
            assert repr(journal) == str(journal) == "FileJournal(records=13)"


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One folder for every step at which a party died while it wrote."""
    folder = tmp_path_factory.mktemp("lives")
    subprocess.run(
        [sys.executable, "-m", "tests.support.journal_victim", folder], cwd=ROOT, check=True
    )
    return sorted(folder.iterdir(), key=lambda path: int(path.name))


class TestKilled:
    def test_every_step_was_tried(self, lives: list[Path]) -> None:
        assert len(lives) >= 90
        told = [(life / "acknowledged").read_text().splitlines() for life in lives]
        assert told[0] == []
        assert len(told[-1]) == 10
        assert {len(lines) for lines in told} == set(range(11))

    def test_what_was_acknowledged_is_there_and_nothing_is_answered_twice(
        self, lives: list[Path]
    ) -> None:
        for life in lives:
            told = (life / "acknowledged").read_text().splitlines()
            check_memory(life / "journal", told)
            # A second life, and a third, serve the same plans with teachers that changed.
            for name in ("second", "third"):
                live(life / "journal", name, acknowledging(life / "acknowledged"))
            check_sent(life / "acknowledged")

    def test_a_life_that_dies_again_while_it_mends_loses_nothing(self, tmp_path: Path) -> None:
        chance = random.Random(5)  # noqa: S311 - picks where to die
        code = (
            "import sys; from pathlib import Path; from tests.support.journal_victim import *\n"
            "folder = Path(sys.argv[1])\n"
            "tell = acknowledging(folder / 'acknowledged')\n"
            "die_at(int(sys.argv[2])); live(folder / 'journal', sys.argv[2], tell)"
        )
        folder = tmp_path
        for _ in range(12):
            step = str(chance.randrange(1, 60))
            ended = subprocess.run(
                [sys.executable, "-c", code, folder, step], cwd=ROOT, check=False
            )
            assert ended.returncode in (journal_victim.DIED, journal_victim.LIVED)
            check_memory(folder / "journal", (folder / "acknowledged").read_text().splitlines())
        check_sent(folder / "acknowledged")

    @pytest.mark.parametrize("life", range(6))
    def test_a_process_killed_whenever_loses_nothing(self, tmp_path: Path, life: int) -> None:
        command = [sys.executable, "-m", "tests.support.journal_victim", "for-ever", tmp_path]
        victim = subprocess.Popen(command, cwd=ROOT)
        file = tmp_path / "acknowledged"
        while not file.exists() or not file.stat().st_size:
            time.sleep(0.01)
            assert victim.poll() is None
        time.sleep(0.013 * life)
        victim.kill()
        victim.wait()
        told = file.read_text().splitlines()
        assert told
        with FileJournal(tmp_path / "journal") as journal:
            for line in told:
                word, digest = line.split()
                plan = bytes.fromhex(digest)
                with pytest.raises(KeyReuseError):
                    journal.begin(run_id=RUN, epoch=10**6, plan_digest=plan)
                if word == "kept":
                    assert journal.find(plan) == (plan * 300,)


def check_memory(folder: Path, told: list[str]) -> None:
    """Hold a journal against what its party was told was done."""
    with FileJournal(folder) as journal:
        for line in told:
            word, place, *frame = line.split()
            plan = PLANS[int(place)]
            assert word != "claimed" or all(
                journal.any_answered([query]) for query in queries_of(int(place))
            )
            if word in ("begun", "sent", "erased"):
                with pytest.raises(KeyReuseError):
                    journal.begin(run_id=RUN, epoch=50, plan_digest=plan)
            if word == "sent" and int(place):
                assert journal.find(plan) == (bytes.fromhex(frame[0]),)
            if word == "erased":
                assert journal.find(plan) is None
        known = {file.name for file in (folder / "vectors").iterdir()}
        assert known == {plan.hex() for plan in PLANS if journal.find(plan) is not None}


def check_sent(acknowledged: Path) -> None:
    """No plan was ever answered with two y's."""
    sent = defaultdict(set)
    for line in acknowledged.read_text().splitlines():
        word, place, *frame = line.split()
        if word == "sent":
            sent[place].add(frame[0])
    assert all(len(frames) == 1 for frames in sent.values())


class TestDamage:
    def test_a_file_cut_anywhere_is_the_journal_of_its_whole_records(self, tmp_path: Path) -> None:
        filled(tmp_path / "j").close()
        data, ends = file_of(tmp_path / "j").read_bytes(), record_ends(tmp_path / "j")
        (tmp_path / "cut").mkdir()
        for size in range(0, len(data), 7):
            file_of(tmp_path / "cut").write_bytes(data[:size])
            (tmp_path / "cut" / "vectors").mkdir(exist_ok=True)
            whole = sum(end <= size for end in ends) - 1
            with FileJournal(tmp_path / "cut") as journal:
                assert journal.counter == max(whole, 0), size
                journal.claim([b"goes on"], plan_digest=b"goes on")
            with FileJournal(tmp_path / "cut") as again:
                assert again.any_answered([b"goes on"])
                assert again.counter == max(whole, 0) + 1

    def test_zeros_at_the_end_are_an_unfinished_record(self, tmp_path: Path) -> None:
        filled(tmp_path / "j").close()
        data, ends = file_of(tmp_path / "j").read_bytes(), record_ends(tmp_path / "j")
        for zeros in (1, 11, 12, 13, 5_000):
            file_of(tmp_path / "j").write_bytes(data[: ends[-2]] + bytes(zeros))
            with FileJournal(tmp_path / "j") as journal:
                assert journal.counter == len(ends) - 2
        tail = len(data) - ends[-2]
        file_of(tmp_path / "j").write_bytes(data[: ends[-2] + tail - 40] + bytes(40))
        with FileJournal(tmp_path / "j") as journal:
            assert journal.counter == len(ends) - 2

    def test_every_changed_byte_is_damage(self, tmp_path: Path) -> None:
        filled(tmp_path / "j").close()
        data = file_of(tmp_path / "j").read_bytes()
        for place in range(0, len(data), 2):
            changed = bytearray(data)
            changed[place] ^= 0x41
            file_of(tmp_path / "j").write_bytes(changed)
            with pytest.raises(JournalDamagedError) as caught:
                FileJournal(tmp_path / "j")
            assert caught.value.code == "PF-332"
        assert file_of(tmp_path / "j").read_bytes() == changed  # nothing was mended
        file_of(tmp_path / "j").write_bytes(data)
        FileJournal(tmp_path / "j").close()

    def test_records_that_are_dropped_moved_or_repeated_are_damage(self, tmp_path: Path) -> None:
        filled(tmp_path / "j").close()
        data, ends = file_of(tmp_path / "j").read_bytes(), record_ends(tmp_path / "j")
        records = [data[a:b] for a, b in pairwise(ends)]
        for place in range(len(records) - 1):
            moved = records.copy()
            moved[place], moved[place + 1] = moved[place + 1], moved[place]
            for spoiled in (
                records[:place] + records[place + 1 :],
                records[: place + 1] + records[place:],
                moved,
            ):
                file_of(tmp_path / "j").write_bytes(FIRST_LINE + b"".join(spoiled))
                with pytest.raises(JournalDamagedError):
                    FileJournal(tmp_path / "j")

    def test_a_y_that_was_changed_or_lost_is_damage(self, tmp_path: Path) -> None:
        file = tmp_path / "j" / "vectors" / PLANS[1].hex()
        with filled(tmp_path / "j") as journal:
            file.write_bytes(Y)
            with pytest.raises(JournalDamagedError):
                journal.find(PLANS[1])
            file.unlink()
            with pytest.raises(JournalDamagedError):
                journal.find(PLANS[1])
            assert journal.find(PLANS[2]) == (Y + PLANS[2],)

    def test_a_y_that_nobody_kept_is_removed(self, tmp_path: Path) -> None:
        filled(tmp_path / "j").close()
        stray = tmp_path / "j" / "vectors" / ("ab" * 32)
        stray.write_bytes(b"a y before its record")
        FileJournal(tmp_path / "j").close()
        assert not stray.exists()

    @pytest.mark.parametrize(
        "content",
        [b"pate-fed journal 2\n", b"\x00" * 19, b"x", b"pate-fed journal 1\r\n", b"PK\x03\x04" * 9],
    )
    def test_another_file_is_not_taken_for_a_journal(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "j").mkdir()
        file_of(tmp_path / "j").write_bytes(content)
        with pytest.raises(JournalDamagedError):
            FileJournal(tmp_path / "j")
        assert file_of(tmp_path / "j").read_bytes() == content

    def test_a_record_of_an_absurd_length_is_not_read(self, tmp_path: Path) -> None:
        with filled(tmp_path / "j") as journal:
            header = file_journal.FORMAT.header(journal.head, 2**31)
        with file_of(tmp_path / "j").open("ab") as file:
            file.write(header + b"x")
        with pytest.raises(JournalDamagedError):
            FileJournal(tmp_path / "j")

    @pytest.mark.parametrize(
        "body",
        [
            [], ["dance"], ["begin"], ["begin", b"r", 1], ["begin", b"r", "1", b"p"], [1],
            ["keep", b"never begun", b"d"], ["erase", b"never kept"], ["erase", []], ["claim", b""],
            ["claim", ["text"]], ["claim", [[1]]], ["witness", [b"peer"]], ["witness", [[b"p"]]],
            ["witness", [[10**9, 1]]], ["witness", {}], ["halt"], ["halt", "1"], ["resume", 1],
            ["begin", RUN, 1, PLANS[0]], ["keep", PLANS[1], b"d"],
        ],
        ids=str,
    )  # fmt: skip
    def test_a_record_that_says_what_no_party_wrote_is_damage(
        self, tmp_path: Path, body: list[object]
    ) -> None:
        """Whole and rightly chained, by somebody who knows how."""
        from protocols import wire  # noqa: PLC0415

        with filled(tmp_path / "j") as journal:
            record, _ = file_journal.FORMAT.record(journal.head, wire.encode_value(body))  # type: ignore[arg-type]
        with file_of(tmp_path / "j").open("ab") as file:
            file.write(record)
        with pytest.raises(JournalDamagedError):
            FileJournal(tmp_path / "j")

    def test_every_fault_is_a_coded_one(self, tmp_path: Path) -> None:
        file_of(tmp_path).mkdir()
        with pytest.raises(JournalError):
            FileJournal(tmp_path)
        with pytest.raises(JournalStorageError):
            FileJournal(tmp_path / "no" / "parent")


class TestHalted:
    def test_a_halted_journal_begins_nothing_after_it_is_opened_again(self, tmp_path: Path) -> None:
        with filled(tmp_path / "j", plans=1) as journal:
            journal.halt(100)
            journal.halt(90)
            counter = journal.counter
        with FileJournal(tmp_path / "j") as again:
            assert again.counter == counter
            with pytest.raises(RestoredJournalError) as caught:
                again.begin(run_id=RUN, epoch=9, plan_digest=b"n" * 32)
            assert (caught.value.shown, caught.value.counter) == (100, counter)
            assert caught.value.code == "PF-214"

    def test_its_owner_can_let_it_go_on_past_what_was_signed(self, tmp_path: Path) -> None:
        with filled(tmp_path / "j", plans=1) as journal:
            journal.halt(100)
            journal.resume()
            assert journal.counter > 100
            counter = journal.counter
            journal.resume()
            assert journal.counter == counter
        with FileJournal(tmp_path / "j") as again:
            assert again.counter == counter
            again.begin(run_id=RUN, epoch=9, plan_digest=b"n" * 32)
