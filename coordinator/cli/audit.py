"""`audit`: what repeated questions would tell about votes, before a model leaves."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import uuid4

import typer

from coordinator.cli.console import LINE, choice, single_threaded_kernels
from coordinator.cli.options import Delta, Sigma1, Sigma2, VoteThreshold
from coordinator.errors import UsageError
from pate_fed.errors import InvalidAnswersError, RunDirectoryError
from pate_fed.nodes import Format
from pate_fed.nodes.command_line import EXIT_INPUT, print_json
from pate_fed.regular_files import read_regular

if TYPE_CHECKING:
    from pate_fed.mechanisms import Mechanism

LEAST_MODELS: Final = 16
MOST_MODELS: Final = 1024
"""Most shadow students of a command: a sixth of a second each."""


def audit(  # noqa: PLR0917 - one argument per option
    votes: Annotated[
        Path | None, typer.Argument(metavar="[VOTES.npy]", help="Vote counts per query.")
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN_DIR",
            help="A finished run: take its mechanism and caps. Without VOTES.npy its report shows "
            "the findings.",
        ),
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
    membership: Annotated[
        int | None,
        typer.Option(
            metavar="MODELS",
            help="Train students of so many federations, each with half of the bundled digits, and "
            "tell by a student whether a record was there.",
        ),
    ] = None,
    tags: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="A hospital's file of `pate-party data tags`, once for each hospital: no patient "
            "may be with two teachers.",
        ),
    ] = None,
    teachers: Annotated[
        int | None,
        typer.Option(help="--labels, --canary: votes on a query; --membership: teachers."),
    ] = None,
    classes: Annotated[int | None, typer.Option(help="--labels: number of classes.")] = None,
    mechanism: Annotated[
        str,
        typer.Option(
            click_type=choice("threshold", "gnmax", "confident", "lnmax", "immutable"),
            help="Mechanism of the votes; immutable with --canary only.",
        ),
    ] = "threshold",
    vote_threshold: VoteThreshold = None,
    sigma1: Sigma1 = None,
    sigma2: Sigma2 = None,
    answers: Annotated[
        int | None,
        typer.Option(
            help="Repetitions of the attacker whom nothing stops. "
            "[default: as --epsilon affords, otherwise 10000; --run: its cap; --canary: 4; "
            "--membership: 200 labels]"
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
        typer.Option(
            metavar="DIR",
            help="New folder for audit.json and its plot, audit.svg; --membership: for a report in "
            "SACRO-ML's form.",
        ),
    ] = None,
    output_format: Annotated[Format, typer.Option("--format", help="Output format.")] = Format.TEXT,
) -> None:
    """Attack votes by repeating a query, and show how much the answers tell.

    Give VOTES.npy with a mechanism, or --run, or both; --labels with released answers; --canary;
    --membership; or --tags.
    """
    single_threaded_kernels()
    from pate_fed.audit import findings  # noqa: PLC0415 - keeps --help fast

    if tags:
        others = (votes, run, labels, canary, membership, teachers, classes, epsilon, out)
        _compare(tags, output_format, is_alone=not any(one is not None for one in others))
        return
    _require_new(out, written=labels is None and canary is None)
    options = {"vote_threshold": vote_threshold, "sigma1": sigma1, "sigma2": sigma2}
    if canary is not None or membership is not None:
        if any(
            value is not None for value in (votes, run, labels, classes, epsilon)
        ) or None not in (canary, membership):
            raise UsageError(
                "--canary or --membership must come with a mechanism and --teachers only", "others"
            )
        given: dict[str, Any] = {"teachers": teachers, "queries": answers}
        given = {name: value for name, value in given.items() if value is not None}
        given |= {"delta": delta, "seed": seed}
        if canary is not None:
            found = _canary(canary, mechanism, options, **given)
            _show(found, _verdict(found), output_format)
        else:
            assert membership is not None
            found = _membership(membership, _rule(mechanism, options), out=out, **given)
            _show(found, _members_said(found), output_format)
        return
    if labels is not None:
        _require_answers(votes, run, teachers=teachers, classes=classes)
        assert teachers is not None
        assert classes is not None
        found = _rebuilt(labels, teachers=teachers, classes=classes, mechanism=mechanism, **options)
        _show(found, _said(found), output_format)
        return
    _require_subject(votes, run, teachers=teachers, classes=classes)
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
        if votes is None:
            _keep(run, found)
    if out is not None:
        _write(out, found)
    _show(found, findings.render(found), output_format)


def _compare(tags: list[Path], output_format: Format, *, is_alone: bool) -> None:
    """Compare the hospitals' tags, and say that no patient is with two teachers."""
    from pate_fed.audit.disjointness import require_disjoint  # noqa: PLC0415 - keeps --help fast

    if not is_alone:
        raise UsageError("--tags must come alone", "other options")
    documents = {}
    for path in tags:
        try:
            documents[path.name] = json.loads(read_regular(path))
        except (OSError, ValueError, RecursionError) as error:
            raise InvalidAnswersError(
                f"{path.name} must be a readable file of tags", type(error).__name__
            ) from error
    if len(documents) != len(tags):
        raise UsageError("--tags must name files of different names", len(tags))
    found = require_disjoint(documents)
    text = (
        f"{found['hospitals']} hospital(s), {found['teachers']} teacher(s), {found['patients']:,} "
        "patients: none is with two teachers of a task, by their ids.\n"
        "A patient under two ids is not found."
    )
    _show(found, text, output_format)


