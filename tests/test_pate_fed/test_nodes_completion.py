"""Completion in a shell: of commands and options, before anything slow is loaded."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import CompletionItem, get_completion_class

import coordinator.cli
import party.cli
from tests.support.command import Command, pate_fed

__all__ = ["pate_fed"]

MAIN = {"pate-fed": coordinator.cli.main, "pate-party": party.cli.main}
SHELLS = ("bash", "zsh", "fish")


def completed(
    shell: str, typed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """What a shell is told at Tab after a typed line."""
    program, *words = typed.split(" ")
    monkeypatch.setattr("sys.argv", [program])
    variable = f"_{program.replace('-', '_').upper()}_COMPLETE"
    monkeypatch.setenv(variable, f"complete_{shell}")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", typed)
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        MAIN[program]()
    assert end.value.code == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    return shown.out


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("typed", "there", "absent"),
    [
        pytest.param("pate-fed re", "revoke", "invite", id="command"),
        pytest.param("pate-fed users r", "reset", "revoke", id="command of a group"),
        pytest.param("pate-fed simulate --ep", "--epsilon", "--seed", id="option"),
        pytest.param("pate-fed simulate --student pr", "propagation", "network", id="value"),
        pytest.param("pate-party app", "approve", "reject", id="command of a hospital"),
        pytest.param("pate-party completion z", "zsh", "bash", id="shell"),
        pytest.param("pate-party start --s", "--site", "--help", id="option of the node"),
    ],
)
def test_a_shell_is_told_what_begins_so(
    *,
    shell: str,
    typed: str,
    there: str,
    absent: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = completed(shell, typed, monkeypatch, capsys)
    assert there in told
    assert absent not in told


def test_fish_is_told_one_line_for_each_candidate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = completed("fish", "pate-fed run --", monkeypatch, capsys).splitlines()
    assert len(told) > 20
    assert all(line.startswith("--") for line in told)
    found = get_completion_class("fish")
    assert found is not None
    item = CompletionItem("--a", help="first\n--b\x1b[2Jsecond")
    line = found.format_completion(object.__new__(found), item)
    assert line.split("\t")[0] == "--a"
    assert line.isprintable() or line.count("\t") == 1
    assert "\n" not in line
    assert "\x1b" not in line


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_is_printed_for_each_shell(pate_fed: Command, shell: str) -> None:
    ended = pate_fed("completion", shell)
    assert (ended.code, ended.err) == (0, "")
    assert f"_PATE_FED_COMPLETE=complete_{shell}" in ended.out


@pytest.mark.parametrize("shell", ["tcsh", "", "BASH"])
def test_other_shells_are_refused(pate_fed: Command, shell: str) -> None:
    ended = pate_fed("completion", shell)
    assert (ended.code, ended.error_code, ended.out) == (2, "PF-402", "")


def test_nothing_is_completed_after_a_word_that_no_command_has(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert completed("bash", "pate-fed revoke --nonsense", monkeypatch, capsys).strip() == ""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize("program", MAIN)
def test_bash_completes_by_the_script(program: str, tmp_path: Path) -> None:
    package = {"pate-fed": "coordinator", "pate-party": "party"}[program]
    script = tmp_path / program
    script.write_text(f"#!{sys.executable}\nfrom {package}.cli import main\nmain()\n")
    script.chmod(0o700)
    asked = (
        f'PATH="{tmp_path}:$PATH"; eval "$({program} completion bash)"; '
        f"complete -p {program} >&2; COMP_WORDS=({program} comp); COMP_CWORD=1; "
        f'_{program.replace("-", "_")}_completion {program}; echo "${{COMPREPLY[@]}}"'
    )
    ended = subprocess.run(["bash", "-c", asked], capture_output=True, check=True)
    assert ended.stdout == b"completion\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "variable"),
    [("coordinator", "_PATE_FED_COMPLETE"), ("party", "_PATE_PARTY_COMPLETE")],
)
def test_a_completion_loads_nothing_slow(package: str, variable: str) -> None:
    program = (
        "import atexit, os, sys; "
        f"os.environ.update({variable}='complete_bash', COMP_WORDS='pate st', COMP_CWORD='1'); "
        "slow = {'flwr', 'httpx', 'pydantic', 'sklearn', 'sqlalchemy', 'torch', 'rich.markdown'}; "
        f"atexit.register(lambda: print(sorted(slow & set(sys.modules)))); import {package}.cli; "
        f"{package}.cli.main()"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    *told, loaded = ended.stdout.decode().splitlines()
    assert "status" in told
    assert loaded == "[]"
