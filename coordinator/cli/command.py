"""All commands of `pate-fed`."""

from __future__ import annotations

from coordinator.cli.console import LINE
from coordinator.cli.cost import account, plan
from coordinator.cli.doctor import doctor
from coordinator.cli.federation import (
    approve,
    init,
    invite,
    members,
    renew,
    revoke,
    schema,
    upgrade,
)
from coordinator.cli.pools import pool_app
from coordinator.cli.results import report, transcript_app
from coordinator.cli.runs import export, pause, resume, run, serve, status, stop
from coordinator.cli.simulate import simulate

app, main = LINE.app, LINE.main

app.command()(simulate)
app.command()(account)
app.command()(plan)
app.command()(report)
for command in (
    *(init, invite, members, approve, revoke, renew, upgrade, schema),
    *(doctor, serve, run, status, pause, resume, stop, export),
):
    app.command()(command)
app.add_typer(pool_app, name="pool")
app.add_typer(transcript_app, name="transcript")