def _require_answers(
    votes: Path | None, run: Path | None, *, teachers: int | None, classes: int | None
) -> None:
    if votes is not None or run is not None or teachers is None or classes is None:
        raise UsageError("--labels must come with --teachers and --classes only", "others")


def _require_subject(
    votes: Path | None, run: Path | None, *, teachers: int | None, classes: int | None
) -> None:
    if teachers is not None or classes is not None:
        raise UsageError(
            "--teachers and --classes must come with --labels, --canary or --membership", "none"
        )
    if votes is None and run is None:
        raise UsageError(
            "an audit must have VOTES.npy, --run, --labels, --canary, --membership or --tags",
            "none",
        )


def _require_new(out: Path | None, *, written: bool) -> None:
    if out is None:
        return
    if not written:
        raise UsageError("--out must come with VOTES.npy, --run or --membership", "another audit")
    if out.exists() or not out.absolute().parent.is_dir():
        raise UsageError("--out must be a new folder in one that is there", str(out))


def _keep(run: Path, found: dict[str, Any]) -> None:
    """Put findings on made-up votes into the run and its report."""
    import pate_fed.lab.mechanisms  # noqa: F401, PLC0415 - a simulation's report
    from pate_fed.report import (  # noqa: PLC0415 - keeps --help fast
        keep_audit,
        read_run,
        render_report,
        replace_report,
    )

    try:
        keep_audit(run, _versioned(found))
        replace_report(run, render_report(read_run(run)))
    except RunDirectoryError as wrong:
        LINE.fail(wrong, EXIT_INPUT)


def _write(out: Path, found: dict[str, Any]) -> None:
    from pate_fed.report.plots import leak_plot, standalone  # noqa: PLC0415 - keeps --help fast

    out.mkdir(mode=0o700)
    (out / "audit.json").write_text(json.dumps(_versioned(found), indent=2) + "\n", "utf-8")
    picture = leak_plot(found["curve"], summary="Error by answers")
    (out / "audit.svg").write_text(standalone(picture), "utf-8")


def _versioned(found: dict[str, Any]) -> dict[str, Any]:
    return {"schema_version": 1, **found}


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
    import numpy as np  # noqa: PLC0415 - keeps --help fast

    from pate_fed.audit import Target, findings  # noqa: PLC0415 - the same
    from pate_fed.data.vote_file import load_vote_counts  # noqa: PLC0415 - the same

    mechanism = _rule(name, options)
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
    from coordinator.runs.vote_leak import leak_of_run  # noqa: PLC0415 - keeps --help fast
    from pate_fed.data.vote_file import load_vote_counts  # noqa: PLC0415 - the same

    counts = None if votes is None else load_vote_counts(votes)
    try:
        return leak_of_run(path, counts, asks=answers, near=near, error=error, seed=seed)
    except RunDirectoryError as wrong:
        LINE.fail(wrong, EXIT_INPUT)


def _rebuilt(
    path: Path, *, teachers: int, classes: int, mechanism: str, **options: float | None
) -> dict[str, Any]:
    from pate_fed.audit import Answers, Target, rebuild_votes  # noqa: PLC0415 - keeps --help fast
    from pate_fed.data.vote_file import load_outcomes  # noqa: PLC0415 - the same

    if classes < 2:
        raise InvalidAnswersError("--classes must be at least 2", classes)
    target = Target.of(_rule(mechanism, options).parameters())
    answers = Answers.of(load_outcomes(path), classes=classes)
    found = rebuild_votes(answers, target.noise, teachers=teachers, check=target.check)
    errors = [float(one) if math.isfinite(one) else None for one in found.standard_errors]
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
    teachers: int = 21,
    queries: int = 4,
    delta: float,
    seed: int,
) -> dict[str, Any]:
    from pate_fed.audit.findings import price  # noqa: PLC0415 - the same
    from pate_fed.lab.canary import (  # noqa: PLC0415 - keeps --help fast
        MOST_ROWS,
        audit_mechanism,
    )

    if not 0 < queries * max(trials, 1) <= MOST_ROWS:
        raise UsageError(f"--canary times --answers must be at most {MOST_ROWS:,}", "more, or none")
    rule = _rule(name, options)
    # The claim made for an argmax that noise cannot change is the price of its noise.
    claimed = _rule("lnmax", options) if name == "immutable" else rule
    claim = price(claimed, queries, delta=delta)
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


