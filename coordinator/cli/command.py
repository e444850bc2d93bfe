"""All commands of `pate-fed`."""

from __future__ import annotations

import typer

from coordinator.cli.audit import audit
from coordinator.cli.audit_log import audit_log_app
from coordinator.cli.cost import account, plan
from coordinator.cli.demo import demo
from coordinator.cli.evaluate import evaluate
from coordinator.cli.federation import (
    approve,
    init,
    invite,
    members,
    reinstate,
    renew,
    revoke,
    schema,
    suspend,
    upgrade,
)
from coordinator.cli.people import budget, console, tokens_app, users_app
from coordinator.cli.pools import pool_app
from coordinator.cli.reproduce import reproduce
from coordinator.cli.results import export_student, predict, report, student, transcript_app
from coordinator.cli.runs import export, pause, resume, run, serve, status, stop
from coordinator.cli.simulate import simulate
from coordinator.cli.tally import tally_app
from coordinator.cli.terminal import DEFAULT_HOME, LINE, HomeOption
from pate_fed.nodes import exit_code, lines_of_checks, table_of_checks
from pate_fed.nodes.command_line import Commands, show
from pate_fed.nodes.completion import add_completion
from pate_fed.nodes.notices import show_test

app, main = LINE.app, LINE.main


def doctor(home: HomeOption = DEFAULT_HOME) -> None:
    """Check the service for problems, running or stopped; changes nothing.

    Exit codes: 0 good, 1 warnings only, 4 failures.
    """
    from coordinator.doctor import CoordinatorProbes, examine  # noqa: PLC0415 - keeps --help fast

    found = list(examine(home.absolute(), CoordinatorProbes()))
    show(table_of_checks(found), lines_of_checks(found))
    raise typer.Exit(exit_code(found))


notify_app = Commands("Messages to the operator, by mail or to a webhook.")


@notify_app.command("test")
def try_now(home: HomeOption = DEFAULT_HOME) -> None:
    """Send a test message to each target of `[notify]`, and say what happened."""
    from coordinator.federation.home import SETTINGS_FILE, FederationHome  # noqa: PLC0415 - keeps --help fast

    opened = FederationHome.of_settings(home.absolute())
    settings = opened.settings
    show_test(settings.notify, opened.folder, node=settings.name, file=SETTINGS_FILE)


for command in (
    *(demo, simulate, account, plan, audit, report, student, predict, export_student, reproduce),
    *(init, invite, members, approve, suspend, reinstate, revoke, renew, upgrade, schema),
    *(doctor, serve, console, budget, run, status, pause, resume, stop, export, evaluate),
):
    app.command(shows=command not in (schema, serve, console))(command)
app.add_typer(audit_log_app, name="audit-log")
app.add_typer(notify_app, name="notify")
app.add_typer(pool_app, name="pool")
app.add_typer(tally_app, name="tally")
app.add_typer(transcript_app, name="transcript")
app.add_typer(tokens_app, name="tokens")
app.add_typer(users_app, name="users")
add_completion(app, "pate-fed")
