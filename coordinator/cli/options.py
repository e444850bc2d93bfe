"""Options that `simulate`, `run`, `plan` and `account` share: name, help and panel, once each."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from coordinator.cli.console import RegistryChoice, choice, students, suites, table_students

FEDERATION: Final = "Federation"
MECHANISM: Final = "Questions and mechanism"
BUDGET: Final = "Privacy budget"
RUN: Final = "Run"

WAYS: Final = (
    "From votes to labels: no answer if teachers disagree (threshold), always answer (gnmax, "
    "lnmax), answer where they contradict a student (interactive-threshold), test for a stable "
    "winner (stable-*). "
)
"""Help of `--mechanism`, but for the command's own part."""

VoteThreshold = Annotated[
    float | None,
    typer.Option(
        help="Smallest noisy top count that gets an answer, in votes.", rich_help_panel=MECHANISM
    ),
]
Sigma1 = Annotated[
    float | None,
    typer.Option(
        help="stable-*: noise of the test, in changes of one unit; confident, interactive "
        "(simulations only): of their check, in votes.",
        rich_help_panel=MECHANISM,
    ),
]
Sigma2 = Annotated[
    float | None,
    typer.Option(
        help="Standard deviation of each count's noise, in votes.", rich_help_panel=MECHANISM
    ),
]
Confidence = Annotated[
    float | None,
    typer.Option(
        help="interactive-*: from this probability on, the student keeps its own label. "
        "[default: 0.8]",
        rich_help_panel=MECHANISM,
    ),
]
TestDelta = Annotated[
    float | None,
    typer.Option(
        help="stable-*: probability that one test answers although no winner is stable.",
        rich_help_panel=MECHANISM,
    ),
]
Noise = Annotated[
    str,
    typer.Option(
        click_type=choice("coordinator", "parties"),
        help="Who adds the noise; with parties the coordinator sees noisy counts only.",
        rich_help_panel=MECHANISM,
    ),
]
Colluders = Annotated[
    int | None,
    typer.Option(
        help="With --noise parties: hospitals whose noise an attacker may know. [default: 1]",
        rich_help_panel=MECHANISM,
    ),
]
Suite = Annotated[
    str | None,
    typer.Option(
        click_type=RegistryChoice(suites),
        help="Encryption between hospitals. [default: the first, which resists a quantum "
        "computer, too]",
        rich_help_panel=FEDERATION,
    ),
]
Unit = Annotated[
    str | None,
    typer.Option(
        click_type=choice("record", "party"),
        help="Protected unit: a patient's records, or a whole hospital's.",
        rich_help_panel=BUDGET,
    ),
]
Epsilon = Annotated[float, typer.Option(help="Privacy budget of the run.", rich_help_panel=BUDGET)]
Delta = Annotated[
    float, typer.Option(help="Probability that epsilon may fail.", rich_help_panel=BUDGET)
]
PartyEpsilons = Annotated[
    str | None,
    typer.Option(
        metavar="E,E,...",
        help="Budget of each hospital, in order: party-1, party-2, ...; or sorted by name.",
        rich_help_panel=BUDGET,
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(
        metavar="W,W,...",
        help="Votes of each teacher, one number per hospital. [default: 1]",
        rich_help_panel=BUDGET,
    ),
]
Student = Annotated[
    str,
    typer.Option(
        click_type=RegistryChoice(students),
        help="Kind of student. From images of 8 x 8 pixels or more alone learn: self-training, "
        "vat, fixmatch, gan, co-teaching, pate-plus and pate-plus-plus.",
        rich_help_panel=RUN,
    ),
]
TableStudent = Annotated[
    str,
    typer.Option(
        click_type=RegistryChoice(table_students),
        help="Kind of student; of a table, as public inputs are.",
        rich_help_panel=RUN,
    ),
]

Prevalence = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBERS",
        help="Table: share of each class among patients, in order of the classes. "
        "[default: simulate: that of the public pool; run: the share of the labels]",
        rich_help_panel=RUN,
    ),
]
Purpose = Annotated[
    str,
    typer.Option(
        metavar="TEXT",
        help="Reason for the run, one line; approvers and the report's first page show it.",
        rich_help_panel=RUN,
    ),
]
Patience = Annotated[
    float,
    typer.Option(help="Hours to wait for silent hospitals and for approvals.", rich_help_panel=RUN),
]
Detach = Annotated[
    bool,
    typer.Option("--detach", help="Queue the run without following it.", rich_help_panel=RUN),
]
