"""A tally's folder, its card and the coordinator's pin: made once, by words that were compared."""

from __future__ import annotations

import io
import json
import os
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from coordinator.certificates import days_left, is_pair, make_pinned_certificate, names_of
from coordinator.errors import (
    CertificateError,
    DatabaseError,
    HomeError,
    ServiceError,
    TallySetupError,
)
from coordinator.federation.home import FOR_HOSPITALS, TALLY_FOR_HOSPITALS, FederationHome
from coordinator.tally.cards import PinnedEnd, TallyCard, TallyInvite
from coordinator.tally.tally_folder import TallyFolder, TallySettings
from pate_fed.nodes import read_settings
from protocols.fingerprint_words import spoken
from tests.support.command import Command, pate_fed

__all__ = ["pate_fed"]

NOW = datetime(2026, 11, 21, tzinfo=UTC)
SETTINGS = TallySettings("tally.example.org:8448")


@pytest.fixture
def home(pate_fed: Command, tmp_path: Path) -> FederationHome:
    folder = tmp_path / "federation"
    named = ("--name", "lung study", "--address", "coordinator.example.org:8443")
    assert pate_fed("init", *named, "--home", folder).code == 0
    return FederationHome.open(folder)


@pytest.fixture
def folder(home: FederationHome, tmp_path: Path) -> TallyFolder:
    invite = home.invite_tally(now=NOW)
    return TallyFolder.create(tmp_path / "tally", SETTINGS, invite, now=NOW)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


class TestCommands:
    def test_both_ends_pin_each_other_after_comparing_words(
        self, pate_fed: Command, home: FederationHome, tmp_path: Path
    ) -> None:
        invite, card = tmp_path / "invite.json", tmp_path / "card.json"
        json_, at = ("--format", "json"), ("--home", home.folder)
        asked = pate_fed("tally", "invite", "--out", invite, *at, *json_).json
        place = (
            "--name",
            "Notary",
            "--address",
            "192.0.2.7:9000",
            "--folder",
            tmp_path / "t",
            "--out",
            card,
        )
        words = ("--compared", asked["words"].upper().replace(" ", ","))
        made = pate_fed("tally", "init", invite, *place, *words, *json_).json
        tally = TallyFolder.open(tmp_path / "t")
        assert made["words"] == spoken(tally.card.fingerprint)
        assert tally.settings.port == 9000
        assert tally.coordinator == home.invite_tally(now=NOW)
        assert home.tally is None
        pate_fed("tally", "accept", card, "--compared", made["words"], *at)
        assert home.tally == tally.card
        assert home.tally.identity == tally.identity.public
        told = pate_fed("tally", "words", "--folder", tmp_path / "t", *json_).json
        assert told["hospitals"] == spoken(home.tally.identity.fingerprint)
        assert (told["name"], told["coordinator"]) == ("Notary", made["words"])

    @pytest.mark.parametrize("heard", [None, "abandon " * 12, ""])
    def test_without_the_words_nothing_is_made_or_pinned(
        self,
        pate_fed: Command,
        home: FederationHome,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        heard: str | None,
    ) -> None:
        monkeypatch.setattr("sys.stdin", io.StringIO())
        invite, card = tmp_path / "invite.json", tmp_path / "card.json"
        invite.write_text(home.invite_tally(now=NOW).to_json())
        given = () if heard is None else ("--compared", heard)
        place = (
            "--name",
            "Notary",
            "--address",
            "h.org:1",
            "--folder",
            tmp_path / "t",
            "--out",
            card,
        )
        ended = pate_fed("tally", "init", invite, *place, *given)
        assert ended.code == 5
        assert "PF-450" in ended.err
        assert not (tmp_path / "t").exists()
        assert not card.exists()
        made = TallyFolder.create(tmp_path / "t", SETTINGS, TallyInvite.read(invite), now=NOW)
        card.write_text(made.card.to_json())
        ended = pate_fed("tally", "accept", card, "--home", home.folder, *given)
        assert ended.code == 5
        assert "PF-450" in ended.err
        assert home.tally is None

    @pytest.mark.parametrize(
        "option",
        [
            pytest.param(("--address", "nowhere"), id="no port"),
            pytest.param(("--address", "a b:1"), id="no host"),
            pytest.param(("--name", ""), id="no name"),
            pytest.param(("--host", "a b"), id="a host that is none"),
            pytest.param(("--port", "70000"), id="no port that is one"),
            pytest.param(("--out", "nowhere/card.json"), id="no folder of the card"),
            pytest.param(("--folder", "."), id="a folder that is there"),
        ],
    )
    def test_options_are_checked_before_a_person_is_asked(
        self,
        pate_fed: Command,
        home: FederationHome,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        option: tuple[str, str],
    ) -> None:
        monkeypatch.chdir(tmp_path)
        Path("invite.json").write_text(home.invite_tally(now=NOW).to_json())
        given = {"--address": "h.org:1", "--name": "T", "--folder": "t", "--out": "card.json"}
        typed = [part for each in {**given, **dict([option])}.items() for part in each]
        ended = pate_fed("tally", "init", "invite.json", *typed)
        assert ended.code in (2, 5)
        assert "12 words" not in ended.err
        assert not Path("t").exists()

    def test_a_card_that_cannot_be_pinned_is_refused_before_a_person_is_asked(
        self, pate_fed: Command, home: FederationHome, folder: TallyFolder, tmp_path: Path
    ) -> None:
        path = tmp_path / "card.json"
        table = {**json.loads(folder.card.to_json()), "federation": "other"}
        path.write_text(json.dumps(table))
        ended = pate_fed("tally", "accept", path, "--home", home.folder)
        assert (ended.code, "12 words" in ended.err) == (5, False)

    def test_words_of_something_else_are_named(
        self, pate_fed: Command, home: FederationHome, folder: TallyFolder, tmp_path: Path
    ) -> None:
        path, card = tmp_path / "card.json", folder.card
        path.write_text(card.to_json())
        for typed, whose in (
            (card.identity.fingerprint, TALLY_FOR_HOSPITALS),
            (home.fingerprint, FOR_HOSPITALS),
            (home.invite_tally(now=NOW).fingerprint, TallyInvite.whose),
        ):
            words = ("--compared", spoken(typed), "--home", home.folder)
            ended = pate_fed("tally", "accept", path, *words)
            assert ended.code == 5
            assert f"{TallyCard.whose}, got {whose}" in ended.err
        assert home.tally is None

    def test_a_card_that_is_in_the_way_is_kept_and_no_tally_made(
        self, pate_fed: Command, home: FederationHome, tmp_path: Path
    ) -> None:
        invite, card = tmp_path / "invite.json", tmp_path / "card.json"
        made = home.invite_tally(now=NOW)
        invite.write_text(made.to_json())
        card.write_text("mine")
        place = ("--address", "h.org:1", "--name", "T", "--folder", tmp_path / "t", "--out", card)
        words = ("--compared", spoken(made.fingerprint))
        assert pate_fed("tally", "init", invite, *place, *words).code == 2
        assert (card.read_text(), (tmp_path / "t").exists()) == ("mine", False)

    def test_a_second_invitation_is_the_same_and_leaves_the_first_file(
        self, pate_fed: Command, home: FederationHome, tmp_path: Path
    ) -> None:
        out = tmp_path / "invite.json"
        for code in (0, 2):
            named = ("--out", out, "--home", home.folder)
            assert pate_fed("tally", "invite", *named).code == code
        assert TallyInvite.read(out) == home.invite_tally(now=datetime.now(UTC))