def _membership(
    models: int,
    rule: Mechanism,
    *,
    teachers: int = 20,
    queries: int = 200,
    delta: float,
    seed: int,
    out: Path | None,
) -> dict[str, Any]:
    import numpy as np  # noqa: PLC0415 - keeps --help fast

    from pate_fed import __version__  # noqa: PLC0415 - the same
    from pate_fed.audit import findings  # noqa: PLC0415 - the same
    from pate_fed.data import DataSource, load_dataset  # noqa: PLC0415 - the same
    from pate_fed.lab.experiments.membership import STUDENT, shadow_models  # noqa: PLC0415 - the same
    from pate_fed.lab.membership import membership_audit  # noqa: PLC0415 - the same
    from pate_fed.lab.sacro_report import sacro_report  # noqa: PLC0415 - the same

    if not LEAST_MODELS <= models <= MOST_MODELS:
        raise UsageError(f"--membership must be in {LEAST_MODELS}..{MOST_MODELS}", models)
    claim = findings.price(rule, queries, delta=delta)
    data = load_dataset(DataSource("digits"), rng=np.random.default_rng(seed))
    recipe = {"teachers": teachers, "queries": queries}
    shadows = shadow_models(data, rule, models=models, seed=seed, **recipe)
    audit = membership_audit(shadows, delta=delta)
    if out is not None:
        report = sacro_report(
            audit,
            log_id=str(uuid4()),
            log_time=datetime.now(UTC).strftime("%d/%m/%Y %H:%M:%S"),
            made_by=f"pate_fed {__version__}",
            models=models,
            target_model=STUDENT,
            parameters={**recipe, "mechanism": rule.parameters()},
            claim=claim,
            delta=delta,
        )
        out.mkdir(mode=0o700)
        (out / "report.json").write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    return {
        "models": models,
        "records": shadows.members.shape[1],
        "claim": claim if math.isfinite(claim) else None,
        "delta": delta,
        "bound": audit.epsilon,
        "auc": audit.area,
        "points": [
            {
                "aimed": one.aimed,
                "alarms": one.alarms / one.others,
                "found": one.found / one.members,
                "interval": list(one.interval()),
                "allowed": one.most_found(claim, delta),
            }
            for one in audit.points
        ],
    }


def _members_said(found: dict[str, Any]) -> str:
    claim = "no finite epsilon" if found["claim"] is None else f"epsilon {found['claim']:.3f}"
    lines = [
        f"{found['models']:,} students, {found['records']:,} records, each in half of them. "
        f"Claimed: {claim} at delta {found['delta']:g}.",
        f"Area under the curve: {found['auc']:.3f} (0.5 is guessing).",
    ]
    for one in found["points"]:
        low, high = one["interval"]
        lines.append(
            f"With {100 * one['alarms']:.2f} % false alarms {100 * one['found']:.2f} % of the "
            f"members are found ({100 * low:.2f} to {100 * high:.2f} %); the claim allows "
            f"{100 * one['allowed']:.2f} %."
        )
    lines.append(
        f"Lower bound on epsilon: {found['bound']:.3f}. Trials of one student depend on each "
        "other: the intervals are too narrow."
    )
    return "\n".join(lines)


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


def _rule(name: str, given: dict[str, float | None]) -> Mechanism:
    """Return the mechanism that options describe."""
    import pate_fed.lab.mechanisms  # noqa: F401, PLC0415 - keeps --help fast
    from pate_fed.mechanisms import Options, make_mechanism, spec_of  # noqa: PLC0415 - the same

    taken = set(spec_of(name).parameters)
    extra = [one for one, value in given.items() if value is not None and one not in taken]
    if extra:
        flags = ", ".join("--" + one.replace("_", "-") for one in extra)
        raise UsageError(f"--mechanism {name} must come without {flags}", "it")
    options = Options(
        vote_threshold=given["vote_threshold"], sigma1=given["sigma1"], sigma2=given["sigma2"]
    )
    return make_mechanism(name, options, simulated=True)
