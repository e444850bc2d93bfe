"""Numbers of README and documentation: each comes from a command; `docs/numbers.json` keeps it.

`python -m benchmarks.numbers` runs the cheap commands, and renews that file and all pages. Named
sources run, too, however long they take; `--pages` runs nothing, and writes the file's numbers into
the pages. A test runs the cheap commands and compares.

A page names its numbers by a phrase: `epsilon {epsilon} (label-level bound)`. Blanks and line ends,
in a comment, too, are alike. A phrase that no page holds is a fault: the page was reworded.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "docs" / "numbers.json"

Run = Callable[[list[str], Path], str]
"""Runs `pate-fed` with these words in a folder; returns its standard output."""

_NUMBER: Final = r"(\d[\d,]*(?:\.\d+)?)"
_BLANK: Final = r"(?:\s|#)+"
_EPSILON: Final = rf"Privacy cost epsilon {_NUMBER}"
_STUDENT: Final = rf"student {_NUMBER} %"


@dataclass(frozen=True)
class Source:
    """A command, and the numbers that pages take from what it prints.

    Attributes:
        command: Arguments of `pate-fed`; DATA is the folder of data sets.
        finds: For each number a pattern with one group, where blanks and line ends are alike; or
            its place in `privacy.json`, rounded up to three decimals.
        shows: Page and phrase, with the numbers' names in braces.
        is_cheap: Whether it takes less than half a minute, and no data set that is not bundled.
        example: Page whose first Python example writes the files that the command reads.
        percents: Numbers that are printed as shares, and shown in percent with one decimal.
    """

    command: str
    finds: Mapping[str, str]
    shows: tuple[tuple[str, str], ...]
    is_cheap: bool = True
    example: str = ""
    percents: frozenset[str] = field(default=frozenset())


_README: Final = "README.md"
_FIRST_RUN: Final = "docs/tutorial/first-run.md"
_OWN: Final = "docs/how-to/bring-your-data.md"
_RESULTS: Final = "docs/explanation/results.md"
_NOT_PROMISED: Final = "docs/explanation/what-differential-privacy-does-not-promise.md"

_SUMMARY: Final = """\
Queries {answered} answered, {refused} without an answer
Accuracy student {student} % (95 %: {low} to {high} %), balanced {balanced} %, AUC
{auc}; always guessing the most common class {constant} %
compare labels {labels} %, average hospital {mean} %, best one {best} %, noisy
gradients {baseline} %, all records, no privacy {pooled} %
Privacy cost epsilon {epsilon} at delta 1e-5, public view;"""


def _leak(sigma: int) -> str:
    asked = f"GNMax, mnist, 10,000 answers, sigma {sigma}; mnist, likelihood"
    return rf"{asked}; epsilon [\d.]+: error of 10,000 answers {_NUMBER}"


SOURCES: Final[Mapping[str, Source]] = {
    "first-run": Source(
        "simulate --seed 7",
        {
            "answered": rf"Queries {_NUMBER} answered",
            "refused": rf"answered, {_NUMBER} without",
            "student": _STUDENT,
            "low": rf"\(95 %: {_NUMBER} to",
            "high": rf"\(95 %: [\d.]+ to {_NUMBER} %",
            "balanced": rf"balanced {_NUMBER} %",
            "auc": rf"AUC {_NUMBER};",
            "constant": rf"most common class {_NUMBER} %",
            "labels": rf"compare labels {_NUMBER} %",
            "best": rf"best one {_NUMBER} %",
            "mean": rf"average hospital {_NUMBER} %",
            "baseline": rf"noisy gradients {_NUMBER} %",
            "pooled": rf"no privacy {_NUMBER} %",
            "epsilon": _EPSILON,
            "removal": rf"no vote cast epsilon {_NUMBER}",
        },
        (
            (
                _README,
                "The student is right on {student} % of the test images; on average a hospital "
                "alone reaches {mean} %, the best one {best} %.",
            ),
            (_README, "label {answered} of 30 images"),
            (_FIRST_RUN, "no vote cast epsilon {removal}, same delta"),
            (_FIRST_RUN, "Queries {answered} answered, {refused} without an answer"),
            (_FIRST_RUN, "For {answered} images one digit got"),
            (_FIRST_RUN, "For {refused} images no digit did"),
            (_FIRST_RUN, _SUMMARY.partition("Accuracy")[2].partition("Privacy")[0].strip()),
            (_FIRST_RUN, "Privacy cost epsilon {epsilon} at delta 1e-5, public view;"),
            (_FIRST_RUN, "as large (e^{epsilon}, rounded up)"),
        ),
    ),
    "gnmax": Source(
        "simulate --mechanism gnmax --seed 7",
        {
            "answered": rf"Queries {_NUMBER} answered",
            "asked": rf"labeled \d+ of {_NUMBER} public",
            "student": _STUDENT,
            "epsilon": _EPSILON,
        },
        (
            (
                _FIRST_RUN,
                "Answers every query: {answered} of {asked}, student {student} %, epsilon "
                "{epsilon}.",
            ),
        ),
    ),
    "plan": Source(
        "plan --data digits",
        {"queries": rf"Ask {_NUMBER} queries", "answers": rf"expect {_NUMBER} answers"},
        ((_FIRST_RUN, "pays for {queries} queries, {answers} of them answered"),),
    ),
    "noise": Source(
        "simulate --noise parties --seed 7",
        {
            "own": rf"coordinator epsilon {_NUMBER}",
        },
        ((_FIRST_RUN, "epsilon {own} holds against the coordinator, too"),),
    ),
    "verified": Source(
        "simulate --sum verified --seed 7",
        {"own": rf"tally epsilon {_NUMBER}", "epsilon": _EPSILON},
        (
            (_FIRST_RUN, "epsilon {own} against either"),
            (_FIRST_RUN, "epsilon {epsilon} for readers of labels"),
        ),
    ),
    "small": Source(
        "simulate --seed 7 --epsilon 2",
        {"asked": rf"labeled \d+ of {_NUMBER} public"},
        ((_FIRST_RUN, "as many queries as epsilon 2 pays for, {asked} of 30"),),
    ),
    "fewer": Source(
        "simulate --seed 7 --queries 10",
        {"epsilon": _EPSILON, "student": _STUDENT},
        (
            (
                _FIRST_RUN,
                "epsilon {epsilon} (all else as above). But the student learns less from 10 "
                "queries: it is right on {student} %",
            ),
        ),
    ),
    "skewed": Source(
        "simulate --seed 7 --partition dirichlet",
        {
            "refused": rf"answered, {_NUMBER} without",
            "asked": rf"labeled \d+ of {_NUMBER} public",
        },
        ((_FIRST_RUN, "{refused} of {asked} queries get no answer"),),
    ),
    "own-table": Source(
        "simulate --data csv --data-file clinics.csv --label diagnosis --patient-id patient "
        "--hospital clinic --seed 7",
        {
            "teachers": rf"hospitals with {_NUMBER} teachers",
            "answered": rf"Queries {_NUMBER} answered",
            "labels": rf"compare labels {_NUMBER} %",
            "student": rf"right on {_NUMBER} %",
            "auc": rf"student AUC {_NUMBER},",
            "epsilon": _EPSILON,
            "best": rf"best one AUC {_NUMBER}",
        },
        (
            (
                _OWN,
                "4 hospitals with {teachers} teachers in all answer {answered} queries; {labels} % "
                "of the labels are right. The student is right on {student} %. The run costs "
                "epsilon {epsilon} (delta",
            ),
            (
                _OWN,
                "The best clinic does better alone: its model has AUC {best}, the student {auc}",
            ),
        ),
        example=_OWN,
    ),
    "interactive-2018": Source(
        "reproduce interactive-2018 --first-seed 10 --data-dir DATA",
        {
            "one": rf"at most 290 answers; propagation; epsilon {_NUMBER}:",
            "one_right": rf"at most 290 answers; propagation; [^:]+: test accuracy {_NUMBER}",
            "two": rf"at most 40; propagation; epsilon {_NUMBER}:",
            "two_right": rf"at most 40; propagation; [^:]+: test accuracy {_NUMBER}",
        },
        (
            (_RESULTS, "the paper's 640, one round | {one} |"),
            (_RESULTS, "267 to 285 | **{one_right} %"),
            (_RESULTS, "at most 40 | {two} |"),
            (_RESULTS, "111 to 123 | **{two_right} %"),
            (_RESULTS, "two rounds reach the same at {two}"),
        ),
        is_cheap=False,
        percents=frozenset({"one_right", "two_right"}),
    ),
    "vote-leak": Source(
        "reproduce vote-leak --seeds 5 --data-dir DATA",
        {"at_40": _leak(40), "at_60": _leak(60)},
        (
            (
                _NOT_PROMISED,
                "leave {at_40} % of the votes in a wrong class at sigma 40, {at_60} % at sigma 60",
            ),
            (_RESULTS, "MNIST, highest likelihood | {at_40} % +- 0.2 | {at_60} % +-"),
        ),
        is_cheap=False,
        percents=frozenset({"at_40", "at_60"}),
    ),
}


def run_alone(words: list[str], folder: Path) -> str:
    """Run `pate-fed` as a process; a budget that is used up is a result, too (exit code 3)."""
    program = [sys.executable, "-m", "coordinator.cli", *words]
    alone = {**os.environ, "COLUMNS": "80", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(  # noqa: S603 - our own arguments
        program, cwd=folder, env=alone, stdout=subprocess.PIPE, text=True, check=False
    )
    if ended.returncode not in (0, 3):
        raise SystemExit(f"{shlex.join(words)} ended with exit code {ended.returncode}")
    return ended.stdout


def measured(source: Source, run: Run = run_alone) -> dict[str, str]:
    """Run a command, and return its numbers."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        if source.example:
            page = (ROOT / source.example).read_text("utf-8")
            example = page.partition("```python\n")[2].partition("```")[0]
            program = [sys.executable, "-c", example]
            subprocess.run(program, cwd=folder, check=True)  # noqa: S603 - a page of ours
        data = str(Path(os.environ.get("PATE_FED_TEST_DATA", "")) / "data")
        words = [data if word == "DATA" else word for word in shlex.split(source.command)]
        if words[0] == "simulate":
            words += ["--out", "run"]
        printed, privacy = run(words, folder), folder / "run" / "privacy.json"
        table = json.loads(privacy.read_text("utf-8")) if privacy.exists() else {}
        return numbers_in(printed, table, source)


