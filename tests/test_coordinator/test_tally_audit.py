"""An auditor with one end's material computes again all that it told; both ends' is refused."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from coordinator import operator
from coordinator.database import Database, check_journal_of, sealing_key_of
from coordinator.database.run_checks import stored_check
from coordinator.database.run_journal import SqlCoordinatorJournal
from coordinator.errors import UsageError
from coordinator.federation.home import FederationHome, utc_now
from coordinator.operator import Coordinator
from coordinator.runs.open_run import RUN_LIFETIME_S
from coordinator.runs.queue import RunQueue, RunState
from coordinator.tally.book import TallyBook
from coordinator.tally.book_rows import noted_batch
from coordinator.tally.side_material import ENDS, SideFile, audit_files
from coordinator.tally.tally_folder import TallyFolder, TallySettings
from pate_fed.mechanisms import DistributedNoise
from pate_fed.votes import NoiseShare
from protocols import wire
from protocols.envelope import SealingKey
from protocols.errors import WrongShareError
from protocols.rounds.coordinator_journal import PlanOpened, SetupFinished
from protocols.suites import SUITE_X25519
from protocols.verified import SideMaterial, read_part
from protocols.verified.vote_side import reports_in
from protocols.vote_messages import ReportList
from tests.support.command import Command, pate_fed
from tests.support.loopback_home import make_home
from tests.support.tallied import NOW, TalliedBatch, TalliedRun
from tests.support.worked import QUERIES
from tests.support.worked_tally import WorkedWithTally

__all__ = ["pate_fed"]

SIDES = pytest.mark.parametrize("end", ENDS)


@dataclass
class Audited:
    """Two batches of both ends, each in its own database, and files for their audit."""

    home: FederationHome
    folder: TallyFolder
    batch: TalliedBatch
    later: TalliedBatch
    files: Path

    @property
    def plan(self) -> str:
        return self.batch.digest.hex()

    def write(self, pate_fed: Command, end: str, *options: str, plan: str = "") -> Path:
        """Write an end's file with its own command."""
        plan = plan or self.plan
        out = self.files / f"{end}{plan[:8]}{''.join(options)}.batch"
        at = {
            "coordinator": ("transcript", "material", "--home", self.home.folder),
            "tally": ("tally", "material", "--folder", self.folder.folder),
        }[end]
        ended = pate_fed(*at, plan[:12], "--out", out, *options)
        assert ended.code == 0, ended.err
        return out

    def pair(self, pate_fed: Command, end: str) -> tuple[Path, Path]:
        """Material of an end, and what the other one heard."""
        other = {"coordinator": "tally", "tally": "coordinator"}[end]
        return self.write(pate_fed, end), self.write(pate_fed, other, "--heard")


def made(folder: Path, noise: Any = None) -> Audited:
    """Run a batch between a coordinator's and a tally's database; `noise` lies at one end."""
    home = make_home(folder / "federation")
    invite = home.invite_tally(now=datetime.now(UTC))
    settings = TallySettings("127.0.0.1:8448")
    tally = TallyFolder.create(folder / "tally", settings, invite, now=datetime.now(UTC))
    with (
        closing(Database(home.database_url)) as database,
        closing(tally.database()) as at_tally,
        patch.object(DistributedNoise, "draw", noise or DistributedNoise.draw),
    ):
        queue = RunQueue(database, clock=lambda: datetime.now(UTC))
        queue.add("lung", "{}")
        attempt = queue.take_up("lung")
        book = TallyBook(
            at_tally,
            identity=tally.identity,
            coordinator=home.identity.public,
            clock=lambda: float(NOW),
        )
        run = TalliedRun(home.identity, book.state, book.check, quotas=(3, 25, 40, 7))
        run.key = sealing_key_of(attempt, SUITE_X25519)
        run.record = run.record_of()
        journal = SqlCoordinatorJournal(attempt)
        journal.append(SetupFinished(run.offer, run.record, (), ()))
        batches = []
        for rows in ((0, 1, 2), (3, 4)):
            plan = run.plan(*rows)
            journal.append(PlanOpened(plan))
            checks = check_journal_of(attempt, wire.decode(plan).digest)
            batches.append(batch := TalliedBatch(run, *rows, plan=plan, journal=checks))
            batch.open(*(batch.report(place) for place in range(4)))
            assert batch.machine.opened is not None
    return Audited(home, tally, *batches, folder)


@pytest.fixture
def audited(tmp_path: Path) -> Audited:
    return made(tmp_path)


@SIDES
def test_an_honest_end_is_found_honest(pate_fed: Command, audited: Audited, end: str) -> None:
    files = audited.pair(pate_fed, end)
    ended = pate_fed("transcript", "audit-side", *files, "--format", "json")
    assert ended.code == 0
    assert ended.json == {
        "end": end,
        "coordinator": audited.home.identity.fingerprint.hex(),
        "tally": audited.folder.identity.fingerprint.hex(),
        "plan": audited.plan,
        "wrong": [],
        "hospitals": [],
        "unopened": [],
    }


