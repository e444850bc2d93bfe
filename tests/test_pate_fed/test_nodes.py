"""What both kinds of node share: files of their owner's, and how a command line says a fault."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pate_fed.errors import InvalidParameterError
from pate_fed.nodes import error_line, one_line, place_of, wants_json, write_file


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


class TestFiles:
    def test_a_file_is_its_owners_alone(self, tmp_path: Path) -> None:
        write_file(tmp_path / "key", b"one ", b"two")
        assert (tmp_path / "key").read_bytes() == b"one two"
        assert mode_of(tmp_path / "key") == 0o600

    @pytest.mark.parametrize("mask", [0o000, 0o077])
    def test_a_mode_holds_whatever_the_umask(self, tmp_path: Path, mask: int) -> None:
        before = os.umask(mask)
        try:
            write_file(tmp_path / "unit", b"text", mode=0o644)
        finally:
            os.umask(before)
        assert mode_of(tmp_path / "unit") == 0o644

    def test_what_a_crash_left_open_to_all_is_closed(self, tmp_path: Path) -> None:
        left = tmp_path / ".key.partial"
        left.write_bytes(b"longer than what comes")
        left.chmod(0o644)
        write_file(tmp_path / "key", b"short")
        assert (tmp_path / "key").read_bytes() == b"short"
        assert mode_of(tmp_path / "key") == 0o600

    def test_a_link_in_the_way_is_not_followed(self, tmp_path: Path) -> None:
        (tmp_path / "others").write_bytes(b"theirs")
        (tmp_path / ".key.partial").symlink_to(tmp_path / "others")
        with pytest.raises(OSError, match="symbolic links"):
            write_file(tmp_path / "key", b"ours")
        assert (tmp_path / "others").read_bytes() == b"theirs"

    def test_files_of_one_stem_do_not_meet(self, tmp_path: Path) -> None:
        """A crash left the key half written; then the certificate is written."""
        (tmp_path / ".server.key.partial").write_bytes(b"secret")
        write_file(tmp_path / "server.crt", b"public")
        assert (tmp_path / "server.crt").read_bytes() == b"public"
        assert (tmp_path / ".server.key.partial").read_bytes() == b"secret"

    def test_what_was_there_stays_where_nothing_can_be_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_file(tmp_path / "settings", b"old")

        def full(descriptor: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            write_file(tmp_path / "settings", b"new")
        assert [path.name for path in tmp_path.iterdir()] == ["settings"]
        assert (tmp_path / "settings").read_bytes() == b"old"

    def test_it_is_on_disk_before_it_has_its_name(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        steps: list[str] = []
        fsync, replace = os.fsync, Path.replace

        def noted_sync(descriptor: int) -> None:
            is_folder = os.fstat(descriptor).st_mode & 0o40000
            steps.append("folder" if is_folder else "file")
            fsync(descriptor)

        def noted_replace(path: Path, target: Path) -> Path:
            steps.append("named")
            return replace(path, target)

        monkeypatch.setattr(os, "fsync", noted_sync)
        monkeypatch.setattr(Path, "replace", noted_replace)
        write_file(tmp_path / "key", b"content")
        assert steps == ["file", "named", "folder"]


class TestConsole:
    @pytest.mark.parametrize(
        ("arguments", "wanted"),
        [
            pytest.param(["run", "--format", "json"], True, id="two words"),
            pytest.param(["--format=json", "--nonsense"], True, id="one word, others wrong"),
            pytest.param(["--format", "text", "json"], False, id="a name that is json"),
            pytest.param(["--format"], False, id="cut short"),
            pytest.param([], False, id="nothing"),
        ],
    )
    def test_json_is_wanted_by_the_raw_arguments(self, arguments: list[str], wanted: bool) -> None:
        assert wants_json(arguments) is wanted

    def test_a_fault_is_one_line_that_steers_no_terminal(self) -> None:
        error = InvalidParameterError("a name\nbe", "\x1b[2J  another")
        said = error_line(error, program="pate-fed", code=error.code, as_json=False)
        assert said == "pate-fed: PF-101: a name be, got [2J another"

    def test_a_fault_in_json_is_what_was_said(self) -> None:
        error = InvalidParameterError("a name\nbe", "\x1b[2J")
        said = error_line(error, program="pate-fed", code=error.code, as_json=True)
        assert "\n" not in said
        assert json.loads(said) == {"code": "PF-101", "must": error.must, "got": error.got}

    def test_one_line_has_no_blank_twice(self) -> None:
        assert one_line(" a\t\r\n b\x00c ") == "a b c"

    def test_the_place_of_a_fault_is_named_and_its_text_is_not(self) -> None:
        with pytest.raises(ValueError, match="secret") as caught:
            raise ValueError("a secret")
        place = place_of(caught.value)
        assert place.startswith("a ValueError at test_nodes.py:")
        assert "secret" not in place
