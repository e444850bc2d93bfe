"""A whole federation on this machine, typed as its people would type it, and stopped in the end.

Its coordinator and its hospitals are processes that speak TLS over loopback: the same programs and
commands as between real hospitals. What is here types the commands, carries the invitation files
and stands in for the telephone. It imports none of the nodes.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
import secrets
import shutil
import signal
import socket
import textwrap
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from coordinator.demo.demo_study import DemoTable, Study, load_study
from coordinator.demo.processes import LeftRunning, Stage, Terminal, wait_until
from coordinator.errors import DemoError
from pate_fed.regular_files import read_regular

AT_ONCE = 2
"""Hospitals whose people type at the same time: as many as a small machine has cores."""

QUERIES = 40
DELTA = "1e-5"
RUN = "first"
_START_S, _RUN_S = 180.0, 600.0
_WORDS = re.compile(r"^\s+((?:[a-z]+ +){11}[a-z]+)\s*$", re.MULTILINE)
_ENDED = re.compile(r"^run ([0-9a-f]{16}) ", re.MULTILINE)
_ASKED = re.compile(r"^\s*run ([0-9a-f]{64})", re.MULTILINE)

OPERATOR, TALLY = "Study Office", "Data Trust"
"""Who runs the coordinator, and who runs the tally: two organisations."""

POLICY = {
    "lifetime_epsilon": 5, "delta": 1e-05, "delta_for_tests": 0, "least_checked_peers": 2,
}  # fmt: skip
"""Decisions of a hospital's owner: the budget for life, and two peers for so small a federation."""


@dataclass
class PlayedHospital:
    """A hospital of the demonstration.

    Attributes:
        table: What it has.
        terminal: Where its people type.
        words: The twelve words of its identity, as its people read them.
        node: Its node, once that runs.
        lines: What its terminal shows, until it is shown.
    """

    table: DemoTable
    terminal: Terminal
    words: str = ""
    node: LeftRunning | None = None
    lines: list[str] = field(default_factory=list)


