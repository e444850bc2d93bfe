"""Results at a hospital: those of its own runs alone, whole and as they were sealed, or nothing."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from coordinator.database.federation_schema import AttemptRow
from coordinator.federation.home import utc_now
from coordinator.runs.queue import RunQueue
from party.errors import JoinError, ResultsError
from party.site import joining
from party.site.fetched_results import AnsweredRun, answered_runs, fetch_results
from party.site.joining import CoordinatorDoor
from party.site.site import Site
from party.storage.site_audit_log import SiteAct
from pate_fed.array_models import DESCRIPTION_FILE, TENSORS_FILE
from pate_fed.report import RunDirectory
from pate_fed.report.run_directory import digests_of
from pate_fed.run_folder import SEAL, SEALED
from pate_fed.stored_models import SKOPS_FILE
from protocols import wire
from protocols.identity import SigningIdentity
from protocols.invitation import CLOCK_SKEW_S, Invitation
from protocols.membership_messages import ResultsQuery
from protocols.transcript import seal_files
from tests.support.hospital_services import audit_of, make_hospitals
from tests.support.markers import sampled
from tests.support.sample_run import fill
from tests.support.served_federation import ServedFederation, served_federation
from tests.test_party.test_cli import PateParty, error_code, pate_party
from tests.test_party.test_service import Running

__all__ = ["pate_party"]

Change = Callable[[dict[str, bytes]], None]


@dataclass
class Ended:
    """A run of three hospitals that ended, at a coordinator that can be reached."""

    federation: ServedFederation
    running: Running
    folder: Path
    results: Path
    run: bytes

    @property
    def site(self) -> Site:
        return self.running.hospitals.sites[0]

    @property
    def answered(self) -> AnsweredRun:
        (one,) = answered_runs(audit_of(self.site))
        return one

    def fetch(self, out: Path, *, site: Site | None = None) -> None:
        asking = site or self.site
        with closing(CoordinatorDoor(asking.membership(), clock=time.time)) as door:
            fetch_from(door, self.answered, out, asking)

    def sealed_by(self, coordinator: SigningIdentity, change: Change) -> Ended:
        """Let a coordinator change its results, and seal them again."""
        seal = json.loads((self.results / SEAL).read_bytes())
        files = {name: (self.results / name).read_bytes() for name in seal["files"]}
        change(files)
        for name, content in files.items():
            (self.results / name).write_bytes(content)
        digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
        head = bytes.fromhex(seal["head"])
        again = seal_files(digests, head=head, coordinator=coordinator)
        (self.results / SEAL).write_text(json.dumps(again))
        return self


def fetch_from(door: Any, answered: AnsweredRun, out: Path, site: Site) -> None:
    fetch_results(
        door,
        answered,
        out,
        coordinator=site.membership().coordinator,
        party=site.identity.public,
    )


@contextmanager
def a_run_that_ended(folder: Path) -> Iterator[Ended]:
    with ExitStack() as stack, served_federation(folder / "federation") as federation:
        home = federation.home
        hospitals = make_hospitals(
            folder,
            coordinator=home.identity,
            address=home.settings.address,
            ca=home.ca_certificate.decode(),
        )
        for place, site in enumerate(hospitals.sites):
            join(federation, site)
            hospitals.approve(place)
        running = Running(hospitals, stack)
        run = running.set_up()
        run.ask((0, 1))
        run.close()
        queue = RunQueue(federation.enrollment._database, clock=utc_now)
        number = queue.add("first", "{}").number
        with federation.enrollment._database.session() as session:
            session.add(
                AttemptRow(run=number, run_id=run.round.run_id, given_up=None, begun_at=utc_now())
            )
        results = home.path("runs", "first", "results")
        with RunDirectory.open_new(results) as directory:
            fill(directory)
            lines = (
                json.dumps(line, sort_keys=True) for line in run.round.closing.signed_transcript()
            )
            (directory.folder / "transcript.jsonl").write_text("".join(f"{one}\n" for one in lines))
            directory.write_json(SEAL, run.round.closing.seal_results(digests_of(directory.folder)))
            (directory.folder / "report.html").write_text("<script>alert(1)</script>")
        yield Ended(federation, running, folder, results, run.round.run_id)


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ended]:
    """One run for all tests that change no more than its results; they are kept in `folder`."""
    with a_run_that_ended(tmp_path_factory.mktemp("ended")) as made:
        yield replace(made, folder=shutil.copytree(made.results, made.folder / "kept"))


@pytest.fixture
def ended(once: Ended, tmp_path: Path) -> Ended:
    shutil.rmtree(once.results.parent)
    shutil.copytree(once.folder, once.results)
    return replace(once, folder=tmp_path)


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[Ended]:
    """A run of its own, for a test that changes more."""
    with a_run_that_ended(tmp_path) as made:
        yield made


def join(federation: ServedFederation, site: Site) -> None:
    party = site.membership().settings.party
    token = Invitation.from_json(federation.enrollment.invite(party).to_json()).token
    with closing(CoordinatorDoor(site.membership(), clock=time.time)) as door:
        door.join(token)
    federation.approve(party, site.identity.public.fingerprint)


def left_in(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir() if one.name.lstrip(".").startswith("out"))


class TestFetching:
    @pytest.mark.slow
    def test_a_hospital_lists_its_runs_and_fetches_what_one_gave(
        self, ended: Ended, pate_party: PateParty
    ) -> None:
        shown = pate_party("results", "--site", ended.site.folder)
        assert f"run {ended.run.hex()[:16]}  lung study, " in shown.out
        assert shown.out.endswith("1 batch(es): ready\n")
        out = ended.folder / "out"
        line = ("results", ended.run.hex()[:12], "--out", out, "--site", ended.site.folder)
        fetched = pate_party(*line)
        assert fetched.code == 0, fetched.err
        assert "3 of 3 hospitals" in fetched.out
        names = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
        assert names == {*digests_of(ended.results), "report.html", "annexes.html"}
        for name in names - {"report.html", "annexes.html"}:
            assert (out / name).read_bytes() == (ended.results / name).read_bytes()
        # The report is our own: what the coordinator calls one is not asked for.
        assert "alert(1)" not in (out / "report.html").read_text("utf-8")
        taken = audit_of(ended.site)[-1]
        assert (taken.act, taken.facts["run"], taken.facts["from"]) == (
            *(SiteAct.RESULTS_FETCHED, ended.run),
            "command line",
        )
        again = pate_party(*line)
        assert (again.code, error_code(again)) == (5, "PF-140")

    def test_a_run_without_results_yet_is_listed_and_not_fetched(
        self, ended: Ended, pate_party: PateParty
    ) -> None:
        ended.results.rename(ended.results.with_name("later"))
        assert pate_party("results", "--site", ended.site.folder).out.endswith(": none yet\n")
        out = ended.folder / "out"
        fetched = pate_party(
            *("results", ended.run.hex()[:12], "--out", out, "--site", ended.site.folder)
        )
        assert (fetched.code, error_code(fetched)) == (5, "PF-376")
        assert left_in(ended.folder) == []

    @pytest.mark.parametrize("digits", ["", "0" * 64, "ab"])
    def test_a_run_must_be_one_that_is_listed(
        self, ended: Ended, pate_party: PateParty, digits: str
    ) -> None:
        fetched = pate_party("results", digits, "--site", ended.site.folder)
        assert (fetched.code, error_code(fetched)) == (5, "PF-376")


class TestWhoMayHaveThem:
    def other(self, ended: Ended) -> Site:
        """A member of the federation that was in no run."""
        path = ended.federation.invite(ended.folder, "East")
        invitation = Invitation.from_json(path.read_text("utf-8"))
        site = Site.create(ended.folder / "East", invitation)
        with closing(CoordinatorDoor(site.membership(), clock=time.time)) as door:
            door.join(invitation.token)
        ended.federation.approve("East", site.identity.public.fingerprint)
        return site

    def test_another_member_hears_what_it_would_hear_if_there_were_none(self, apart: Ended) -> None:
        site = self.other(apart)
        with pytest.raises(ResultsError, match="part"):
            apart.fetch(apart.folder / "out", site=site)

    def test_a_revoked_hospital_gets_nothing_though_it_took_part(self, apart: Ended) -> None:
        apart.federation.enrollment.revoke("North")
        with pytest.raises(JoinError, match="status 403"):
            apart.fetch(apart.folder / "out")

    def post(self, ended: Ended, query: ResultsQuery, signer: SigningIdentity) -> httpx.Response:
        membership = ended.site.membership()
        with closing(CoordinatorDoor(membership, clock=time.time)) as door:
            frame = wire.sign(query, signer).frame
            return door._client.post(joining.PREFIX + "results", content=frame)

    def query(self, ended: Ended, **changed: Any) -> ResultsQuery:
        fields: dict[str, Any] = {
            "coordinator": ended.site.membership().coordinator.fingerprint,
            "sender": ended.site.identity.fingerprint,
            "run": ended.run,
            "file": "labels.csv",
            "offset": 0,
            "asked_at": int(time.time()),
        }
        return ResultsQuery(**{**fields, **changed})

    def test_only_a_fresh_request_with_its_own_signature_is_answered(self, apart: Ended) -> None:
        own, other = apart.site.identity, self.other(apart).identity
        assert self.post(apart, self.query(apart), own).status_code == 200
        old = self.query(apart, asked_at=int(time.time()) - CLOCK_SKEW_S - 60)
        assert self.post(apart, old, own).status_code == 403
        elsewhere = self.query(apart, coordinator=bytes(32))
        assert self.post(apart, elsewhere, own).status_code == 403
        assert self.post(apart, self.query(apart), other).status_code == 403
        theirs = self.query(apart, sender=other.fingerprint)
        assert self.post(apart, theirs, other).status_code == 404

    @pytest.mark.parametrize(
        "file",
        ["report.html", "../../../identity.key", "../results/labels.csv", "student", "/etc/passwd"],
    )
    def test_a_file_that_is_not_in_the_list_is_none(self, ended: Ended, file: str) -> None:
        answer = self.post(ended, self.query(ended, file=file), ended.site.identity)
        assert (answer.status_code, answer.content) == (404, b"")


class TestLyingCoordinator:
    """It holds the key that seals, and may send what it likes."""

    @sampled()
    @pytest.mark.parametrize("name", ["labels.csv", "privacy.json", "student/model_card.md"])
    def test_a_file_that_changed_since_it_was_sealed_is_named_and_nothing_is_kept(
        self, ended: Ended, name: str
    ) -> None:
        with (ended.results / name).open("ab") as file:
            file.write(b" ")
        with pytest.raises(ResultsError, match=f"{name} .*sealed"):
            ended.fetch(ended.folder / "out")
        assert left_in(ended.folder) == []

    def test_a_seal_of_somebody_else_is_none(self, ended: Ended) -> None:
        ended.sealed_by(SigningIdentity.generate(), lambda _: None)
        with pytest.raises(ResultsError, match="coordinator"):
            ended.fetch(ended.folder / "out")

    @pytest.mark.parametrize(
        "name", ["../escaped", "/escaped", "student/../../escaped", "report.html", "extra.txt"]
    )
    def test_names_are_of_the_list_whatever_it_seals(self, ended: Ended, name: str) -> None:
        seal = json.loads((ended.results / SEAL).read_bytes())
        again = seal_files(
            {**seal["files"], name: "00" * 32},
            head=bytes.fromhex(seal["head"]),
            coordinator=ended.federation.home.identity,
        )
        (ended.results / SEAL).write_text(json.dumps(again))
        with pytest.raises(ResultsError, match="others"):
            ended.fetch(ended.folder / "out")
        assert left_in(ended.folder) == []
        assert not [*ended.folder.rglob("escaped*")]

    def test_a_shorter_list_is_no_run(self, ended: Ended) -> None:
        ended.sealed_by(ended.federation.home.identity, lambda files: files.pop("privacy.json"))  # type: ignore[arg-type,return-value]
        with pytest.raises(ResultsError, match="files"):
            ended.fetch(ended.folder / "out")

    def test_a_transcript_that_it_cut_is_noticed_though_it_sealed_it(self, ended: Ended) -> None:
        def cut(files: dict[str, bytes]) -> None:
            lines = files["transcript.jsonl"].splitlines(keepends=True)
            files["transcript.jsonl"] = b"".join([*lines[:-2], lines[-1]])

        ended.sealed_by(ended.federation.home.identity, cut)
        with pytest.raises(ResultsError, match="transcript"):
            ended.fetch(ended.folder / "out")
        assert left_in(ended.folder) == []

    def test_another_run_of_the_same_hospitals_is_not_this_one(self, apart: Ended) -> None:
        run = apart.running.set_up()
        run.ask((2, 3))
        run.close()
        first, _ = answered_runs(audit_of(apart.site))
        lines = (json.dumps(line, sort_keys=True) for line in run.round.closing.signed_transcript())

        def replaced(files: dict[str, bytes]) -> None:
            files["transcript.jsonl"] = "".join(f"{one}\n" for one in lines).encode()

        apart.sealed_by(apart.federation.home.identity, replaced)
        with (
            closing(CoordinatorDoor(apart.site.membership(), clock=time.time)) as door,
            pytest.raises(ResultsError, match="run"),
        ):
            fetch_from(door, first, apart.folder / "out", apart.site)

    def test_another_head_than_this_hospital_signed_is_shouted(self, ended: Ended) -> None:
        one = ended.answered
        forked = AnsweredRun(one.run, one.coordinator, one.at, one.batches, head=bytes(32))
        with (
            closing(CoordinatorDoor(ended.site.membership(), clock=time.time)) as door,
            pytest.raises(ResultsError, match="head"),
        ):
            fetch_from(door, forked, ended.folder / "out", ended.site)
        assert left_in(ended.folder) == []

    @pytest.mark.parametrize("file", [SEAL, "labels.csv", "privacy.json"])
    def test_a_file_without_end_is_cut_off(
        self, ended: Ended, file: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("party.site.fetched_results.MAX_FILE_BYTES", 2**20)
        monkeypatch.setattr("party.site.fetched_results.MAX_TABLE_BYTES", 2**18)
        sent = 0

        class Endless:
            def results_pieces(self, run: bytes, name: str) -> Iterator[bytes]:
                nonlocal sent
                if name != file:
                    yield (ended.results / name).read_bytes()
                    return
                while True:
                    sent += 2**15
                    yield bytes(2**15)

        with pytest.raises(ResultsError, match=f"{file} "):
            fetch_from(Endless(), ended.answered, ended.folder / "out", ended.site)
        assert sent <= 2**20 + 2**15
        assert left_in(ended.folder) == []

    def test_one_answer_without_end_is_cut_off(self, ended: Ended) -> None:
        sent = 0

        class Endless(httpx.SyncByteStream):
            def __iter__(self) -> Iterator[bytes]:
                nonlocal sent
                while True:
                    sent += 2**20
                    yield bytes(2**20)

        transport = httpx.MockTransport(lambda _: httpx.Response(200, stream=Endless()))
        membership = ended.site.membership()
        with closing(CoordinatorDoor(membership, clock=time.time, transport=transport)) as door:
            with pytest.raises(JoinError, match="most"):
                next(door.results_pieces(ended.run, "labels.csv"))
            with pytest.raises(JoinError, match="most"):
                door.membership()
        assert sent <= 2 * (joining.MAX_ANSWER_BYTES + 2**20)

    def test_a_packed_answer_is_not_unpacked(self, ended: Ended) -> None:
        packed = {"content-encoding": "gzip"}
        transport = httpx.MockTransport(
            lambda _: httpx.Response(
                200, headers=packed, stream=httpx.ByteStream(b"\x1f\x8b" + bytes(9))
            )
        )
        membership = ended.site.membership()
        with (
            closing(CoordinatorDoor(membership, clock=time.time, transport=transport)) as door,
            pytest.raises(JoinError, match="packed"),
        ):
            next(door.results_pieces(ended.run, "labels.csv"))


def test_every_file_that_a_student_may_have_can_be_fetched() -> None:
    for name in (DESCRIPTION_FILE, SKOPS_FILE, TENSORS_FILE, "model_card.md"):
        assert f"student/{name}" in SEALED
