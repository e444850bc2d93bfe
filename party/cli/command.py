"""All commands of `pate-party`."""

from __future__ import annotations

from party.cli.audit_log import audit_app
from party.cli.decisions import approve, reject
from party.cli.evaluation import evaluation
from party.cli.machine import doctor, notify_app, service_app
from party.cli.membership import join, leave, renew
from party.cli.node import budget, pause, resume, start
from party.cli.page import page, sent
from party.cli.peers import peers_app
from party.cli.policy import policy_app
from party.cli.records import data_app
from party.cli.results import results
from party.cli.setup import schema, setup
from party.cli.status import status
from party.cli.tally import tally
from party.cli.terminal import LINE
from pate_fed.nodes.completion import add_completion

app, main = LINE.app, LINE.main

app.command(shows=False)(setup)
app.command()(join)
app.command()(status)
app.add_typer(data_app, name="data")
app.add_typer(peers_app, name="peers")
app.command()(tally)
app.command()(doctor)
app.command(shows=False)(start)
app.command()(approve)
app.command()(reject)
app.command()(pause)
app.command()(resume)
app.command()(budget)
app.command()(results)
app.command()(sent)
app.command(shows=False)(page)
app.command()(evaluation)
app.add_typer(audit_app, name="audit")
app.add_typer(service_app, name="service")
app.add_typer(notify_app, name="notify")
app.add_typer(policy_app, name="policy")
app.command(shows=False)(schema)
app.command()(renew)
app.command()(leave)
add_completion(app, "pate-party")