@dataclass
class Demo:
    """One demonstration.

    Attributes:
        study: What it is about.
        out: Its folder.
        stage: Its processes.
    """

    study: Study
    out: Path
    stage: Stage

    def __post_init__(self) -> None:
        self.operator = self.stage.terminal("operator", self.out / "operator")
        self.tally = self.stage.terminal("tally", self.out / "tally")
        self.hospitals = []
        for table in self.study.hospitals:
            terminal = self.stage.terminal(table.key, self.out / table.key)
            hospital = PlayedHospital(table, terminal)
            terminal.say = hospital.lines.append
            self.hospitals.append(hospital)
        self.service: LeftRunning | None = None
        self.tallying: LeftRunning | None = None
        self.tally_words = ""
        self.words = ""
        self.shown = 0

    def play(self) -> None:
        """Do everything, from the federation's making to its labels."""
        steps: Sequence[tuple[str, Callable[[], None]]] = (
            ("The operator makes the federation and serves it.", self.make),
            (
                "Another organisation, the tally, will check every vote and add noise of its own. "
                "It and the operator compare words, too.",
                self.add_tally,
            ),
            (
                "Each hospital is invited, joins and is approved. By telephone, hospital and "
                "operator compare the twelve words of the federation, and those of the hospital; "
                "hospital and tally those of the tally. "
                "(Steps 3 to 6 are single commands here: `pate-party setup` asks for all of it.)",
                self.enroll,
            ),
            (
                "Each hospital registers its own table, and its owner sets what is allowed. "
                "Nothing leaves.",
                self.prepare,
            ),
            (
                "Hospitals check each other: they compare twelve words by telephone, without the "
                "operator.",
                self.check_peers,
            ),
            (
                "The command `doctor` checks everything that could stop a node; here the first "
                "hospital's.",
                self.examine,
            ),
            ("Each hospital starts its node: one connection out, no port open.", self.start),
            (
                "The operator asks for labels of public records. Hospitals refuse until a person "
                "there has approved.",
                self.ask,
            ),
            (
                "Each hospital reads what it is asked and what that costs, trains its teachers, "
                "and approves.",
                self.approve,
            ),
            ("The run is offered again, and goes through.", self.follow),
            (
                "The operator takes the results. Each hospital can read what was charged, and "
                "fetch them; the first one does.",
                self.end,
            ),
        )
        began = time.monotonic()
        for number, (said, step) in enumerate(steps, 1):
            print(f"\n{number}. {said}   [{time.monotonic() - began:.0f} s]", flush=True)
            step()

    # Steps ------------------------------------------------------------------------------------

    def make(self) -> None:
        """Make the federation and serve it."""
        public, admin, metrics, health = free_ports(4)
        self.operator.type(
            *("pate-fed", "init", "--name", self.study.title),
            *("--address", f"127.0.0.1:{public}", "--host", "127.0.0.1"),
            *("--admin-port", admin, "--metrics-port", metrics, "--health-port", health),
        )
        self.service = service = self.operator.leave_running("pate-fed", "serve")

        def is_served() -> bool:
            service.require_alive()
            return "is served at" in service.printed

        wait_until("the federation's service", is_served, seconds=_START_S)

    def add_tally(self) -> None:
        """Make the tally, let both ends compare words, and serve it."""
        invitation, card = "tally-invite.json", "tally-card.json"
        operators = words_in(self.operator.type("pate-fed", "tally", "invite"))
        shutil.move(self.operator.folder / invitation, self.tally.folder / invitation)
        [port] = free_ports(1)
        made = self.tally.type(
            *("pate-fed", "tally", "init", invitation, "--name", TALLY),
            *("--address", f"127.0.0.1:{port}", "--host", "127.0.0.1", "--compared", operators),
        )
        shutil.copy(self.tally.folder / card, self.operator.folder / card)
        self.operator.type("pate-fed", "tally", "accept", card, "--compared", words_in(made))
        shown = self.tally.type("pate-fed", "tally", "words")
        self.tally_words = words_behind("For hospitals", shown)
        self.tallying = self.tally.leave_running("pate-fed", "tally", "serve")

    def enroll(self) -> None:
        """Bring every hospital in."""

        def enroll(hospital: PlayedHospital) -> None:
            name, own = hospital.table.name, hospital.terminal
            operator = replace(self.operator, say=own.say)
            read_aloud = words_in(operator.type("pate-fed", "invite", name))
            invitation = f"{name.replace(' ', '-')}.invite.json"
            own.say(f"(the file {invitation} is carried to {name})")
            shutil.move(self.operator.folder / invitation, own.folder / invitation)
            joined = own.type(
                *("pate-party", "join", invitation, "--compared", read_aloud),
                *("--operator-body", OPERATOR),
                *("--compared-tally", self.tally_words, "--tally-body", TALLY),
            )
            hospital.words = words_in(joined)
            operator.type("pate-fed", "approve", name, "--words", hospital.words)

        self._each(enroll)

    def prepare(self) -> None:
        """Register tables, and say what is allowed."""
        ports = dict(
            zip(
                (one.table.key for one in self.hospitals),
                free_ports(len(self.hospitals)),
                strict=True,
            )
        )

        def prepare(hospital: PlayedHospital) -> None:
            own, table = hospital.terminal, hospital.table
            self.study.write_hospital(table, own.folder / "records.csv")
            own.type(
                *("pate-party", "data", "add", "records.csv"),
                *("--label", self.study.label, "--patient-id", "patient"),
            )
            rules = {
                **POLICY,
                # Several hospitals on one machine cannot have the same port on loopback.
                "node_port": ports[table.key],
            }
            typed = [word for rule in rules.items() for word in rule]
            own.type("pate-party", "policy", "set", *typed, "--by", person(hospital))

        self._each(prepare)

    def check_peers(self) -> None:
        """Let everybody compare words with everybody."""

        def check(hospital: PlayedHospital) -> None:
            for peer in self.hospitals:
                if peer is not hospital:
                    hospital.terminal.type(
                        *("pate-party", "peers", "add", peer.table.name),
                        *("--compared", peer.words, "--how", "telephone, number known before"),
                        *("--by", person(hospital)),
                    )

        self._each(check)

    def examine(self) -> None:
        """Ask the first hospital's doctor; warnings are let pass."""
        self._first(lambda one: one.terminal.type("pate-party", "doctor", codes=(0, 1)))

    def start(self) -> None:
        """Start the nodes, and wait until each is connected."""

        def start(hospital: PlayedHospital) -> None:
            hospital.node = hospital.terminal.leave_running("pate-party", "start")

        self._each(start)
        nodes = [one.node for one in self.hospitals if one.node is not None]
        wait_until("every node", lambda: all(map(is_up, nodes)), seconds=_START_S)

    def ask(self) -> None:
        """Ask for labels."""
        self.study.write_public(self.operator.folder / "public.csv")
        self.run = self.operator.leave_running(
            *("pate-fed", "run", "--name", RUN, "--queries", "public.csv"),
            *("--label", self.study.label, "--classes", ",".join(self.study.classes)),
            *("--ask", QUERIES, "--delta", DELTA),
            *(
                "--purpose",
                f"A demonstration: predict {self.study.label} without pooling records",
            ),
        )
        wait_until(
            "a hospital's refusal", lambda: self._says("waits for the people"), seconds=_RUN_S
        )
        self._show_run()

    def approve(self) -> None:
        """Let a person at each hospital read and approve."""

        def approve(hospital: PlayedHospital) -> None:
            own = hospital.terminal
            found: list[str] = []

            def is_asked() -> bool:
                found[:] = _ASKED.findall(own.type("pate-party", "approve"))
                return bool(found)

            wait_until(f"the request at {hospital.table.name}", is_asked, seconds=_START_S)
            own.type("pate-party", "approve", found[0][:16], "--yes", "--by", person(hospital))

        self._each(approve)

    def follow(self) -> None:
        """Follow the run to its end."""
        run = self.run
        wait_until("the run's end", lambda: run.process.poll() is not None, seconds=_RUN_S)
        self._show_run()
        if run.process.returncode:
            raise DemoError(f"{run.name} must succeed", f"exit code {run.process.returncode}")

    def end(self) -> None:
        """Take the results, and let hospitals read their ledgers."""
        self.operator.type("pate-fed", "export", RUN, "--private", "--out", "../results")
        self.operator.type("pate-fed", "transcript", "verify", "../results")
        self.operator.type("pate-fed", "export", RUN, "--out", "../public")
        self._first(lambda one: one.terminal.type("pate-party", "budget"))
        self._first(fetch_results)

    # Helpers ----------------------------------------------------------------------------------

    def _first(self, step: Callable[[PlayedHospital], object]) -> None:
        """Let the first hospital do what others would do likewise."""
        self._each(step, of=self.hospitals[:1])

    def _each(
        self,
        step: Callable[[PlayedHospital], object],
        *,
        of: Sequence[PlayedHospital] | None = None,
    ) -> None:
        """Let every hospital do a step, some at once; show the first in full, of others commands.

        Args:
            step: What is to be done.
            of: Not all hospitals, but these.

        Raises:
            DemoError: one of them failed; its lines are shown in full.
        """

        def do(hospital: PlayedHospital) -> DemoError | None:
            hospital.lines.clear()
            try:
                self._require_alive()
                step(hospital)
            except DemoError as error:
                return error
            return None

        chosen = self.hospitals if of is None else of
        with ThreadPoolExecutor(AT_ONCE) as together:
            doing = {together.submit(do, one): one for one in chosen}
            try:
                shown, pending = list(doing), set(doing)
                while pending:
                    done, pending = wait(pending, return_when=FIRST_COMPLETED)
                    for failed in (one for one in done if one.result() is not None):
                        self._show(doing[failed], failed.result())
                    while shown and shown[0].done():
                        self._show(doing[shown.pop(0)], None)
            except BaseException:
                self.stage.stop()  # so that nobody waits for a command of the others
                raise

    def _show(self, hospital: PlayedHospital, error: DemoError | None) -> None:
        in_full = error is not None or hospital is self.hospitals[0]
        for line in hospital.lines:
            if in_full or not line.startswith("    "):
                print(f"   {line}", flush=True)
        if error is not None:
            raise error

    def _require_alive(self) -> None:
        for service in (self.service, self.tallying, *(one.node for one in self.hospitals)):
            if service is not None:
                service.require_alive()

    def _says(self, text: str) -> bool:
        self._require_alive()
        self.run.require_alive()
        return text in self.run.printed

    def _show_run(self) -> None:
        """Show what the run's command has printed since the last time."""
        lines = self.run.printed.splitlines()
        for line in lines[self.shown :]:
            print(f"       {line}", flush=True)
        self.shown = len(lines)