@pytest.mark.parametrize("liar", ENDS)
def test_noise_that_an_end_did_not_add_is_found(
    pate_fed: Command, tmp_path: Path, liar: str
) -> None:
    true_draw, drawn = DistributedNoise.draw, []

    def draw(noise: DistributedNoise, *shape: int, **named: Any) -> NoiseShare:
        share = true_draw(noise, *shape, **named)
        drawn.append(share)
        # The coordinator tells its share first.
        return NoiseShare(share.counts * 0) if ENDS[(len(drawn) - 1) % 2] == liar else share

    lied = made(tmp_path, draw)
    found = {}
    for end in ENDS:
        files = lied.pair(pate_fed, end)
        ended = pate_fed("transcript", "audit-side", *files, "--format", "json")
        found[end] = (ended.code, ended.json["wrong"])
    assert found.pop(liar) == (4, ["SumShare"])
    assert list(found.values()) == [(0, [])]


@SIDES
def test_both_ends_material_in_one_call_is_refused(
    pate_fed: Command, audited: Audited, end: str
) -> None:
    files = [audited.write(pate_fed, one) for one in ("coordinator", "tally")]
    ended = pate_fed("transcript", "audit-side", *(files if end == "tally" else files[::-1]))
    assert (ended.code, ended.error_code) == (2, "PF-402")


