"""`make federation-demo`: real commands, real processes, nothing beyond this machine, none left.

Services and the run are started as always. Commands that end at once are forks of one process
(`typed_commands`), but of the four hospitals in exhaustive runs all are started.
"""

from __future__ import annotations

import csv
import html
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from coordinator.demo.demo_study import load_study
from coordinator.federation.home import FederationHome
from coordinator.operator import Coordinator
from coordinator.people.people import Role
from party.owner import open_records
from party.site.site import Site
from pate_fed.wording import epsilon_text
from protocols.invitation import Invitation
from tests.support.console import browser
from tests.support.loopback import (
    WATCH,
    addresses,
    foreign_addresses,
    heard,
    in_empty_network,
    strays,
    traced,
)
from tests.support.marker import (
    Y_HEAD,
    files_with_secrets,
    private_forms,
    secrets_kept_in,
    secrets_within,
)
from tests.support.markers import more
from tests.support.real_data import real_data
from tests.test_party.test_page import browser_of

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
PATE_FED = [sys.executable, "-m", "coordinator.cli"]
MARK = "PATE_FED_TEST_DEMO"
"""A variable by which the demonstration's processes are found, whoever their parents are."""


@dataclass(frozen=True)
class Played:
    """A demonstration that was played to its end.

    Attributes:
        out: Its folder.
        hospitals: How many took part.
        code: Its exit code.
        said: What it printed.
        watched: What `loopback_watch` wrote.
        strays: How often it wanted to send beyond loopback; None where the kernel did not count.
        trace: What the kernel saw, if it did not count; None where nobody may look.
        left: Processes that were still there afterwards.
    """

    out: Path
    hospitals: int
    code: int
    said: str
    watched: Path
    strays: int | None
    trace: Path | None
    left: list[int]


def environment(folder: Path) -> dict[str, str]:
    """What a demonstration gets here: our programs on its path, and the watch in each process."""
    programs = folder / "programs"
    for name, module in (("pate-fed", "coordinator"), ("pate-party", "party")):
        write_program(programs / name, f"from {module}.cli import main\nmain()")
    kept = {name: text for name, text in os.environ.items() if "proxy" not in name.lower()}
    return {
        **kept,
        "PATH": os.pathsep.join((str(programs), os.environ["PATH"])),
        "PYTHONPATH": os.pathsep.join((str(WATCH), str(REPOSITORY))),
        "LOOPBACK_WATCH": str(folder / "watched"),
        MARK: str(folder),
    }