# What people do besides typing ------------------------------------------------------------------


def person(hospital: PlayedHospital) -> str:
    """Name who decides at a hospital."""
    return f"data owner of {hospital.table.name}"


def fetch_results(hospital: PlayedHospital) -> None:
    """Let a hospital fetch what the run gave, with a check of every file."""
    own = hospital.terminal
    [run] = _ENDED.findall(own.type("pate-party", "results"))
    own.type("pate-party", "results", run, "--out", "results")


def words_in(printed: str) -> str:
    """Read the twelve words from a screen, as one does on the telephone.

    Raises:
        DemoError: there are none, or others beside them.
    """
    found = _WORDS.findall(printed)
    if len(found) != 1:
        raise DemoError("twelve words must be on the screen, once", f"{len(found)} times")
    return str(found[0])


def words_behind(name: str, printed: str) -> str:
    """Read the twelve words of one of several lines."""
    [line] = [each for each in printed.splitlines() if each.startswith(name)]
    return line.removeprefix(name).strip()


def is_up(node: LeftRunning) -> bool:
    """Tell whether a hospital's node has said that it is up."""
    node.require_alive()
    return " is up; " in node.printed


def free_ports(count: int) -> list[int]:
    """Find ports on loopback that nobody has, below those that the system hands out by itself."""
    found: list[int] = []
    for port in secrets.SystemRandom().sample(range(20_000, 32_000), 1_000):
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise DemoError("ports between 20000 and 32000 must be free", f"{len(found)} of {count}")


