"""`audit`: what repeated questions would tell about votes, before a model leaves."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from coordinator.cli.console import LINE, choice, single_threaded_kernels
from coordinator.cli.options import Delta, Sigma1, Sigma2, VoteThreshold
from coordinator.errors import UsageError
from pate_fed.errors import InvalidAnswersError, RunDirectoryError
from pate_fed.nodes import Format
from pate_fed.nodes.command_line import EXIT_INPUT, print_json


def audit(  # noqa: PLR0917 - one argument per option
    votes: Annotated[
        Path | None, typer.Argument(metavar="[VOTES.npy]", help="Vote counts per query.")
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(metavar="RUN_DIR", help="A finished run: take its mechanism and caps."),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.npy",
            help="Answers to one repeated query, -1 for no answer: rebuild its votes.",
        ),
    ] = None,
    canary: Annotated[
        int | None,
        typer.Option(
            metavar="TRIALS",
            help="Tell two worlds apart that differ in one vote, by their labels: a lower bound on "
            "the mechanism's epsilon.",
        ),
    ] = None,
    teachers: Annotated[
        int | None, typer.Option(help="--labels, --canary: votes on a query.")
    ] = None,
    classes: Annotated[int | None, typer.Option(help="--labels: number of classes.")] = None,
    mechanism: Annotated[
        str,
        typer.Option(
            click_type=choice("confident", "gnmax", "lnmax", "immutable"),
            help="Mechanism of the votes; immutable with --canary only.",
        ),
    ] = "confident",
    vote_threshold: VoteThreshold = None,
    sigma1: Sigma1 = None,
    sigma2: Sigma2 = None,
    answers: Annotated[
        int | None,
        typer.Option(
            help="Repetitions of the attacker whom nothing stops. "
            "[default: as --epsilon affords, otherwise 10000; --run: its cap; --canary: 4]"
        ),
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Privacy budget that pays for the repetitions.")
    ] = None,
    delta: Delta = 1e-5,
    near_queries: Annotated[
        int, typer.Option(help="Close queries that hospitals allow.", min=0)
    ] = 10,
    error: Annotated[float, typer.Option(help="Error that counts as a leak, in (0, 1).")] = 0.1,
    seed: Annotated[int, typer.Option(help="Seed of the simulated answers.", min=0)] = 0,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="New folder for audit.json and its plot, audit.svg."),
    ] = None,
    output_format: Annotated[Format, typer.Option("--format", help="Output format.")] = Format.TEXT,
) -> None:
    """Attack votes by repeating a query, and show how much the answers tell.

    Give VOTES.npy with a mechanism, or --run, or both; --labels with released answers; or --canary.
    """
    single_threaded_kernels()
    from pate_fed.audit import findings  # noqa: PLC0415 - keeps --help fast

    _require_new(out, plotted=labels is None and canary is None)
    options = {"vote_threshold": vote_threshold, "sigma1": sigma1, "sigma2": sigma2}
    if canary is not None:
        if any(value is not None for value in (votes, run, labels, classes, epsilon)):
            raise UsageError("--canary must come with a mechanism and --teachers only", "others")
        found = _canary(
            canary,
            mechanism,
            options,
            teachers=21 if teachers is None else teachers,
            queries=4 if answers is None else answers,
            delta=delta,
            seed=seed,
        )
        _show(found, _verdict(found), output_format)
        return
    if labels is not None:
        if votes is not None or run is not None or teachers is None or classes is None:
            raise UsageError("--labels must come with --teachers and --classes only", "others")
        found = _rebuilt(labels, teachers=teachers, classes=classes, mechanism=mechanism, **options)
        _show(found, _said(found), output_format)
        return
    if teachers is not None or classes is not None:
        raise UsageError("--teachers and --classes must come with --labels or --canary", "none")
    if votes is None and run is None:
        raise UsageError("an audit must have VOTES.npy, --run, --labels or --canary", "none")
    means = {"answers": answers, "epsilon": epsilon, "delta": delta}
    if run is None:
        assert votes is not None
        found = _of_votes(
            votes, mechanism, options, means, near=near_queries, error=error, seed=seed
        )
    else:
        if any(value is not None for value in (*options.values(), epsilon)):
            raise UsageError("--run must come without noise options and --epsilon", "one of them")
        found = _of_run(run, votes, answers, near=near_queries, error=error, seed=seed)
    if out is not None:
        _write(out, found)
    _show(found, findings.render(found), output_format)


def _require_new(out: Path | None, *, plotted: bool) -> None:
    if out is None:
        return
    if not plotted:
        raise UsageError("--out must come with VOTES.npy or --run", "another audit")
    if out.exists() or not out.absolute().parent.is_dir():
        raise UsageError("--out must be a new folder in one that is there", str(out))


def _write(out: Path, found: dict[str, Any]) -> None:
    from pate_fed.report.plots import results_plot, standalone  # noqa: PLC0415 - keeps --help fast

    out.mkdir(mode=0o700)
    (out / "audit.json").write_text(json.dumps(found, indent=2) + "\n", "utf-8")
    points = [
        ("error: share of votes in a wrong class", "mean of rows, and their range", place, errors)
        for place, errors in ((math.log10(one["asks"]), one["errors"]) for one in found["curve"])
    ]
    picture = results_plot(
        points, axis="answers to one question, as a power of ten", summary="Error by answers"
    )
    (out / "audit.svg").write_text(standalone(picture), "utf-8")


def _show(found: dict[str, Any], text: str, output_format: Format) -> None:
    if output_format is Format.JSON:
        print_json(found)
    else:
        print(text)


def _of_votes(
    path: Path,
    name: str,
    options: dict[str, float | None],
    means: dict[str, Any],
    *,
    near: int,
    error: float,
    seed: int,
) -> dict[str, Any]:
    from pate_fed.audit import Target, findings  # noqa: PLC0415 - keeps --help fast
    from pate_fed.data.vote_file import load_vote_counts  # noqa: PLC0415 - the same
    from pate_fed.mechanisms import make_mechanism  # noqa: PLC0415 - the same

    mechanism = make_mechanism(name, _options(name, options), simulated=True)
    target = Target.of(mechanism.parameters())
    rows = findings.spread_rows(load_vote_counts(path))
    asks = means["answers"]
    if asks is None and means["epsilon"] is not None:
        paid = findings.asks_within(mechanism, epsilon=means["epsilon"], delta=means["delta"])
        asks = max(paid, 1)
    case = findings.AuditCase(
        rows, target, 10_000 if asks is None else asks, neighbors=near, error=error
    )
    found = findings.find(case, np.random.default_rng(seed))
    for way in found["ways"]:
        way["epsilon"] = findings.price(mechanism, way["asks"], delta=means["delta"])
    return found


def _of_run(
    path: Path, votes: Path | None, answers: int | None, *, near: int, error: float, seed: int
) -> dict[str, Any]:
    from coordinator.runs import transcripts  # noqa: PLC0415 - keeps --help fast
    from pate_fed.audit import findings  # noqa: PLC0415 - the same
    from pate_fed.audit.run_case import facts_of_run  # noqa: PLC0415 - the same
    from pate_fed.data.vote_file import load_vote_counts  # noqa: PLC0415 - the same
    from pate_fed.report import read_run  # noqa: PLC0415 - the same

    try:
        record = read_run(path)
        queries = record.metrics["queries"]
        if queries["from_store"] < queries["asked"]:
            transcripts.check_transcript(path)
        labels = tuple(label for _, label in record.labels)
        facts = facts_of_run(privacy=record.privacy, metrics=record.metrics, labels=labels)
    except RunDirectoryError as wrong:
        LINE.fail(wrong, EXIT_INPUT)
    rows = facts.rows() if votes is None else findings.spread_rows(load_vote_counts(votes))
    asks = facts.asks if answers is None else answers
    case = findings.AuditCase(rows, facts.target, asks, neighbors=near, error=error)
    found = findings.find(case, np.random.default_rng(seed))
    if facts.epsilon is not None and answers is None:
        found["ways"][-1]["epsilon"] = facts.epsilon
    return found


def _rebuilt(
    path: Path, *, teachers: int, classes: int, mechanism: str, **options: float | None
) -> dict[str, Any]:
    from pate_fed.audit import Answers, Target, rebuild_votes  # noqa: PLC0415 - keeps --help fast
    from pate_fed.data.vote_file import load_outcomes  # noqa: PLC0415 - the same
    from pate_fed.mechanisms import make_mechanism  # noqa: PLC0415 - the same

    if classes < 2:
        raise InvalidAnswersError("--classes must be at least 2", classes)
    rule = make_mechanism(mechanism, _options(mechanism, options), simulated=True)
    target = Target.of(rule.parameters())
    answers = Answers.of(load_outcomes(path), classes=classes)
    found = rebuild_votes(answers, target.noise, teachers=teachers, check=target.check)
    errors = [float(one) if np.isfinite(one) else None for one in found.standard_errors]
    return {
        "asked": answers.asked,
        "answered": int(answers.labels.sum()),
        "votes": found.votes.tolist(),
        "standard_errors": errors,
        "settled_by": found.settled_by,
    }


def _canary(
    trials: int,
    name: str,
    options: dict[str, float | None],
    *,
    teachers: int,
    queries: int,
    delta: float,
    seed: int,
) -> dict[str, Any]:
    from pate_fed.audit.canary import (  # noqa: PLC0415 - keeps --help fast
        MOST_ROWS,
        audit_mechanism,
    )
    from pate_fed.audit.findings import price  # noqa: PLC0415 - the same
    from pate_fed.mechanisms import make_mechanism  # noqa: PLC0415 - the same

    if not 0 < queries * max(trials, 1) <= MOST_ROWS:
        raise UsageError(f"--canary times --answers must be at most {MOST_ROWS:,}", "more, or none")
    rule = make_mechanism(name, _options(name, options), simulated=True)
    # The claim made for an argmax that noise cannot change is the price of its noise.
    claimed = make_mechanism("lnmax", _options(name, options), simulated=True)
    claim = price(claimed if name == "immutable" else rule, queries, delta=delta)
    found = audit_mechanism(
        rule, teachers=teachers, queries=queries, trials=trials, delta=delta, seed=b"%d" % seed
    )
    return {
        "mechanism": name,
        "claim": claim,
        "delta": delta,
        "bound": found.epsilon,
        "refuted": found.refutes(claim),
        "found": found.found,
        "alarms": found.alarms,
        "trials": found.trials,
    }


def _verdict(found: dict[str, Any]) -> str:
    verdict = "The claim is refuted." if found["refuted"] else "The claim is not refuted."
    return (
        f"Epsilon is at least {found['bound']:.3f} at delta {found['delta']:g} (95 % sure); "
        f"claimed: {found['claim']:.3f}. {verdict}\n"
        f"Recognized: {100 * found['found']:.2f} % of {found['trials']:,} runs with the canary, "
        f"{100 * found['alarms']:.2f} % of as many without.\n"
        "A bound below the claim proves only that this attack found no more."
    )


def _said(found: dict[str, Any]) -> str:
    lines = [f"{found['asked']:,} asked, {found['answered']:,} answered. Votes for each class:"]
    for place, (count, error) in enumerate(
        zip(found["votes"], found["standard_errors"], strict=True)
    ):
        spread = "unknown" if error is None else f"{error:.1f}"
        lines.append(f"{place:4}  {count:8.1f} +- {spread}")
    lines.append(
        "Labels alone tell differences of counts only; the sum is settled by "
        + {"teachers": "the number of votes.", "both": "the number of votes and the refusals."}[
            found["settled_by"]
        ]
    )
    return "\n".join(lines)


def _options(name: str, given: dict[str, float | None]) -> Any:
    from pate_fed.mechanisms import Options, spec_of  # noqa: PLC0415 - keeps --help fast

    taken = set(spec_of(name).parameters)
    extra = [one for one, value in given.items() if value is not None and one not in taken]
    if extra:
        flags = ", ".join("--" + one.replace("_", "-") for one in extra)
        raise UsageError(f"--mechanism {name} must come without {flags}", "it")
    return Options(
        vote_threshold=given["vote_threshold"], sigma1=given["sigma1"], sigma2=given["sigma2"]
    )
