"""`audit`: what repeated questions would tell about votes, before a model leaves."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import uuid4

import typer

from coordinator.cli.options import Given, takes
from coordinator.cli.terminal import LINE, single_threaded_kernels
from coordinator.errors import UsageError
from pate_fed.errors import InvalidAnswersError, RunDirectoryError
from pate_fed.nodes.command_line import EXIT_INPUT, show
from pate_fed.options import OPTIONS, fields_of, option_of
from pate_fed.regular_files import read_regular

if TYPE_CHECKING:
    from pate_fed.mechanisms import Mechanism
    from pate_fed.record import Audit
    from pate_fed.rule import Rule

LEAST_MODELS: Final = 16
MOST_MODELS: Final = 1024
"""Most shadow students of a command: a sixth of a second each."""


@takes(
    OPTIONS["mechanism"].but(
        choices=("threshold", "gnmax", "confident", "lnmax", "immutable"),
        help="Mechanism of the votes; immutable with --canary only.",
        usual="threshold",
        panel="",
    ),
    *("vote_threshold", "sigma1", "sigma2", "delta"),
)
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
    *,
    given: Given,
    answers: Annotated[
        int | None,
        typer.Option(
            help="Repetitions of the attacker. "
            "[default: as --epsilon affords, otherwise 10000; --run: its cap; --canary: 4; "
            "--membership: 200 labels]"
        ),
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Privacy budget that pays for the repetitions.")
    ] = None,
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
) -> None:
    """Attack votes by repeating a query, and show how much the answers tell.

    Give VOTES.npy with a mechanism, or --run, or both; --labels with released answers; --canary;
    --membership; or --tags.
    """
    single_threaded_kernels()
    from pate_fed.audit import audit_case  # noqa: PLC0415 - keeps --help fast
    from pate_fed.rule import Rule  # noqa: PLC0415 - the same

    if tags:
        others = (votes, run, labels, canary, membership, teachers, classes, epsilon, out)
        _compare(tags, is_alone=not any(one is not None for one in others))
        return
    _require_new(out, written=labels is None and canary is None)
    rule, delta = Rule(**fields_of("rule", given)), given["delta"]
    if canary is not None or membership is not None:
        if any(
            value is not None for value in (votes, run, labels, classes, epsilon)
        ) or None not in (canary, membership):
            raise UsageError(
                "--canary or --membership must come with a mechanism and --teachers only"
            )
        asked: dict[str, Any] = {"teachers": teachers, "queries": answers}
        asked = {name: value for name, value in asked.items() if value is not None}
        asked |= {"delta": delta, "seed": seed}
        if canary is not None:
            found, said = _canary(canary, rule, **asked)
        else:
            assert membership is not None
            found, said = _membership(membership, _made(rule), out=out, **asked)
        show(found, said)
        return
    if labels is not None:
        _require_answers(votes, run, teachers=teachers, classes=classes)
        assert teachers is not None
        assert classes is not None
        show(*_rebuilt(labels, _made(rule), teachers=teachers, classes=classes))
        return
    _require_subject(votes, run, teachers=teachers, classes=classes)
    means = {"answers": answers, "epsilon": epsilon, "delta": delta}
    if run is None:
        assert votes is not None
        leak = _of_votes(votes, rule, means, error=error, seed=seed)
    else:
        if rule != Rule(rule.mechanism) or epsilon is not None:
            raise UsageError("--run must come without noise options and --epsilon")
        leak = _of_run(run, votes, answers, error=error, seed=seed)
        if votes is None:
            _keep(run, leak)
    if out is not None:
        _write(out, leak)
    show(leak.as_json(), audit_case.render(leak).splitlines())


def _compare(tags: list[Path], *, is_alone: bool) -> None:
    """Compare the hospitals' tags, and say that no patient is with two teachers."""
    from pate_fed.audit.disjointness import require_disjoint  # noqa: PLC0415 - keeps --help fast

    if not is_alone:
        raise UsageError("--tags must come alone")
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
    show(found, text.splitlines())


def _require_answers(
    votes: Path | None, run: Path | None, *, teachers: int | None, classes: int | None
) -> None:
    if votes is not None or run is not None or teachers is None or classes is None:
        raise UsageError("--labels must come with --teachers and --classes only")


def _require_subject(
    votes: Path | None, run: Path | None, *, teachers: int | None, classes: int | None
) -> None:
    if teachers is not None or classes is not None:
        raise UsageError(
            "--teachers and --classes must come with --labels, --canary or --membership"
        )
    if votes is None and run is None:
        raise UsageError(
            "an audit must have VOTES.npy, --run, --labels, --canary, --membership or --tags",
        )


