"""The wording of pages and commands: one stored rendering each, which `make renderings` renews."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer import Typer
from typer.core import TyperGroup
from typer.main import get_command

import coordinator.cli
import party.cli
from coordinator.people.people import Role
from pate_fed.accounting.costs import COMPOSED_METHOD, NO_BOUND_METHOD
from pate_fed.mechanisms import SPECS
from pate_fed.report import (
    plots,
    render_annexes,
    render_model_card,
    render_report,
    render_summary,
)
from pate_fed.report.ended_run import EndedRun, privacy_table
from tests.support.command import Command, Ended, pate_fed
from tests.support.console import browser, opened, seeded
from tests.support.hospital_services import Hospitals
from tests.support.renderings import changed_lines, hold, sections, words_of
from tests.support.sample_run import (
    metrics_of,
    privacy_of,
    sample_metrics,
    sample_parties,
    sample_privacy,
    sample_settings,
    settings_of,
    write_sample,
)
from tests.test_coordinator.test_account import write_votes
from tests.test_coordinator.test_console_pages import PAGES
from tests.test_party.test_cli import PateParty, go_offline, pate_party
from tests.test_party.test_page import PAGES as HOSPITAL_PAGES
from tests.test_party.test_page import Browser, answered, asked, hospitals, owner, stranger
from tests.test_pate_fed.test_report_ended_run import ended_of, terms_of
from tests.test_pate_fed.test_report_html import MECHANISMS

__all__ = ["answered", "hospitals", "owner", "pate_fed", "pate_party", "stranger"]

Program = Callable[..., Ended]

_OF_A_MACHINE = re.compile(
    r"^\w+ +(?:disk|memory|graphics card|port|service|versions) .*\n", re.MULTILINE
)
"""Lines of a doctor."""

_LONG_USAGE = re.compile(r"(Usage: .*?) *\n {20,}(?=\S)")
"""Wrapped or not, by what ran before in the process."""


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def typed(program: Program, *lines: tuple[object, ...], after: tuple[object, ...] = ()) -> str:
    """What a program says to each line, with its exit code where that is not 0."""
    texts = {}
    for line in lines:
        ended = program(*line, *after)
        code = f" -> {ended.code}" if ended.code else ""
        said = _LONG_USAGE.sub(r"\1 ", ended.out + ended.err)
        texts[" ".join(map(str, line)) + code] = _OF_A_MACHINE.sub("", said)
    return sections(texts)


def lines_of(app: Typer) -> Iterator[tuple[str, ...]]:
    """Every command of a program, as it is typed."""

    def below(group: object, line: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield line
        if isinstance(group, TyperGroup):
            for name in group.commands:
                yield from below(group.commands[name], (*line, name))

    return below(get_command(app), ())


class TestCommands:
    def test_help_of_pate_fed(self, pate_fed: Command) -> None:
        lines = [(*line, "--help") for line in lines_of(coordinator.cli.app)]
        hold("pate-fed-help", typed(pate_fed, *lines))

    def test_help_of_pate_party(self, pate_party: PateParty) -> None:
        lines = [(*line, "--help") for line in lines_of(party.cli.app)]
        hold("pate-party-help", typed(pate_party, *lines))

    def test_an_operators_federation(self, pate_fed: Command, tmp_path: Path) -> None:
        folder = tmp_path / "federation"
        made = typed(
            pate_fed,
            ("init", "--name", "lung study", "--address", "h.example.org:9000"),
            ("invite", "North", "--out", tmp_path / "1.json"),
            ("invite", "North", "--out", tmp_path / "2.json"),
            ("members",),
            ("status",),
            after=("--home", folder),
        )
        with opened(tmp_path / "seeded") as coordinator:
            seeded(coordinator)
        shown = typed(
            pate_fed,
            *(("members",), ("status",), ("status", "is-waiting"), ("status", "nobody")),
            *(("pause", "is-running"), ("resume", "is-done"), ("stop", "is-running"), ("budget",)),
            *(("users", "list"), ("suspend", "North"), ("reinstate", "North")),
            *(("audit-log", "verify"), ("audit-log", "list", "--last", "3"), ("doctor",)),
            after=("--home", tmp_path / "seeded"),
        )
        hold("pate-fed-federation", f"{made}\n\n{shown}", {str(tmp_path): "PATH"})

    def test_an_analysis_and_wrong_lines(
        self, pate_fed: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        write_votes(Path("votes.npy"), [[9, 3, 0], [5, 4, 3], [12, 0, 0]])
        shown = typed(
            pate_fed,
            ("account", "votes.npy", "--vote-threshold", 8, "--sigma2", 4),
            *(("simulat",), ("simulate", "--epsilonn", 1), ("simulate", "--epsilon", 0)),
            ("plan", "--parties", 0),
        )
        hold("pate-fed-analysis", shown)


class TestPages:
    def test_the_console(self, tmp_path: Path) -> None:
        with opened(tmp_path / "federation") as coordinator:
            seeded(coordinator)
            inside, outside = browser(coordinator, Role.ADMINISTRATOR), browser(coordinator)
            for path, address in PAGES.items():
                client = outside if path in ("/sign-in", "/welcome") else inside
                name = path.replace("/{run}", "-one")[1:].replace("/", "-") or "overview"
                page = client.get(f"{address}{'?search=person' * (name == 'audit')}").text
                hold(f"console-{name}", words_of(page, whole=name == "overview"))

    def test_a_hospital_and_its_commands(
        self,
        owner: Browser,
        hospitals: Hospitals,
        pate_party: PateParty,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        request = f"request?digest={asked(hospitals, name='shown')}"
        folder = hospitals.sites[0].folder
        names = {str(folder.parent): "PATH", "South": "PEER", "West": "PEER"}
        for page in (*HOSPITAL_PAGES, request):
            if page not in ("audit", "export"):
                name = page.partition("?d")[0].replace("?check=1", "-checked") or "to-decide"
                hold(f"hospital-{name}", words_of(owner.get(page).text, whole=not page), names)
        monkeypatch.setattr(
            "party.site.joining.CoordinatorDoor.fetch_pool",
            lambda self, digest: hospitals.task.to_bytes(),
        )
        go_offline(monkeypatch)
        shown = typed(
            pate_party,
            *(("status",), ("approve",), ("budget",), ("peers", "list"), ("results",), ("sent",)),
            *(("pause", "--by", "M. Curie"), ("status",), ("resume", "--by", "M. Curie")),
            *(("policy", "show"), ("audit", "list"), ("audit", "verify"), ("doctor",), ("renew",)),
            *(("reject", "0" * 64, "--reason", "no"), ("peers", "remove", "Nobody")),
            after=("--site", folder),
        )
        hold("pate-party-node", shown, names)


def kinds_of_runs() -> dict[str, dict[str, Any]]:
    """Runs of every kind that reports word otherwise; the first is the usual one."""
    kinds: dict[str, dict[str, Any]] = {}

    def kind(name: str, *, method: str = COMPOSED_METHOD) -> tuple[dict[str, Any], dict[str, Any]]:
        one = {"metrics": sample_metrics(), "privacy": sample_privacy(method)}
        kinds[name] = {**one, "settings": sample_settings()}
        return one["metrics"], one["privacy"]

    kind("usual")
    metrics, privacy = kind("deployed")
    metrics["simulated"] = privacy["simulated"] = False
    privacy["per_instance"].update(epsilon=None, order=None)
    privacy["noise"]["source"] = "operating system"
    metrics["label_accuracy"], metrics["per_class"] = None, {}
    metrics["scores"] = dict.fromkeys(metrics["scores"])
    kinds["deployed"]["settings"] = {
        "purpose": "Finding heart disease early",
        "label": "disease",
        "classes": ["no", "yes"],
    }
    kind("own table")
    kinds["own table"]["settings"] |= {"data": "csv", "seed": None}
    _, privacy = kind("hospitals that differ")
    privacy["parties"] = sample_parties(4, alike=False)
    _, privacy = kind("budgets that differ")
    privacy["parties"] = sample_parties(4)
    privacy["parties"][2]["budget"] = 8.0
    _, privacy = kind("noise at the parties")
    privacy["noise"]["place"], privacy["trust_model"] = "parties", "distributed"
    privacy["mechanism"]["shares"] = 37
    privacy["views"]["coordinator"] = {
        "epsilon": 4.4375,
        "method": "RDP of every opened row",
        "holds_for": "the coordinator, even with hospitals",
    }
    _, privacy = kind("votes in the clear")
    privacy["sum"] = "plain"
    metrics, privacy = kind("verified sums")
    told(metrics, privacy, ended_of(terms_of("verified sums"), *BATCHES))
    kinds["verified sums"]["settings"] |= {"form": "verified", "noise": "aggregators"}
    metrics, privacy = kind("records that vote")
    told(metrics, privacy, ended_of(terms_of("records that vote"), (30, 30, 30)))
    metrics["queries"].update(answered=30, refused=0)
    kinds["records that vote"]["settings"] |= {
        **{"label": "sick", "classes": ["no", "yes"], "data": "csv", "class_balance": "auto"},
        **{"teacher": "neighbors", "patient_votes": 3},
    }
    metrics, privacy = kind("void batches, queries not asked, a student worse than a hospital")
    metrics["queries"].update(void=15, not_asked=3)
    metrics["scores"]["student"]["accuracy"] = 0.41
    metrics["warnings"] = ["the first", "the second"]
    privacy["per_instance"]["epsilon"] = 6.0
    privacy["ledger"] += [
        {"batch": 3, "state": "forfeited", "asked": 0, "answered": 0, "charged": 15},
        {"batch": 4, "state": "cancelled", "asked": 0, "answered": 0, "charged": 0},
    ]
    metrics, privacy = kind("nothing refused")
    metrics["queries"].update(answered=30, refused=0)
    metrics, privacy = kind("nothing measured")
    metrics["label_accuracy"], metrics["per_class"] = None, {}
    metrics["scores"] = dict.fromkeys(metrics["scores"])
    privacy["ledger"], privacy["unprotected"] = [], []
    privacy["views"]["public"]["epsilon"] = None
    for name in SPECS:
        is_private = name != "immutable"
        metrics, privacy = kind(name, method=COMPOSED_METHOD if is_private else NO_BOUND_METHOD)
        metrics["queries"]["reinforced"] = 6 if name.startswith("interactive") else 0
        privacy["mechanism"].update(MECHANISMS[name], name=name)
    return kinds


BATCHES = ((15, 15, 11), (15, 15, 11))


def told(metrics: dict[str, Any], privacy: dict[str, Any], ended: EndedRun) -> None:
    """Tell a run's cost as a simulation does, from terms and ledger."""
    of_run = privacy_table(ended=ended, sealing="Messages are sealed.", seed=None, simulated=True)
    privacy.update(of_run.as_json())
    weights = ended.terms.weights
    metrics |= {"parties": len(weights), "teachers": sum(one.teachers for one in weights)}


