"""One hospital in two federations: one identity, one journal, one budget, whoever asks."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from coordinator.errors import PartyRefusedError, VoidBatchError
from coordinator.runs.labeling import LabelingRun
from party.errors import BrokenSiteLogError, MembershipError, Reason, SiteError
from party.owner import open_records
from party.service import PartyService
from party.site.membership import MembershipSettings, free_name, free_port, is_membership_name
from party.site.people_decisions import Subject
from party.site.policy import Aggregators
from party.site.site import IDENTITY_KEY, SETTINGS_FILE, Site
from party.storage.site_audit_log import sign_head
from pate_fed.data.new_task import make_task
from pate_fed.nodes import owner_files
from protocols import wire
from protocols.identity import SigningIdentity
from protocols.membership_messages import NamedTally
from tests.support.changed_pool import rewrite
from tests.support.federation import MemoryTransport
from tests.support.hospital_services import (
    Hospitals,
    join_another,
    ledger_of,
    make_hospitals,
    records_of,
)
from tests.support.hospital_site import (
    LABEL,
    invitation_of,
    key_files,
    make_site,
    membership_of,
)
from tests.support.markers import sampled
from tests.test_party.test_service import MARKER, votes

LUNG, HEART = "lung-study", "heart-study"


@dataclass
class Door:
    """What one federation's packets come through."""

    service: PartyService
    name: str | None

    def receive(self, packet: bytes) -> bytes:
        return self.service.receive(packet, self.name)


class Both:
    """Three hospitals that are in two federations; one service each."""

    def __init__(
        self, folder: Path, stack: ExitStack, *, approval: str = "pool", budget: float = 5.0
    ) -> None:
        self.lung = make_hospitals(folder, approval=approval)
        for place, site in enumerate(self.lung.sites):
            changed = replace(site.settings, lifetime_epsilon=budget)
            self.lung.sites[place] = site.save(changed)
        self.heart = join_another(self.lung)
        self.now = time.time()
        self.services: list[PartyService] = []
        self.stack = stack

    def approve(self) -> None:
        """Both federations may ask the same pool."""
        self.lung.approve_all()
        self.heart.approve_all()

    def open(self) -> None:
        for site in self.lung.sites:
            service = PartyService(site, clock=lambda: self.now, vote_of=votes)  # type: ignore[arg-type]
            self.stack.callback(service.close)
            self.services.append(service)

    def run(self, of: Hospitals) -> LabelingRun:
        transport = MemoryTransport([Door(one, of.membership) for one in self.services], [])
        return of.run(transport, clock=lambda: self.now, sleep=lambda _: None)

    def set_up(self, of: Hospitals) -> LabelingRun:
        run = self.run(of)
        run.set_up()
        return run

    @property
    def sites(self) -> list[Site]:
        return self.lung.sites


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def both(tmp_path: Path, stack: ExitStack) -> Both:
    made = Both(tmp_path, stack)
    made.approve()
    made.open()
    return made