# The end ----------------------------------------------------------------------------------------


def summary(demo: Demo) -> str:
    """Say where the report is, what was learned, what it cost, and who had to be trusted."""
    results = demo.out / "results"
    privacy = json.loads(read_regular(results / "privacy.json"))
    epsilon = privacy["views"]["public"]["epsilon"]
    right, released, student, others = scores(demo)
    return "\n".join(
        (
            f"Report    {results / 'report.html'}",
            "",
            f"Learned   The data are {demo.study.source}: a part is public, {len(demo.hospitals)} "
            f"hospitals have the rest. They labeled {released} public records, {right} of them "
            "rightly. The student that learned from "
            f"these labels is right on {student} of the {others} other public records. (Nobody in "
            "the federation had the true labels; the demo counted with them.)",
            f"Cost      Epsilon {ceiling(epsilon)}: if all records of one patient were "
            "different, the probability of any labels would change at most "
            f"{math.ceil(math.exp(epsilon))}-fold, plus delta = {privacy['delta']:g}. The operator "
            "and the tally saw noisy counts: for each of them alone epsilon is "
            f"{ceiling(privacy['views']['coordinator']['epsilon'])}.",
            f"Trust     Every hospital had to trust that the operator and {TALLY}, the tally, do "
            "not work together: both could read all votes. Neither alone sees a vote or exact sum, "
            "whatever it asks. Here one machine plays all roles, so you must trust its owner with "
            "everything.",
        )
    )


def scores(demo: Demo) -> tuple[int, int, int, int]:
    """Count right labels, labels, right predictions of the student, and what those were made on."""
    # The library, to read the student as anybody may to whom it is given.
    from pate_fed import load_student  # noqa: PLC0415 - takes seconds

    study, results = demo.study, demo.out / "results"
    asked = {int(row["query_id"]): row["label"] for row in rows_of(results / "labels.csv")}
    labels = {place: label for place, label in asked.items() if label}
    right = sum(study.truth[place] == label for place, label in labels.items())
    rows = rows_of(demo.operator.folder / "public.csv")
    others = [place for place in range(len(study.public)) if place not in asked]
    columns = {name: [rows[place][name] for place in others] for name in rows[0]}
    guessed = load_student(results / "student").predict(columns)
    student = sum(guess == study.truth[place] for guess, place in zip(guessed, others, strict=True))
    return right, len(labels), student, len(others)


def rows_of(path: Path) -> list[dict[str, str]]:
    """Read a table that this demonstration or its federation wrote."""
    return list(csv.DictReader(read_regular(path).decode().splitlines()))


def ceiling(epsilon: float) -> str:
    """Write an epsilon with three decimals, rounded up."""
    return f"{math.ceil(epsilon * 1000) / 1000:.3f}"


def wrapped(text: str) -> str:
    """Break long lines below their first column."""
    lines = (
        textwrap.fill(line, 96, subsequent_indent=" " * 10, break_long_words=False)
        for line in text.splitlines()
    )
    return "\n".join(lines)


def interrupted(number: int, _: object) -> None:
    """Leave by the way that stops everything."""
    raise DemoError("it must be let play to its end", signal.Signals(number).name)


def play(out: Path) -> None:
    """Play the demonstration, and stop all that it started, whatever happens.

    Args:
        out: A new folder, for everybody's folders and the results.

    Raises:
        DemoError: a step did not go as it must, or a signal ended it.
    """
    data = os.environ.get("PATE_FED_TEST_DATA")
    study = load_study(Path(data) if data else None)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)
    stage = Stage()
    try:
        demo = Demo(study, out.absolute(), stage)
        demo.play()
        said = summary(demo)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # once is enough: everything is being stopped
        stage.stop()
        print("\nEvery process that was started has ended.", flush=True)
    print(f"\n{wrapped(said)}")