def _require_new(out: Path | None, *, written: bool) -> None:
    if out is None:
        return
    if not written:
        raise UsageError("--out must come with VOTES.npy, --run or --membership")
    if out.exists() or not out.absolute().parent.is_dir():
        raise UsageError("--out must be a new folder in one that is there", str(out))


def _keep(run: Path, found: Audit) -> None:
    """Put findings on made-up votes into the run and its report."""
    import pate_fed.lab.mechanisms  # noqa: F401, PLC0415 - a simulation's report
    from pate_fed.report import (  # noqa: PLC0415 - keeps --help fast
        keep_audit,
        read_run,
        render_report,
        replace_report,
    )

    try:
        keep_audit(run, found)
        replace_report(run, render_report(read_run(run)))
    except RunDirectoryError as wrong:
        LINE.fail(wrong, EXIT_INPUT)


def _write(out: Path, found: Audit) -> None:
    from pate_fed.report.plots import leak_plot, standalone  # noqa: PLC0415 - keeps --help fast

    out.mkdir(mode=0o700)
    (out / "audit.json").write_text(found.as_text(), "utf-8")
    picture = leak_plot(found.curve, summary="Error by answers")
    (out / "audit.svg").write_text(standalone(picture), "utf-8")


def _of_votes(
    path: Path, rule: Rule, means: Mapping[str, Any], *, error: float, seed: int
) -> Audit:
    import numpy as np  # noqa: PLC0415 - keeps --help fast

    from pate_fed.audit import Target, audit_case  # noqa: PLC0415 - the same
    from pate_fed.data.vote_file import load_vote_counts  # noqa: PLC0415 - the same

    mechanism = _made(rule)
    target = Target.of(mechanism.parameters())
    rows = audit_case.spread_rows(load_vote_counts(path))
    asks = means["answers"]
    if asks is None and means["epsilon"] is not None:
        paid = audit_case.asks_within(mechanism, epsilon=means["epsilon"], delta=means["delta"])
        asks = max(paid, 1)
    case = audit_case.AuditCase(rows, target, 10_000 if asks is None else asks, error=error)
    found = audit_case.find(case, np.random.default_rng(seed))
    return found.changed(
        ways=tuple(
            way.changed(epsilon=audit_case.price(mechanism, way.asks, delta=means["delta"]))
            for way in found.ways
        )
    )


def _of_run(
    path: Path, votes: Path | None, answers: int | None, *, error: float, seed: int
) -> Audit:
    from coordinator.runs.run_leak import leak_of_run  # noqa: PLC0415 - keeps --help fast
    from pate_fed.data.vote_file import load_vote_counts  # noqa: PLC0415 - the same

    counts = None if votes is None else load_vote_counts(votes)
    try:
        return leak_of_run(path, counts, asks=answers, error=error, seed=seed)
    except RunDirectoryError as wrong:
        LINE.fail(wrong, EXIT_INPUT)


def _rebuilt(
    path: Path, rule: Mechanism, *, teachers: int, classes: int
) -> tuple[dict[str, object], list[str]]:
    """Return the rebuilt votes as JSON, and in words."""
    from pate_fed.audit import Answers, Target, rebuild_votes  # noqa: PLC0415 - keeps --help fast
    from pate_fed.data.vote_file import load_outcomes  # noqa: PLC0415 - the same

    if classes < 2:
        raise InvalidAnswersError("--classes must be at least 2", classes)
    target = Target.of(rule.parameters())
    answers = Answers.of(load_outcomes(path), classes=classes)
    found = rebuild_votes(answers, target.noise, teachers=teachers, check=target.check)
    errors = [float(one) if math.isfinite(one) else None for one in found.standard_errors]
    answered = int(answers.labels.sum())
    lines = [f"{answers.asked:,} asked, {answered:,} answered. Votes for each class:"]
    for place, (count, error) in enumerate(zip(found.votes, errors, strict=True)):
        spread = "unknown" if error is None else f"{error:.1f}"
        lines.append(f"{place:4}  {count:8.1f} +- {spread}")
    settled = {"teachers": "the number of votes", "both": "the number of votes and the refusals"}
    lines.append(
        "Labels alone tell differences of counts only; the sum is settled by "
        f"{settled[found.settled_by]}."
    )
    table = {
        "asked": answers.asked,
        "answered": answered,
        "votes": found.votes.tolist(),
        "standard_errors": errors,
        "settled_by": found.settled_by,
    }
    return table, lines


