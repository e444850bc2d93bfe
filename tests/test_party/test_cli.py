"""The hospital's command line, as far as there is one."""

from __future__ import annotations

import pytest

from party import cli
from pate_fed import __version__


def test_version_is_the_distributions(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["pate-party", "--version"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 0
    assert capsys.readouterr().out == f"pate-party {__version__}\n"


def test_tracebacks_never_show_local_variables() -> None:
    assert cli.app.pretty_exceptions_enable is False


def test_no_arguments_show_the_help(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["pate-party"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 0
    assert "--version" in capsys.readouterr().out