def write_program(path: Path, code: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!{sys.executable}\n{code}\n", encoding="utf-8")
    path.chmod(0o755)


def processes_of(folder: Path) -> list[int]:
    """Processes that were started below a demonstration, and are alive."""
    mark = f"{MARK}={folder}".encode()
    found = []
    for one in Path("/proc").iterdir():
        if one.name.isdecimal() and int(one.name) != os.getpid():
            try:
                if mark in (one / "environ").read_bytes().split(b"\0"):
                    found.append(int(one.name))
            except OSError:
                continue  # it ended meanwhile, or is somebody else's
    return found


@contextmanager
def playing(
    folder: Path, *before: str, program: Sequence[str] = (), **changed: str
) -> Iterator[subprocess.Popen[str]]:
    """Start a demonstration, or another program; what is left of it in the end is killed."""
    with (folder / "said").open("w", encoding="utf-8") as said:
        process = subprocess.Popen(
            [*before, *(program or (*PATE_FED, "demo", "--out", str(folder / "out")))],
            env={**environment(folder), **changed},
            stdout=said,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        for number in processes_of(folder):
            os.kill(number, signal.SIGKILL)
        process.wait(120)


def said_by(folder: Path) -> str:
    return (folder / "said").read_text("utf-8")


@pytest.fixture(scope="module", params=["tumors", more("hearts")])
def played(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Played:
    is_hearts = request.param == "hearts"
    data = str(real_data("data/heart_disease").parents[1]) if is_hearts else ""
    folder = tmp_path_factory.mktemp("demo")
    counts, trace = folder / "counts", folder / "trace"
    alone = in_empty_network(counts)
    tracing = None if alone else traced(trace)
    typed = folder / "typed"
    typed.mkdir()
    forked = (sys.executable, "-m", "tests.support.typed_commands", typed, folder / "out")
    program = () if is_hearts else tuple(map(str, forked))
    watching = alone or tracing or ()
    with playing(folder, *watching, program=program, PATE_FED_TEST_DATA=data) as process:
        code = process.wait(1800)
        deadline = time.monotonic() + 60
        while (left := processes_of(folder)) and time.monotonic() < deadline:
            time.sleep(0.2)
    return Played(
        folder / "out",
        4 if is_hearts else 3,
        code,
        said_by(folder),
        folder / "watched",
        strays(counts) if alone else None,
        trace if tracing else None,
        left,
    )


def test_it_goes_from_an_empty_folder_to_labels_a_student_and_a_report(played: Played) -> None:
    assert played.code == 0, played.said
    results = played.out / "results"
    names = {path.name for path in results.iterdir()}
    assert {"labels.csv", "report.html", "student", "transcript.jsonl", "sent.csv"} <= names
    public = (played.out / "public" / "report.html").read_text("utf-8")
    assert ("PUBLIC EDITION" in public, "Cleveland" in public) == (True, False)
    with (results / "labels.csv").open(encoding="utf-8", newline="") as file:
        labels = [row["label"] for row in csv.DictReader(file)]
    assert len(labels) == 40
    assert len([label for label in labels if label]) > 10
    privacy = json.loads((results / "privacy.json").read_text("utf-8"))
    assert len(privacy["parties"]) == played.hospitals
    assert not privacy["simulated"]
    assert privacy["views"]["public"]["epsilon"] <= 5
    report = (results / "report.html").read_text("utf-8")
    assert "DEPLOYED" in report
    assert "SIMULATED" not in report
    for party in privacy["parties"]:
        assert party["party"] in report


def test_it_types_what_people_type_and_ends_with_what_they_want_to_know(played: Played) -> None:
    for typed in (
        *("pate-fed init", "pate-fed serve", "pate-fed invite", "pate-fed approve", "pate-fed run"),
        *("pate-fed export", "pate-party join", "pate-party data add", "pate-party peers add"),
        *("pate-party doctor", "pate-party start", "pate-party approve", "pate-party results"),
    ):
        assert re.search(rf"^ *\w+\$ {typed}( |$)", played.said, re.MULTILINE), typed
    end = played.said[played.said.index("Every process") :]
    for said in (str(played.out / "results" / "report.html"), "Learned ", "Cost ", "Trust "):
        assert said in end


def test_the_hearts_are_of_four_hospitals_and_a_quarter_of_each_is_public() -> None:
    data = real_data("data/heart_disease").parents[1]
    study = load_study(data)
    own = [row for hospital in study.hospitals for row, _ in hospital.rows]
    assert [len(hospital.rows) for hospital in study.hospitals] == [228, 221, 93, 150]
    assert len(study.public) == len(study.truth) == 228
    assert {len(row) for row in [*own, *study.public]} == {len(study.columns)}
    assert set(study.truth) == set(study.classes)


def test_nothing_is_left_of_it(played: Played) -> None:
    assert played.left == []


def test_no_process_resolves_or_connects_to_anything_but_loopback(played: Played) -> None:
    commands, spoken = heard(played.watched)
    for part in (
        *(
            "pate-fed init",
            "pate-fed serve",
            "coordinator.flower.superlink_process",
            "pate-fed run",
        ),
        *("pate-party join", "pate-party doctor", "pate-party start", "party.flower.supernode"),
    ):
        assert any(part in command for command in commands), part
    assert {"socket.connect", "socket.getaddrinfo", "socket.bind"} <= {one.what for one in spoken}
    assert [one for one in spoken if not one.is_own] == []


def test_nor_does_the_kernel_see_it_do_so(played: Played) -> None:
    """gRPC's own code asks the kernel past Python."""
    if played.strays is not None:
        assert (played.code, played.strays) == (0, 0), played.said
    elif played.trace is not None:
        assert "127.0.0.1" in addresses(played.trace)
        assert foreign_addresses(played.trace) == []
    else:
        pytest.skip("neither a network of its own (unshare, ip) nor a trace (strace) can be had")


def test_flowers_database_holds_no_y_after_the_run(played: Played) -> None:
    """Comes before whatever opens the databases: that removes the logs beside them."""
    [database] = played.out.rglob("superlink.db")
    for path in database.parent.glob("superlink.db*"):
        assert Y_HEAD not in path.read_bytes()


def test_no_secret_of_either_side_is_anywhere_but_in_its_own_file(played: Played) -> None:
    kept = secrets_kept_in(played.out)
    assert len(kept) >= 4 + 3 * played.hospitals  # of the coordinator, and of each hospital
    tokens = {}
    for path in played.out.rglob("*.invite.json"):
        token = Invitation.from_json(path.read_text("utf-8")).token
        tokens[path.relative_to(played.out).as_posix()] = private_forms(token)
    assert len(tokens) == played.hospitals
    secrets = kept | tokens
    assert files_with_secrets(played.out, secrets) == {name: [name] for name in secrets}
    assert secrets_within(played.said.encode(), secrets) == []


def words_in(page: str) -> str:
    """What a page says, without its marks."""
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", page)))


def epsilons_in(text: str) -> set[str]:
    """Every number that a text calls an epsilon."""
    found = r"(?:epsilon|ε)[^0-9a-z%]{0,4}(?:at most |of |is |= ?)?([0-9]+(?:\.[0-9]+)?)"
    return {f"{float(number):g}" for number in re.findall(found, text)}


def test_the_run_has_one_epsilon_wherever_it_is_said(played: Played) -> None:
    """Console, hospital's page, both command lines, report, `privacy.json`; budgets are 5."""
    privacy = json.loads((played.out / "results" / "privacy.json").read_text("utf-8"))
    exact = privacy["views"]["public"]["epsilon"]
    charged = epsilon_text(privacy["views"]["coordinator"]["epsilon"])  # operator's and tally's
    allowed = {epsilon_text(exact), charged, "5"}
    assert epsilons_in(played.said) == allowed  # what the commands of both sides printed
    report = (played.out / "results" / "report.html").read_text("utf-8")
    for name in ("short", "cost"):
        section = report.partition(f'<section aria-labelledby="{name}"')[2]
        said = words_in(section.partition("</section>")[0].partition("<svg")[0])
        assert epsilon_text(exact) in epsilons_in(said) <= allowed, name
    [settings] = played.out.rglob("federation.toml")
    coordinator = Coordinator(FederationHome.open(settings.parent))
    try:
        [run] = coordinator.queue.page(most=10)
        assert run.progress.epsilon == exact
        console = browser(coordinator, Role.ADMINISTRATOR)
        for path in ("/", "/runs", f"/runs/{run.name}", f"/runs/{run.name}/results", "/privacy"):
            said = words_in(console.get(path).text)
            assert epsilon_text(exact) in said, path
            assert epsilons_in(said) <= allowed, path
    finally:
        coordinator.close()
    for settings in played.out.rglob("party.toml"):
        site = Site.open(settings.parent)
        with open_records(site.folder) as opened:
            ledger, [spent] = opened.spending()
        assert (spent.epsilon, epsilon_text(spent.charged_epsilon)) == (exact, charged)
        assert spent.share == pytest.approx(ledger.used_share())
        with browser_of(site) as page:
            page.enter()
            [digest] = set(re.findall(r"request\?digest=([0-9a-f]{64})", page.get("decided").text))
            for path in ("budget", f"request?digest={digest}"):
                said = words_in(page.get(path).text)
                assert {charged} <= epsilons_in(said) <= allowed, path
            assert epsilons_in(said) == allowed  # whoever approves sees both
            # The request says unit, view and method of it once each.
            formal = privacy["views"]["public"]
            assert (said.count(formal["holds_for"]), said.count(formal["method"])) == (1, 1)
            assert "STOPPED" not in said  # its own charge is not counted twice


def test_its_operator_cannot_spend_a_budget_on_a_wrong_student_and_trains_another_later(
    played: Played,
) -> None:
    """Real commands on what it left: `run --student gan` once used up lifetime budgets here."""
    [settings] = played.out.rglob("federation.toml")
    home, [public] = settings.parent, played.out.rglob("public.csv")
    surroundings = environment(played.out.parent)

    def typed(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = [*PATE_FED, *map(str, arguments), "--home", str(home)]
        return subprocess.run(
            command, env=surroundings, capture_output=True, text=True, check=False
        )

    [name] = (path.name for path in (home / "runs").iterdir())
    tables = ("--queries", public, "--label", "class", "--classes", "a,b", "--student", "gan")
    wrong = typed("run", "--name", "wrong", *tables)
    assert (wrong.returncode, "PF-101" in wrong.stderr) == (2, True)
    assert "wrong" not in typed("status").stdout
    results = home / "runs" / name / "results"
    labels = (results / "labels.csv").read_bytes()
    again = typed("student", name, "--kind", "forest", "--format", "json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["student"]["kind"] == "forest"
    assert (results / "labels.csv").read_bytes() == labels
    checked = [*PATE_FED, "transcript", "verify", str(results)]
    assert subprocess.run(checked, env=surroundings, check=False).returncode == 0


@pytest.mark.parametrize("way", ["network", "trace"])
def test_the_watch_and_the_kernel_see_whoever_speaks_beyond(tmp_path: Path, way: str) -> None:
    code = (
        "import socket\n"
        "for call in (lambda: socket.getaddrinfo('hospital.invalid', 1),\n"
        "             lambda: socket.socket(type=socket.SOCK_DGRAM).connect(('192.0.2.1', 9)),\n"
        "             lambda: socket.socket(socket.AF_INET6).connect(('2001:db8::1', 9))):\n"
        "    try:\n        call()\n    except OSError:\n        pass\n"
    )
    seen = tmp_path / "seen"
    watching = in_empty_network(seen) if way == "network" else traced(seen)
    subprocess.run(
        [*(watching or ()), sys.executable, "-c", code],
        env=environment(tmp_path),
        check=True,
        timeout=300,
    )
    _, spoken = heard(tmp_path / "watched")
    assert [one.whom for one in spoken if not one.is_own] == [
        "hospital.invalid",
        ("192.0.2.1", 9),
        ("2001:db8::1", 9),
    ]
    if watching and way == "network":
        assert strays(seen) >= 2
    elif watching:
        found = foreign_addresses(seen)
        for address in ("192.0.2.1", "2001:db8::1"):
            assert any(address in line for line in found)


STAND_INS = {
    "pate-fed": """
        import subprocess, sys, time
        if "tally" in sys.argv:
            for name in ("tally-invite.json", "tally-card.json"):
                open(name, "w").close()
            print("    " + " ".join(["word"] * 12))
            print("For hospitals   " + " ".join(["word"] * 12))
            if "serve" not in sys.argv:
                sys.exit()
        if "serve" in sys.argv:
            subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
            print("the federation is served at 127.0.0.1:1", flush=True)
            time.sleep(600)
        if "invite" in sys.argv:
            open(sys.argv[-1].replace(" ", "-") + ".invite.json", "w").close()
            print("    " + " ".join(["word"] * 12))
    """,
    "pate-party": """
        import time
        time.sleep(600)
    """,
}
"""The demonstration's programs, in short: a service with a child, hospitals that join for ever."""


@contextmanager
def joining(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Play it with stand-ins until hospitals join.

    How real services end by a signal is seen above, and in `test_service_log`.
    """
    for name, code in STAND_INS.items():
        write_program(folder / "stand-ins" / name, textwrap.dedent(code))
    # Programs beside the interpreter come first.
    start = (
        "import sys; "
        f"sys.executable = {str(folder / 'stand-ins' / 'python')!r}; "
        f"sys.argv = ['pate-fed', 'demo', '--out', {str(folder / 'out')!r}]; "
        "from coordinator.cli import main; main()"
    )
    with playing(folder, program=(sys.executable, "-c", start), PATE_FED_TEST_DATA="") as process:
        wait_until_said(process, folder, "\n3. ")
        while sum("join" in command_of(number) for number in processes_of(folder)) < 2:
            assert process.poll() is None, said_by(folder)
            time.sleep(0.05)
        yield process


def command_of(process: int) -> list[str]:
    """Return a process's command line; empty once it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_text("utf-8").rstrip("\0").split("\0")
    return []


def wait_until_said(process: subprocess.Popen[str], folder: Path, text: str) -> None:
    deadline = time.monotonic() + 300
    while text not in said_by(folder):
        assert process.poll() is None, said_by(folder)
        assert time.monotonic() < deadline, said_by(folder)
        time.sleep(0.1)


@pytest.mark.parametrize(
    "number", [more(signal.SIGINT, id="Ctrl-C"), pytest.param(signal.SIGTERM, id="SIGTERM")]
)
def test_told_to_end_it_stops_every_process_and_says_so(
    tmp_path: Path, number: signal.Signals
) -> None:
    with joining(tmp_path) as process:
        assert len(processes_of(tmp_path)) >= 5  # it, the service and its child, who types
        process.send_signal(number)
        assert process.wait(300) == 4
        assert processes_of(tmp_path) == []
    assert number.name in said_by(tmp_path)


def test_where_something_fails_it_stops_every_process_and_says_what(tmp_path: Path) -> None:
    with joining(tmp_path) as process:
        *_, one = (one for one in processes_of(tmp_path) if "join" in command_of(one))
        os.kill(one, signal.SIGKILL)
        assert process.wait(300) == 4
        assert processes_of(tmp_path) == []
    assert re.search(r"PF-460.*join.*-9", said_by(tmp_path))