def numbers_in(printed: str, privacy: Mapping[str, Any], source: Source) -> dict[str, str]:
    """Return the numbers of what a command printed, and of the privacy.json that it wrote."""
    line = " ".join(printed.split())
    found = {}
    for name, pattern in source.finds.items():
        if pattern.startswith("privacy."):
            value: Any = privacy
            for key in pattern.split(".")[1:]:
                value = value[key]
            found[name] = f"{math.ceil(1000 * value) / 1000:.3f}"
            continue
        match = re.search(pattern, line)
        if match is None:
            raise LookupError(f"{source.command} prints no {name}: {pattern}")
        number = match[1]
        found[name] = f"{100 * float(number):.1f}" if name in source.percents else number
    return found


def places(page: str, phrase: str) -> list[tuple[str, int, int]]:
    """Return where a page shows the numbers of a phrase: name, begin and end of each.

    Raises:
        LookupError: the page does not hold the phrase.
    """
    parts = re.split(r"\{(\w+)\}", phrase)
    names, pattern = parts[1::2], ""
    for number, part in enumerate(parts):
        if number % 2:
            pattern += _NUMBER
        else:
            words = re.split(r"(\s+)", part)
            pattern += "".join(_BLANK if not w.strip() and w else re.escape(w) for w in words)
    match = re.search(pattern, page)
    if match is None:
        raise LookupError(f"no page has these words any more: {phrase!r}")
    return [(name, *match.span(place)) for place, name in enumerate(names, start=1)]