class TestOneHospital:
    def test_identity_is_the_same_and_all_else_of_a_node_is_not(self, both: Both) -> None:
        site = both.sites[0]
        lung, heart = site.memberships
        assert (lung.name, heart.name) == (LUNG, HEART)
        assert lung.identity.public == heart.identity.public == site.identity.public
        assert lung.coordinator != heart.coordinator
        assert lung.node_public_key != heart.node_public_key
        assert lung.node_secret != heart.node_secret
        assert lung.settings.node_port != heart.settings.node_port
        assert lung.fingerprint_of_federation != heart.fingerprint_of_federation
        names = [one.settings.party for one in site.memberships]
        assert names == ["North", "North clinic"]

    @pytest.mark.slow
    def test_runs_of_both_go_on_beside_each_other(self, both: Both) -> None:
        lung, heart = both.set_up(both.lung), both.set_up(both.heart)
        for place, run in enumerate((lung, heart, lung, heart)):
            assert run.ask((place,)).labels.tolist() == [MARKER]
        lung.close()
        heart.close()
        for site, service in zip(both.sites, both.services, strict=True):
            states = [entry.state.value for entry in ledger_of(site).entries]
            assert states == ["committed"] * 4
            answered = {
                name: one.batches_answered for name, one in service.status.federations.items()
            }
            assert answered == {LUNG: 2, HEART: 2}

    def test_a_charge_of_one_is_a_charge_for_life(self, both: Both) -> None:
        for of, asked in ((both.lung, (0, 1)), (both.heart, (2, 3))):
            before = both.services[0].ledger.used_share()
            run = both.set_up(of)
            run.ask(asked)
            run.close()
            assert both.services[0].ledger.used_share() > before

    def test_what_each_run_took_is_said_with_its_federation(self, both: Both) -> None:
        lung, heart = both.set_up(both.lung), both.set_up(both.heart)
        lung.ask((0, 1))
        heart.ask((2,))
        lung.ask((3,))
        with open_records(both.sites[0].folder) as opened:
            ledger, found = opened.spending()
        assert math.fsum(one.share for one in found) == pytest.approx(ledger.used_share())
        assert [(one.run, one.coordinator, one.batches) for one in found] == [
            (lung.round.run_id.hex(), both.lung.coordinator.public.fingerprint, 2),
            (heart.round.run_id.hex(), both.heart.coordinator.public.fingerprint, 1),
        ]

    def test_a_query_that_one_had_answered_is_refused_to_the_other(self, both: Both) -> None:
        run = both.set_up(both.lung)
        run.ask((0, 1))
        run.close()
        other = both.set_up(both.heart)
        with pytest.raises(VoidBatchError, match=Reason.QUERIES):
            other.ask((1,))
        assert len(ledger_of(both.sites[0]).entries) == 1
        assert other.ask((2,)).labels.tolist() == [MARKER]

    def test_an_answered_row_of_a_changed_pool_is_refused_to_a_federation_with_other_encoders(
        self, tmp_path: Path, stack: ExitStack
    ) -> None:
        both = Both(tmp_path, stack)
        changed = rewrite(
            tmp_path / "public.csv",
            tmp_path / "changed.csv",
            removed=20,
            is_shuffled=True,
            is_written_otherwise=True,
        )
        lung = both.lung.task
        heart = make_task(changed, label=LABEL, classes=lung.class_names)
        both.heart.task = heart
        assert heart.schema.encoder.encoders[0] != lung.schema.encoder.encoders[0]
        both.approve()
        both.open()
        there = heart.rows.digests[5]
        run = both.set_up(both.lung)
        run.ask((lung.rows.digests.index(there), 0))
        run.close()
        other = both.set_up(both.heart)
        with pytest.raises(VoidBatchError, match=Reason.QUERIES):
            other.ask((4, 5))
        assert len(ledger_of(both.sites[0]).entries) == 1
        assert other.ask((6,)).labels.tolist() == [MARKER]

    def test_a_pause_pauses_both(self, both: Both) -> None:
        runs = both.set_up(both.lung), both.set_up(both.heart)
        with records_of(both.sites[1]) as records:
            records.state.pause(by="M. Curie")
        for place, run in enumerate(runs):
            with pytest.raises(VoidBatchError, match=Reason.PAUSED):
                run.ask((place,))
        assert ledger_of(both.sites[1]).entries == ()

    def test_each_coordinator_has_an_owner_of_its_own(
        self, tmp_path: Path, stack: ExitStack
    ) -> None:
        """One university runs the first coordinator, another one both aggregators of the second."""
        both, notary = (
            Both(tmp_path, stack),
            NamedTally("Notary", SigningIdentity.generate().public),
        )
        settings = both.sites[0].settings
        for name, operator in ((LUNG, "North"), (HEART, "South")):
            settings = settings.with_setting(name, operator_body=operator)
            settings = settings.with_tally(name, notary, body="South")
        both.sites[0] = both.sites[0].save(settings)
        both.open()
        found = {
            name: both.services[0].federation(name).node._guard.aggregators
            for name in (LUNG, HEART)
        }
        assert found == {
            LUNG: Aggregators("North", notary.identity, "South"),
            HEART: Aggregators("South", notary.identity, "South"),
        }
        assert {name: bool(one.fault) for name, one in found.items()} == {LUNG: False, HEART: True}

    def test_hearsay_of_one_is_unknown_in_the_other(self, both: Both) -> None:
        stranger, service = SigningIdentity.generate().public, both.services[0]
        service.federation(HEART).hear(
            membership_of(both.sites[0].identity.fingerprint, {"Else": stranger})
        )
        service.receive(wire.pack([]), LUNG)
        known = {name: service.federation(name).node._known_peers for name in (LUNG, HEART)}
        assert stranger.fingerprint in known[HEART]
        assert stranger.fingerprint not in known[LUNG]
        assert service.federation(HEART).has_heard
        assert not service.federation(LUNG).has_heard

    def test_a_log_that_one_coordinator_contradicts_stops_both(self, both: Both) -> None:
        service, site = both.services[0], both.sites[0]
        head = sign_head(3, bytes(32), site.identity)
        service.federation(HEART).hear(membership_of(site.identity.fingerprint, audit_head=head))
        for name in (LUNG, HEART):
            with pytest.raises(BrokenSiteLogError):
                service.receive(wire.pack([]), name)

    def test_packets_of_both_are_answered_one_after_another(
        self, both: Both, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        service, inside, most = both.services[0], [0], [0]

        def receive(packet: bytes) -> bytes:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            time.sleep(0.02)
            inside[0] -= 1
            return packet

        for name in (LUNG, HEART):
            monkeypatch.setattr(service.federation(name).node, "receive", receive)
        threads = [
            threading.Thread(target=service.receive, args=(wire.pack([]), name))
            for name in (LUNG, HEART) * 4
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert most == [1]

    def test_whoever_does_not_say_which_federation_is_asked_to(self, both: Both) -> None:
        with pytest.raises(MembershipError, match=r"lung-study \(lung study\), heart-study"):
            both.services[0].receive(wire.pack([]))


def ask_for_ever(run: LabelingRun) -> None:
    """Ask one query after another."""
    for place in count():
        run.ask((place,))


class TestBudget:
    @pytest.mark.slow
    def test_what_one_left_is_all_that_the_other_has(
        self, tmp_path: Path, stack: ExitStack
    ) -> None:
        both = Both(tmp_path, stack, budget=1.5)
        both.approve()
        both.open()
        with pytest.raises(VoidBatchError, match=Reason.BUDGET):
            ask_for_ever(both.set_up(both.lung))
        entries = len(ledger_of(both.sites[0]).entries)
        assert entries > 0
        other = both.set_up(both.heart)
        with pytest.raises(VoidBatchError, match=Reason.BUDGET):
            other.ask((20,))
        assert len(ledger_of(both.sites[0]).entries) == entries


class TestApprovals:
    @sampled()
    @pytest.mark.parametrize(
        ("approval", "reason"), [("pool", Reason.POOL), ("each run", Reason.POOL)]
    )
    def test_a_pool_that_was_approved_for_one_is_not_for_the_other(
        self, tmp_path: Path, stack: ExitStack, approval: str, reason: Reason
    ) -> None:
        both = Both(tmp_path, stack, approval=approval)
        both.lung.approve_all()
        both.open()
        with pytest.raises(PartyRefusedError, match=reason):
            both.set_up(both.heart)
        heart = both.heart.coordinator.public.fingerprint
        with records_of(both.sites[0]) as records:
            waiting = [one for one in records.approvals() if one.state.value == "pending"]
            assert {one.coordinator for one in waiting} == {heart}

    @sampled()
    @pytest.mark.parametrize("changes", [{"task_digest": bytes(32)}, {"classes": 5}, {}], ids=str)
    def test_a_pool_of_the_other_is_refused_as_an_unknown_pool_is(
        self, tmp_path: Path, stack: ExitStack, changes: dict[str, Any]
    ) -> None:
        both = Both(tmp_path, stack)
        both.lung.approve_all()
        both.open()
        answers = []
        for pool in (both.lung.task.pool.digest, bytes(range(32))):
            both.heart.changes = {**changes, "pool_digest": pool}
            with pytest.raises(PartyRefusedError) as refusal:
                both.set_up(both.heart)
            answers.append(refusal.value.cause)
        assert answers == [Reason.POOL, Reason.POOL]

    def test_a_run_that_was_approved_for_one_is_not_for_the_other(
        self, tmp_path: Path, stack: ExitStack
    ) -> None:
        both = Both(tmp_path, stack, approval="each run")
        both.approve()
        both.open()
        with pytest.raises(PartyRefusedError, match=Reason.APPROVAL):
            both.set_up(both.lung)
        for site in both.sites:
            with records_of(site) as records:
                for one in records.approvals():
                    records.approve(
                        one.subject, one.digest, coordinator=one.coordinator, by="M. Curie"
                    )
        # Terms, parties and form are the same: the coordinator is another.
        with pytest.raises(PartyRefusedError, match=Reason.APPROVAL):
            both.set_up(both.heart)
        assert both.set_up(both.lung).ask((0,)).labels.tolist() == [MARKER]
        with records_of(both.sites[0]) as records:
            runs = [one for one in records.approvals() if one.subject is Subject.RUN]
        assert len({one.digest for one in runs}) == 2
        assert runs[0].terms == runs[1].terms


class TestJoining:
    @pytest.fixture
    def site(self, tmp_path: Path) -> Site:
        return make_site(tmp_path / "site")

    def test_a_federation_that_was_made_anew_gets_another_name(self, site: Site) -> None:
        for name in ("lung-study-2", "lung-study-3"):
            site = site.add(invitation_of(SigningIdentity.generate().public, "North"))
            assert site.memberships[-1].name == name
        ports = [one.settings.node_port for one in site.memberships]
        assert ports == [9094, 9095, 9096]
        assert Site.open(site.folder).settings == site.settings

    def test_one_coordinator_is_joined_once(self, site: Site) -> None:
        coordinator = SigningIdentity.generate()
        site = site.add(invitation_of(coordinator.public, "North"))
        before = {path: path.read_bytes() for path in site.folder.rglob("*") if path.is_file()}
        with pytest.raises(MembershipError, match="once") as caught:
            site.add(invitation_of(coordinator.public, "South", federation="heart study"))
        assert caught.value.code == "PF-375"
        after = {path: path.read_bytes() for path in site.folder.rglob("*") if path.is_file()}
        assert after == before

    def test_one_coordinator_written_twice_by_hand_is_refused(self, site: Site) -> None:
        lung = site.membership().settings
        path = site.path(SETTINGS_FILE)
        again = path.read_text("utf-8").replace("[memberships.lung-study]", "[memberships.twin]")
        section = again[again.index("[memberships.twin]") :].replace(
            str(lung.node_port), str(lung.node_port + 1)
        )
        path.write_text(f"{path.read_text('utf-8')}\n{section}", encoding="utf-8")
        with pytest.raises(SiteError, match="coordinator_key"):
            Site.open(site.folder)

    @pytest.mark.parametrize("writes", range(4), ids=["CA", "node key", "secret", "settings"])
    def test_a_crash_while_it_is_made_leaves_no_membership_and_the_next_try_makes_it(
        self, site: Site, writes: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        invitation, key = invitation_of(SigningIdentity.generate().public, "North"), site.identity
        real, left = owner_files.write_file, [writes]

        def killed(path: Path, *pieces: bytes) -> None:
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            real(path, *pieces)

        with monkeypatch.context() as dying:
            dying.setattr(owner_files, "write_file", killed)
            with pytest.raises(KeyboardInterrupt):
                site.add(invitation)
        reopened = Site.open(site.folder)
        assert reopened.settings == site.settings
        made = reopened.add(invitation)
        joined = made.memberships[-1]
        assert joined.name == "lung-study-2"
        assert joined.fits(invitation)
        assert made.identity.public == key.public

    @pytest.mark.parametrize(
        ("federation", "name"),
        [
            ("Lung study", "lung-study"),
            ("  Étude (cœur) No. 2 ", "etude-cur-no-2"),
            ("...", "federation"),
            ("x" * 300, "x" * 35),
        ],
    )
    def test_a_name_is_short_and_plain(self, federation: str, name: str) -> None:
        assert free_name(federation, ()) == name
        taken = {name, f"{name}-2"}
        assert free_name(federation, taken) == f"{name}-3"
        assert is_membership_name(f"{name}-3")

    @pytest.mark.parametrize("name", ["", "..", "a/b", "A", "a--b", "-a", "a-", "a b", "x" * 41])
    def test_what_is_no_name_of_a_folder_of_ours(self, name: str) -> None:
        assert not is_membership_name(name)

    def test_ports_are_the_smallest_that_are_free(self) -> None:
        assert free_port(()) == 9094
        assert free_port({9094, 9095, 9097}) == 9096

    def test_settings_of_one_are_checked_where_they_are_made(self) -> None:
        with pytest.raises(SiteError, match="host:port"):
            MembershipSettings("lung study", "North", ":8443", "00" * 32)


class TestLeaving:
    @pytest.fixture
    def site(self, tmp_path: Path) -> Site:
        made = make_site(tmp_path / "site")
        return made.add(
            invitation_of(SigningIdentity.generate().public, "North", federation="heart study")
        )

    def test_one_goes_and_the_other_goes_on(self, site: Site) -> None:
        identity = site.identity.public
        site.leave(LUNG)
        lung, heart = site.memberships
        assert lung.has_left
        assert lung.path("ca.crt").exists()
        assert not heart.missing_keys
        assert (site.current, site.membership()) == ((heart,), heart)
        assert site.identity.public == identity
        with PartyService(site) as service:
            assert list(service.status.federations) == [HEART]
            with pytest.raises(MembershipError):
                service.federation(LUNG)

    def test_the_last_one_takes_the_identity_along(self, site: Site) -> None:
        for name in (LUNG, HEART):
            site.leave(name)
        assert not any(path.exists() for path in key_files(site))
        assert site.path("party.db").exists()
        with pytest.raises(SiteError, match="left"):
            site.leave(HEART)

    def test_a_hospital_that_left_all_comes_back_with_another_identity_and_its_journal(
        self, site: Site
    ) -> None:
        identity, database = site.identity.public, site.path("party.db").read_bytes()
        for name in (LUNG, HEART):
            site.leave(name)
        site = site.add(invitation_of(SigningIdentity.generate().public, "North"))
        assert site.identity.public != identity
        assert site.membership().name == "lung-study-2"
        assert site.path("party.db").read_bytes() == database

    def test_a_coordinator_that_was_left_is_joined_anew_in_its_place(self, tmp_path: Path) -> None:
        coordinator = SigningIdentity.generate()
        site = Site.create(tmp_path / "site", invitation_of(coordinator.public, "North"))
        site = site.add(invitation_of(SigningIdentity.generate().public, "North"))
        key = site.memberships[0].node_public_key
        site.leave(LUNG)
        site = site.add(invitation_of(coordinator.public, "North again"))
        assert [one.name for one in site.current] == [LUNG, "lung-study-2"]
        assert site.memberships[0].node_public_key != key
        assert site.memberships[0].settings.party == "North again"

    def test_what_was_interrupted_is_finished_by_the_next_try(
        self, site: Site, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        site.leave(LUNG)
        real, removed = Path.unlink, []

        def killed(path: Path, missing_ok: bool = False) -> None:
            if removed:
                raise KeyboardInterrupt
            removed.append(path.name)
            real(path, missing_ok)

        with monkeypatch.context() as dying:
            dying.setattr(Path, "unlink", killed)
            with pytest.raises(KeyboardInterrupt):
                site.leave(HEART)
        assert removed == [IDENTITY_KEY]
        with pytest.raises(SiteError, match="there"):  # half gone is no new beginning
            site.add(invitation_of(SigningIdentity.generate().public, "North"))
        site.leave(HEART)
        assert not any(path.exists() for path in key_files(site))