class TestCards:
    def test_a_file_reads_back(self, folder: TallyFolder, tmp_path: Path) -> None:
        path = tmp_path / "file"
        for one in (folder.card, folder.coordinator):
            path.write_text(one.to_json())
            assert type(one).read(path) == one

    def test_any_changed_key_has_other_words(self, folder: TallyFolder) -> None:
        card, invite = folder.card, folder.coordinator
        other = make_pinned_certificate("x", now=NOW).certificate.decode()
        same = TallyInvite(card.federation, card.identity_key, card.certificate)
        found = {
            one.fingerprint
            for one in (
                *(card, invite, same),  # each end has words of its own
                TallyCard(card.federation, invite.identity_key, card.certificate, card.address),
                TallyCard(card.federation, card.identity_key, other, card.address),
            )
        }
        assert len(found) == 5

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("schema_version", 2),
            ("federation", ""),
            ("federation", 3),
            ("identity_key", "00"),
            ("identity_key", "no"),
            ("certificate", "no certificate"),
            ("certificate", None),
            ("address", "nowhere"),
            ("address", 7),
            ("more", "x"),
            ("address", ...),
        ],
    )
    def test_a_spoiled_file_is_refused(
        self, folder: TallyFolder, tmp_path: Path, name: str, value: object
    ) -> None:
        table = {**json.loads(folder.card.to_json()), name: value}
        path = tmp_path / "card"
        path.write_text(json.dumps({key: one for key, one in table.items() if one is not ...}))
        with pytest.raises(TallySetupError):
            TallyCard.read(path)

    @pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"[" * 9000, b" " * 17000])
    @pytest.mark.parametrize("kind", [TallyCard, TallyInvite])
    def test_what_is_no_file_of_its_kind_is_refused(
        self, tmp_path: Path, content: bytes, kind: type[PinnedEnd]
    ) -> None:
        path = tmp_path / "card"
        path.write_bytes(content)
        with pytest.raises(TallySetupError):
            kind.read(path)

    def test_one_ends_file_is_not_the_others(self, folder: TallyFolder, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.write_text(folder.card.to_json())
        with pytest.raises(TallySetupError):
            TallyInvite.read(path)


class TestPinning:
    def test_a_federation_keeps_its_tally(self, home: FederationHome, folder: TallyFolder) -> None:
        home.accept_tally(folder.card)
        home.accept_tally(folder.card)
        other = TallyFolder.create(
            folder.folder.parent / "other", SETTINGS, folder.coordinator, now=NOW
        )
        with pytest.raises(TallySetupError):
            home.accept_tally(other.card)
        assert home.tally == folder.card

    def test_a_card_of_another_federation_is_refused(
        self, home: FederationHome, folder: TallyFolder
    ) -> None:
        card = folder.card
        other = TallyCard("other", card.identity_key, card.certificate, card.address)
        with pytest.raises(TallySetupError):
            home.accept_tally(other)
        assert home.tally is None

    def test_the_key_for_the_tally_is_a_secret_of_the_federation(
        self, home: FederationHome
    ) -> None:
        home.require_secrets()  # a federation without a tally has none
        invite = home.invite_tally(now=NOW)
        assert is_pair(home.tally_key.certificate, home.tally_key.private_key)
        assert home.tally_key.certificate == invite.certificate.encode()
        path = home.path("tally-client.key")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        path.chmod(0o640)
        with pytest.raises(HomeError):
            home.require_secrets()


class TestFolder:
    def test_what_is_opened_is_what_was_made(self, folder: TallyFolder) -> None:
        opened = TallyFolder.open(folder.folder)
        assert opened.settings == SETTINGS
        assert opened.card == folder.card
        opened.database().close()

    def test_only_its_owner_may_read_it(self, folder: TallyFolder) -> None:
        assert stat.S_IMODE(folder.folder.stat().st_mode) == 0o700
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.folder.iterdir()}
        assert set(modes.values()) == {0o600}
        assert {"identity.key", "tally.key", "tally.db"} < set(modes)

    @pytest.mark.parametrize("name", ["identity.key", "tally.key"])
    def test_a_secret_that_others_may_read_is_not_used(
        self, folder: TallyFolder, name: str
    ) -> None:
        folder.path(name).chmod(0o640)
        with pytest.raises(TallySetupError):
            _ = folder.identity, folder.key

    def test_it_never_overwrites(self, folder: TallyFolder) -> None:
        before = files_of(folder.folder)
        with pytest.raises(TallySetupError):
            TallyFolder.create(folder.folder, SETTINGS, folder.coordinator, now=NOW)
        assert files_of(folder.folder) == before

    def test_a_database_that_is_gone_is_not_made_anew(self, folder: TallyFolder) -> None:
        folder.path("tally.db").unlink()
        with pytest.raises(DatabaseError):
            folder.database()
        assert not folder.path("tally.db").exists()

    def test_one_that_cannot_be_made_leaves_nothing(
        self, folder: TallyFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object, **__: object) -> None:
            raise DatabaseError("the database must be writable")

        monkeypatch.setattr("coordinator.tally.tally_folder.TallyDatabase", fail)
        with pytest.raises(DatabaseError):
            TallyFolder.create(tmp_path / "new", SETTINGS, folder.coordinator, now=NOW)
        assert not (tmp_path / "new").exists()

    def test_one_service_has_it(self, folder: TallyFolder) -> None:
        held = folder.lock()
        assert folder.is_served
        with pytest.raises(ServiceError):
            folder.lock()
        os.close(held)
        assert not folder.is_served

    @pytest.mark.parametrize(
        "text",
        [
            'address = "h"',
            'address = "h:1"\nhost = "a b"',
            'address = "h:1"\nport = 70000',
            'address = "h:1"\naudit_days = -1',
            'address = "h:1"\nlimit = 3',
            "",
        ],
    )
    def test_settings_that_cannot_be_are_refused(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "tally.toml").write_text(f"schema_version = 1\n{text}\n")
        with pytest.raises(TallySetupError):
            read_settings(
                tmp_path / "tally.toml",
                TallySettings,
                version=1,
                advice="",
                fault=TallySetupError,
            )


class TestCertificates:
    @pytest.mark.parametrize("host", ["tally.example.org", "192.0.2.7", "2001:db8::1"])
    def test_a_pinned_certificate_is_for_its_host(self, host: str) -> None:
        made = make_pinned_certificate("lung study tally", host=host, now=NOW)
        assert names_of(made.certificate) == {host}
        assert is_pair(made.certificate, made.private_key)
        assert days_left(made.certificate, now=NOW + timedelta(days=1)) > 3000

    def test_a_clients_has_no_host(self) -> None:
        assert names_of(make_pinned_certificate("x", now=NOW).certificate) == frozenset()

    def test_a_host_that_is_none_is_refused(self) -> None:
        with pytest.raises(CertificateError):
            make_pinned_certificate("x", host="a b", now=NOW)