def differences(texts: Mapping[str, str], kept: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Name every number of a page that is another one than the file's."""
    return [
        f"{page}: {name}.{number} is {kept[name][number]}, not {texts[page][begin:end]}"
        for name, source in SOURCES.items()
        for page, phrase in source.shows
        for number, begin, end in places(texts[page], phrase)
        if texts[page][begin:end] != kept[name][number]
    ]


def renewed(texts: Mapping[str, str], kept: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return the pages with the file's numbers."""
    changed = dict(texts)
    for name in kept:
        for page, phrase in SOURCES[name].shows:
            for number, begin, end in reversed(places(changed[page], phrase)):
                changed[page] = changed[page][:begin] + kept[name][number] + changed[page][end:]
    return changed


def pages() -> dict[str, str]:
    """Return the text of every page that shows a number."""
    named = {page for source in SOURCES.values() for page, _ in source.shows}
    return {page: (ROOT / page).read_text("utf-8") for page in sorted(named)}


def kept_records() -> dict[str, Any]:
    """Return the content of the file."""
    records: dict[str, Any] = json.loads(KEPT.read_text("utf-8")) if KEPT.exists() else {}
    return records


def kept_numbers() -> dict[str, dict[str, str]]:
    """Return the file's numbers."""
    return {name: record["numbers"] for name, record in kept_records().items()}


def renew(names: Iterable[str]) -> None:
    """Run these sources' commands, and write their numbers into file and pages."""
    records = kept_records()
    commit = ["git", "rev-parse", "--short", "HEAD"]
    at = subprocess.check_output(commit, cwd=ROOT, text=True).strip()  # noqa: S603 - our own
    for name in names:
        print(f"{name}: pate-fed {SOURCES[name].command}", file=sys.stderr)
        records[name] = {
            "command": f"pate-fed {SOURCES[name].command}",
            "numbers": measured(SOURCES[name]),
            "renewed": {"on": f"{datetime.now(UTC):%Y-%m-%d}", "at": at},
        }
    ordered = {name: records[name] for name in SOURCES if name in records}
    KEPT.write_text(json.dumps(ordered, indent=2, ensure_ascii=False) + "\n", "utf-8")
    for page, text in renewed(pages(), kept_numbers()).items():
        (ROOT / page).write_text(text, "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(SOURCES)}; all cheap ones")
    parser.add_argument("--pages", action="store_true", help="run nothing")
    given = parser.parse_args()
    cheap = [name for name, source in SOURCES.items() if source.is_cheap]
    renew([] if given.pages else given.names or cheap)


if __name__ == "__main__":
    main()