class TestReports:
    @pytest.fixture(autouse=True)
    def plots_are_words(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for draw in ("classes_plot",):
            monkeypatch.setattr(
                plots, draw, lambda *_, summary, **__: f"<svg><desc>{summary}</desc></svg>"
            )

    def hold_kinds(self, name: str, render: Callable[[dict[str, Any]], str]) -> None:
        """Hold the usual run's words, and what each other kind says otherwise."""
        texts = {kind: render(run) for kind, run in kinds_of_runs().items()}
        usual = texts.pop("usual")
        others = {kind: changed_lines(text, usual) for kind, text in texts.items()}
        hold(name, f"{usual}\n\n{sections(others)}")

    def test_the_report(self, tmp_path: Path) -> None:
        self.hold_kinds(
            "report",
            lambda run: words_of(render_report(self.written(tmp_path, run))),
        )

    def test_the_annexes(self, tmp_path: Path) -> None:
        self.hold_kinds(
            "report-annexes",
            lambda run: words_of(render_annexes(self.written(tmp_path, run))),
        )

    def written(self, tmp_path: Path, run: dict[str, Any]) -> Any:
        written = write_sample(tmp_path / f"run{len(list(tmp_path.iterdir()))}", **run)
        changed = {"seed": run["settings"].get("seed")}
        if run["privacy"]["sum"] == "verified":
            changed |= {"run_id": "", "transcript_head": ""}
        return replace(written, manifest=written.manifest.changed(**changed))

    def test_the_summary_at_the_terminal(self) -> None:
        self.hold_kinds(
            "report-summary",
            lambda run: render_summary(
                metrics_of(run["metrics"]), privacy_of(run["privacy"]), "runs/a"
            ),
        )

    def test_the_model_card(self) -> None:
        self.hold_kinds(
            "report-model-card",
            lambda run: render_model_card(
                metrics_of(run["metrics"]),
                privacy_of(run["privacy"]),
                settings_of(run["settings"]),
            ),
        )