def test_files_that_do_not_belong_together_are_refused(
    pate_fed: Command, audited: Audited, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = made(tmp_path / "other")
    material, heard = audited.pair(pate_fed, "tally")
    wrong = (
        (heard, material),
        (heard, heard),
        (material, audited.write(pate_fed, "tally", "--heard")),  # its own word
        (material, other.write(pate_fed, "coordinator", "--heard")),
    )
    for files in wrong:
        with pytest.raises(UsageError):
            audit_files(*map(SideFile.read, files))


@SIDES
def test_only_the_material_holds_secrets(pate_fed: Command, audited: Audited, end: str) -> None:
    material = audited.write(pate_fed, end)
    heard = audited.write(pate_fed, end, "--heard")
    for path in (material, heard):
        assert path.stat().st_mode & 0o077 == 0
    read = SideFile.read(material)
    assert read.material is not None
    secrets = (
        read.material.secrets.noise_seed,
        *(part[-32:] for part in read.material.parts.values()),
    )
    assert len(secrets) == 5
    shown = heard.read_bytes()
    for secret in secrets:
        assert secret in material.read_bytes()
        assert secret not in shown
        assert repr(secret) not in repr(read)
    assert SideFile.read(heard).material is None


def test_material_of_a_batch_opens_no_other_one_of_its_run(
    pate_fed: Command, audited: Audited
) -> None:
    """An auditor who got one end's material of each batch, and what both ends heard of them."""
    first = SideFile.read(audited.write(pate_fed, "coordinator"))
    later = SideFile.read(audited.write(pate_fed, "tally", plan=audited.later.digest.hex()))
    assert first.material is not None
    assert later.material is not None
    files = [path.read_bytes() for path in audited.files.glob("*.batch")]
    with closing(Database(audited.home.database_url)) as database:
        key = stored_check(database, audited.plan).key
    with closing(audited.folder.database()) as at_tally, at_tally.transaction() as connection:
        noted = noted_batch(connection, audited.later.digest)
    assert noted is not None
    assert noted.key is not None
    for own in (key.private_bytes, noted.key.private_bytes):
        assert not any(own in content for content in files)
    # Nothing of 32 bytes in them is a key that opens what a hospital sealed for the other batch.
    [listed] = [
        message
        for frame in first.told
        if isinstance(message := wire.decode(frame).message, ReportList)
    ]
    reports = reports_in(listed)
    wanted = later.run.batch_of(
        *first.run.plan_of(first.plan, coordinator=audited.home.identity.public)
    )
    tried = {
        first.material.secrets.nonce,
        later.material.secrets.nonce,
        first.material.secrets.noise_seed,
        later.material.secrets.noise_seed,
        *later.material.parts.values(),
        *(part[-32:] for part in first.material.parts.values()),
    }
    assert {len(one) for one in tried} == {32}
    for private in tried:
        found = SideMaterial.of(
            wanted,
            first.material.secrets,
            reports,
            key=SealingKey.from_private_bytes(SUITE_X25519, private),
            is_tally=True,
        )
        assert found.parts == {}
    # What the key's owner can do, so that the attempt is the right one; and both ends' material of
    # one batch is every vote of it.
    true = SideMaterial.of(wanted, first.material.secrets, reports, key=noted.key, is_tally=True)
    for report in reports:
        layout = wanted.layout_of(report.header.sender)
        digits = [
            read_part(wanted, report.header, part, is_tally=bool(end)).digits
            for end, part in enumerate(
                each.parts[report.header.sender] for each in (first.material, true)
            )
        ]
        place = list(wanted.votes).index(report.header.sender)
        sums = layout.numbers_of(layout.field.add(*digits))
        assert (sums == audited.batch.run.rows(place, 3)).all()


@SIDES
def test_digits_of_no_batch_or_an_erased_one_are_refused(
    pate_fed: Command, audited: Audited, end: str, tmp_path: Path
) -> None:
    at = {
        "coordinator": ("transcript", "material", "--home", audited.home.folder),
        "tally": ("tally", "material", "--folder", audited.folder.folder),
    }[end]
    ended = pate_fed(*at, "ffff", "--out", tmp_path / "x")
    assert (ended.code, ended.error_code) == (2, {"coordinator": "PF-446", "tally": "PF-402"}[end])
    assert not (tmp_path / "x").exists()
    known = audited.write(pate_fed, end)
    before = known.read_bytes()
    ended = pate_fed(*at, audited.plan, "--out", known)
    assert (ended.code, ended.error_code) == (2, "PF-105")
    assert known.read_bytes() == before


def test_a_part_that_its_hospital_did_not_sign_is_refused(
    pate_fed: Command, audited: Audited, tmp_path: Path
) -> None:
    material, heard = audited.pair(pate_fed, "tally")
    content = SideFile.read(material)
    assert content.material is not None
    old = next(iter(content.material.parts.values()))
    changed = tmp_path / "changed"
    changed.write_bytes(material.read_bytes().replace(old, bytes(32)))
    ended = pate_fed("transcript", "audit-side", changed, heard)
    assert (ended.code, ended.error_code) == (4, WrongShareError.code)


@pytest.mark.parametrize("content", [b"", b"\xff", b"\xa0", b"\x80", b"\xa1gversion\x01"])
def test_what_is_no_file_of_a_batch_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(UsageError):
        SideFile.read(path)
    with pytest.raises(UsageError):
        SideFile.read(tmp_path / "nothing")


def test_after_the_audit_window_the_coordinator_has_no_material_and_keeps_its_journal(
    pate_fed: Command, audited: Audited, tmp_path: Path
) -> None:
    at = ("transcript", "material", "--home", audited.home.folder, audited.plan, "--out")
    with closing(Coordinator.open(audited.home.folder)) as coordinator:
        coordinator.queue.enter("lung", RunState.DONE, "")
        assert operator.erase_ended(coordinator) == 0
    assert pate_fed(*at, tmp_path / "x").code == 0
    path = audited.home.path("federation.toml")
    path.write_text(path.read_text().replace("audit_days = 90", "audit_days = 0"))
    later = utc_now() + timedelta(seconds=RUN_LIFETIME_S + 1)  # its run has expired, and so has it
    with closing(Coordinator.open(audited.home.folder)) as coordinator:
        assert operator.erase_ended(coordinator) == 0
        with patch.object(operator, "utc_now", lambda: later):
            assert operator.erase_ended(coordinator) == 1
        assert coordinator.queue.find("lung").state is RunState.DONE
    ended = pate_fed(*at, tmp_path / "y")
    assert (ended.code, ended.error_code) == (2, "PF-446")


def test_every_batch_of_a_whole_run_can_be_audited_at_either_end(
    pate_fed: Command, tmp_path: Path
) -> None:
    """Plans, keys and steps are those that a worker and a tally left behind."""
    federation = WorkedWithTally(tmp_path)
    with closing(federation.coordinator):
        federation.ask()
        assert federation.work().state is RunState.DONE
        federation.stop_tally()
    folder, home = federation.tally.folder, federation.coordinator.home.folder
    shown = pate_fed("tally", "status", "--folder", folder, "--format", "json").json
    [run] = shown["runs"]
    assert len(run["plans"]) > 1
    assert all(run["plans"].values())
    assert run["asks"] == [QUERIES, QUERIES]
    at = {
        "coordinator": ("transcript", "material", "--home", home),
        "tally": ("tally", "material", "--folder", folder),
    }
    for plan in run["plans"]:
        for end, other in (ENDS, ENDS[::-1]):
            files = [tmp_path / f"{plan} {end} {name}" for name in ("material", "heard")]
            assert pate_fed(*at[end], plan, "--out", files[0]).code == 0
            assert pate_fed(*at[other], plan, "--out", files[1], "--heard").code == 0
            ended = pate_fed("transcript", "audit-side", *files, "--format", "json")
            assert (ended.code, ended.json["end"], ended.json["wrong"]) == (0, end, [])