def _canary(
    trials: int, rule: Rule, *, teachers: int = 21, queries: int = 4, delta: float, seed: int
) -> tuple[dict[str, object], list[str]]:
    """Return the bound on epsilon as JSON, and in words."""
    from pate_fed.audit.audit_case import price  # noqa: PLC0415 - the same
    from pate_fed.lab.canary import (  # noqa: PLC0415 - keeps --help fast
        MOST_ROWS,
        audit_mechanism,
    )

    if not 0 < queries * max(trials, 1) <= MOST_ROWS:
        raise UsageError(f"--canary times --answers must be 1 to {MOST_ROWS:,}", queries * trials)
    mechanism = _made(rule)
    # The claim made for an argmax that noise cannot change is the price of its noise.
    is_immutable = rule.mechanism == "immutable"
    claimed = _made(replace(rule, mechanism="lnmax")) if is_immutable else mechanism
    claim = price(claimed, queries, delta=delta)
    found = audit_mechanism(
        mechanism, teachers=teachers, queries=queries, trials=trials, delta=delta, seed=b"%d" % seed
    )
    verdict = "refuted" if found.refutes(claim) else "not refuted"
    said = (
        f"Epsilon is at least {found.epsilon:.3f} at delta {delta:g} (95 % sure); "
        f"claimed: {claim:.3f}. The claim is {verdict}.\n"
        f"Recognized: {100 * found.found:.2f} % of {found.trials:,} runs with the canary, "
        f"{100 * found.alarms:.2f} % of as many without.\n"
        "A bound below the claim proves only that this attack found no more."
    )
    table = {
        "mechanism": rule.mechanism,
        "claim": claim,
        "delta": delta,
        "bound": found.epsilon,
        "refuted": found.refutes(claim),
        "found": found.found,
        "alarms": found.alarms,
        "trials": found.trials,
    }
    return table, said.splitlines()


def _membership(
    models: int,
    rule: Mechanism,
    *,
    teachers: int = 20,
    queries: int = 200,
    delta: float,
    seed: int,
    out: Path | None,
) -> tuple[dict[str, object], list[str]]:
    """Return the attack's success as JSON, and in words."""
    import numpy as np  # noqa: PLC0415 - keeps --help fast

    from pate_fed.audit import audit_case  # noqa: PLC0415 - the same
    from pate_fed.data import DataSource, load_dataset  # noqa: PLC0415 - the same
    from pate_fed.lab.experiments.membership_inference import STUDENT, shadow_models  # noqa: PLC0415 - the same
    from pate_fed.lab.membership_inference import membership_audit  # noqa: PLC0415 - the same
    from pate_fed.lab.sacro_report import sacro_report  # noqa: PLC0415 - the same
    from pate_fed.version import __version__  # noqa: PLC0415 - the same

    if not LEAST_MODELS <= models <= MOST_MODELS:
        raise UsageError(f"--membership must be in {LEAST_MODELS}..{MOST_MODELS}", models)
    claim = audit_case.price(rule, queries, delta=delta)
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
    records = shadows.members.shape[1]
    claimed = f"epsilon {claim:.3f}" if math.isfinite(claim) else "no finite epsilon"
    lines = [
        f"{models:,} students, {records:,} records, each in half of them. "
        f"Claimed: {claimed} at delta {delta:g}.",
        f"Area under the curve: {audit.area:.3f} (0.5 is guessing).",
    ]
    points = []
    for one in audit.points:
        low, high = one.interval()
        alarms, hits = one.alarms / one.others, one.found / one.members
        allowed = one.most_found(claim, delta)
        lines.append(
            f"With {100 * alarms:.2f} % false alarms {100 * hits:.2f} % of the "
            f"members are found ({100 * low:.2f} to {100 * high:.2f} %); the claim allows "
            f"{100 * allowed:.2f} %."
        )
        points.append({
            "aimed": one.aimed,
            "alarms": alarms,
            "found": hits,
            "interval": [low, high],
            "allowed": allowed,
        })  # fmt: skip
    lines.append(
        f"Lower bound on epsilon: {audit.epsilon:.3f}. Trials of one student depend on each "
        "other: the intervals are too narrow."
    )
    table = {
        "models": models,
        "records": records,
        "claim": claim if math.isfinite(claim) else None,
        "delta": delta,
        "bound": audit.epsilon,
        "auc": audit.area,
        "points": points,
    }
    return table, lines


def _made(rule: Rule) -> Mechanism:
    """Return the mechanism that options describe."""
    import pate_fed.lab.mechanisms  # noqa: F401, PLC0415 - keeps --help fast
    from pate_fed.mechanisms import make_mechanism, spec_of  # noqa: PLC0415 - the same
    from pate_fed.rule import PARAMETERS  # noqa: PLC0415 - the same

    given = [name for name in PARAMETERS if getattr(rule, name) is not None]
    if extra := [name for name in given if name not in spec_of(rule.mechanism).parameters]:
        flags = ", ".join(map(option_of, extra))
        raise UsageError(f"--mechanism {rule.mechanism} must come without {flags}")
    return make_mechanism(rule, simulated=True)
