"""The unit of a hospital's node: what it may do is said, and all else is not."""

from __future__ import annotations

import configparser
import os
import shutil
import stat
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from party.cli.systemd import ServiceUnit
from party.errors import UnitError

UNIT = ServiceUnit(Path("/usr/bin/true"), Path("/srv/pate party"), "pate")


def lines_of(unit: ServiceUnit) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in unit.text.splitlines():
        name, separator, value = line.partition("=")
        if separator and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


class TestText:
    def test_the_node_is_held_to_what_it_needs(self) -> None:
        lines = lines_of(UNIT)
        for name, value in {
            "NoNewPrivileges": "yes",
            "ProtectSystem": "strict",
            "ReadWritePaths": '"/srv/pate party"',
            "PrivateTmp": "yes",
            "RestrictAddressFamilies": "AF_INET AF_INET6 AF_UNIX",
            "LimitCORE": "0",
            "TimeoutStopSec": "90",
            "Restart": "always",
            "RestartSec": "15",
            "StartLimitIntervalSec": "0",
            "CapabilityBoundingSet": "",
            "UMask": "0077",
            "User": "pate",
            "ExecStart": '"/usr/bin/true" -P -m party.cli start --site "/srv/pate party"',
        }.items():
            assert lines[name] == [value], name
        assert lines["SystemCallFilter"] == ["@system-service", "~@privileged"]
        assert "MemoryDenyWriteExecute" not in lines

    def test_the_start_limit_stands_where_systemd_reads_it(self) -> None:
        parser = configparser.RawConfigParser(strict=False)
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        parser.read_string(UNIT.text)
        assert parser["Unit"]["StartLimitIntervalSec"] == "0"
        assert parser.sections() == ["Unit", "Service", "Install"]

    def test_a_path_is_one_word_and_no_directive(self) -> None:
        unit = ServiceUnit(Path("/opt/b$x/p"), Path('/srv/50% "of" \\us'), "pate")
        lines = lines_of(unit)
        site = '"/srv/50%% \\"of\\" \\\\us"'
        assert lines["ReadWritePaths"] == [site]
        assert lines["ExecStart"] == [f'"/opt/b$$x/p" -P -m party.cli start --site {site}']

    @pytest.mark.parametrize(
        ("python", "site", "user"),
        [
            pytest.param("pate-party", "/srv/x", "pate", id="a relative Python"),
            pytest.param("/bin/x", "site", "pate", id="a relative folder"),
            pytest.param("/bin/x", "/srv/x\nExecStartPre=/bin/evil", "pate", id="a line break"),
            pytest.param("/bin/x", "/srv/x", "pa te", id="a user with a blank"),
            pytest.param("/bin/x", "/srv/x", "root", id="root"),
            pytest.param("/bin/x", "/srv/x", "nobody", id="nobody"),
            pytest.param("/bin/x", "/srv/x", "x\nUser=root", id="a second user"),
        ],
    )
    def test_what_could_say_more_is_refused(self, python: str, site: str, user: str) -> None:
        with pytest.raises(UnitError):
            ServiceUnit(Path(python), Path(site), user)

    def test_systemd_understands_it(self, tmp_path: Path) -> None:
        if shutil.which("systemd-analyze") is None:
            pytest.skip("systemd-analyze is not on this machine")
        path = tmp_path / "pate-party.service"
        path.write_text(UNIT.text, encoding="utf-8")
        verified = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", str(path)],
            capture_output=True,
            text=True,
            env={**os.environ, "SYSTEMD_LOG_TARGET": "console"},
            timeout=300,
            check=False,
        )
        said = verified.stdout + verified.stderr
        if "Failed to" in said and path.name not in said:
            pytest.skip("systemd-analyze cannot run here")
        assert not [line for line in said.splitlines() if path.name in line], said


class TestUser:
    """Who runs it is there, and has the folder; accounts of this machine are made up."""

    @pytest.fixture
    def unit(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServiceUnit:
        numbers = {"pate": 1000, "other": 4242, "toor": 0}

        def getpwnam(name: str) -> SimpleNamespace:
            return SimpleNamespace(pw_uid=numbers[name])

        monkeypatch.setattr("pwd.getpwnam", getpwnam)
        site = tmp_path / "site"
        site.mkdir()
        monkeypatch.setattr("party.cli.systemd.owner_of", lambda _: 1000)
        return ServiceUnit(Path("/usr/bin/true"), site, "pate")

    def test_the_folders_owner_may_run_it(self, unit: ServiceUnit) -> None:
        unit.require_user()

    @pytest.mark.parametrize(
        ("user", "words"),
        [
            pytest.param("nosuchuser", "must be on this machine", id="nobody's name"),
            pytest.param("other", "chown", id="another's folder"),
            pytest.param("toor", "must not run as root", id="root by another name"),
        ],
    )
    def test_who_could_not_run_it_is_refused(
        self, unit: ServiceUnit, user: str, words: str
    ) -> None:
        with pytest.raises(UnitError, match=words):
            replace(unit, user=user).require_user()


class TestInstall:
    def test_it_is_written_whole_and_again(self, tmp_path: Path) -> None:
        path = tmp_path / "pate-party.service"
        UNIT.install(path)
        UNIT.install(path)
        assert path.read_text("utf-8") == UNIT.text
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
        assert [one.name for one in tmp_path.iterdir()] == [path.name]

    def test_anothers_unit_is_left_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "pate-party.service"
        path.write_text("[Unit]\n", encoding="utf-8")
        with pytest.raises(UnitError):
            UNIT.install(path)
        assert path.read_text("utf-8") == "[Unit]\n"

    def test_a_folder_that_is_not_there_is_said(self, tmp_path: Path) -> None:
        with pytest.raises(UnitError, match="--print"):
            UNIT.install(tmp_path / "none" / "x.service")
