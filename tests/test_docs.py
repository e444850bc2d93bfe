"""The documentation holds what it says: links, commands, codes, keys, diagrams, examples, tests."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import fields as dataclass_fields
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import typer

from coordinator.cli import app as coordinator_app
from coordinator.cli.terminal import LINE as COORDINATOR_LINE
from coordinator.errors import CoordinatorError
from party.cli import app as party_app
from party.cli.policy import MEMBERSHIP_SETTINGS, RULES, SETTINGS
from party.cli.terminal import LINE as PARTY_LINE
from party.errors import PartyError, Reason, RefusalError
from party.site.membership import MembershipSettings
from party.site.policy import Policy
from party.site.site import SiteSettings
from pate_fed.data import DataSource, load_dataset
from pate_fed.data.stored_preprocessing import write_preprocessing
from pate_fed.errors import PateFedError
from pate_fed.nodes.command_line import CommandLine
from pate_fed.planning import DEFAULTS
from pate_fed.record import TABLES
from pate_fed.students import Lesson, train_student
from protocols.errors import ProtocolError
from protocols.fields import Message
from protocols.rounds import COORDINATOR_TRANSITIONS, PARTY_TRANSITIONS
from protocols.verified import COORDINATOR_CHECKS, TALLY_CHECKS
from protocols.wire import MESSAGE_TYPES
from tests.support import record_tables
from tests.support.markers import sampled

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
INDEX = DOCS / "README.md"
ABOUT = tuple(
    ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
)
PAGES = (*ABOUT, *sorted(DOCS.rglob("*.md")))
PROGRAMS = {
    "pate-fed": typer.main.get_command(coordinator_app),
    "pate-party": typer.main.get_command(party_app),
}

every_page = pytest.mark.parametrize(
    "page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES]
)

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def fenced(page: Path, language: str) -> list[str]:
    return [body for found, body in FENCE.findall(read(page)) if found == language]


def prose(page: Path) -> str:
    return FENCE.sub("", read(page))


def local_links(page: Path) -> list[tuple[Path, str]]:
    """Linked file and anchor of every link that stays in the repository."""
    links = [link for link in LINK.findall(prose(page)) if "://" not in link]
    split = [link.partition("#")[::2] for link in links]
    return [((page.parent / path).resolve() if path else page, anchor) for path, anchor in split]


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


# Pages and links --------------------------------------------------------------------------------


@sampled()
@every_page
def test_every_link_leads_somewhere(page: Path) -> None:
    for target, anchor in local_links(page):
        assert target.is_relative_to(ROOT), target
        assert target.is_file(), target
        assert not anchor or anchor in anchors(target), f"{target}#{anchor}"


def test_every_page_can_be_reached_from_the_index() -> None:
    reached, waiting = set(), [INDEX]
    while waiting:
        page = waiting.pop()
        if page not in reached:
            reached.add(page)
            waiting += [target for target, _ in local_links(page) if target.suffix == ".md"]
    assert not set(PAGES) - reached


@every_page
def test_no_page_names_a_place_of_somebodys_machine(page: Path) -> None:
    places = re.findall(r"(?<![\w.])/(?:work|tmp|root|home|opt|usr|mnt|Users)\b", read(page))
    assert not places
    assert "shared/" not in read(page)


@every_page
def test_every_table_row_has_as_many_cells_as_its_head(page: Path) -> None:
    width = 0
    for line in prose(page).splitlines():
        cells = line.count("|") - 1 if line.startswith("|") else 0
        assert not (cells and width) or cells == width, line
        width = cells


# Commands ---------------------------------------------------------------------------------------


def shown_commands() -> list[tuple[Path, list[str]]]:
    shown = []
    for page in PAGES:
        for block in fenced(page, "sh"):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if words and words[0] in PROGRAMS:
                    shown.append((page, words))
    return shown


COMMANDS = shown_commands()


@pytest.mark.parametrize(
    "words", [pytest.param(words, id=" ".join(words)) for _, words in COMMANDS]
)
def test_every_shown_command_parses(words: list[str]) -> None:
    group = PROGRAMS[words[0]]
    assert isinstance(group, click.Group)
    outer = group.make_context(words[0], words[1:])
    name, command, rest = group.resolve_command(outer, [*outer._protected_args, *outer.args])
    assert command is not None
    assert command.make_context(name, rest, parent=outer) is not None


def test_commands_are_shown_where_readers_begin() -> None:
    pages = {page for page, _ in COMMANDS}
    assert DOCS / "tutorial" / "first-run.md" in pages
    assert len(COMMANDS) >= 8
    made = set(
        re.findall(r"^make ([a-z-]+)", "\n".join(fenced(ROOT / "README.md", "sh")), re.MULTILINE)
    )
    assert made == {"demo", "federation-demo"}
    assert made <= set(re.findall(r"^([a-z-]+):", read(ROOT / "Makefile"), re.MULTILINE))


def test_the_readme_is_read_on_one_screen() -> None:
    page = read(ROOT / "README.md")
    assert len(page.split()) <= 450
    assert len(page.partition("| against |")[2].partition("\n\n")[0].split()) <= 130


def options_of(command: click.Command) -> set[str]:
    found = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
    commands = command.commands.values() if isinstance(command, click.Group) else ()
    return {name for name in found if name.startswith("-")}.union(*map(options_of, commands))


def test_every_option_named_in_the_text_exists() -> None:
    known = set().union(*map(options_of, PROGRAMS.values())) | {"--help"}
    for page in PAGES:
        for quoted in re.findall(r"`([^`\n]+)`", prose(page)):
            named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", quoted))
            assert named <= known, f"{page.name}: {sorted(named - known)}"


def test_the_reference_lists_every_option() -> None:
    page = read(DOCS / "reference" / "command-line.md")
    listed = set(re.findall(r"`(--?[a-z][a-z0-9-]*)`", page))
    assert set().union(*map(options_of, PROGRAMS.values())) <= listed


def test_the_reference_lists_every_choice_of_an_option() -> None:
    page = read(DOCS / "reference" / "command-line.md")
    section = page.partition("\n## `pate-fed report RUN_DIR`")[0]
    rows = {
        name: row
        for row in re.split(r"\n(?=- |\n)", section)
        for name in re.findall(r"^- `(--[a-z0-9-]+)`", row)
    }
    group = PROGRAMS["pate-fed"]
    assert isinstance(group, click.Group)
    for param in group.commands["simulate"].params:
        if isinstance(param.type, click.Choice):
            for choice in param.type.choices:
                word = getattr(choice, "value", choice)
                assert f"`{word}`" in rows[param.opts[0]], f"{param.opts[0]} {word}"


def test_the_reference_has_the_defaults_of_every_data_set() -> None:
    page = read(DOCS / "reference" / "command-line.md")
    for name, known in DEFAULTS.items():
        threshold = (
            "share of n"
            if "threshold" not in known.parameters
            else ", ".join(f"{value:g}" for value in known.parameters["threshold"].values())
        )
        assert known.at_parties == known.parameters
        cells = [
            f"`{name}`",
            str(known.parties),
            "by records" if known.teachers is None else str(known.teachers),
            str(known.queries),
            f"`{known.mechanism}`",
            threshold,
            "fills the budget" if known.fills_budget else "share of n",
        ]
        assert f"| {' | '.join(cells)} |" in page


# Errors, keys, messages -------------------------------------------------------------------------


def codes_of(error: type[Exception]) -> set[str]:
    code: str = vars(error).get("code", "")
    return ({code} if code else set()).union(*map(codes_of, error.__subclasses__()))


def test_the_reference_explains_every_code_and_no_other() -> None:
    page = read(DOCS / "reference" / "errors.md")
    explained = re.findall(r"^- \*\*(PF-\d{3})\*\* \*[^*]+\*\.\s+\S", page, re.MULTILINE)
    bases = (PateFedError, ProtocolError, PartyError, CoordinatorError)
    assert sorted(explained) == sorted(set().union(*map(codes_of, bases)) | set(Reason))


def said_exits(page: str, column: int) -> dict[str, int]:
    """Exit code of each error code and each "other" family in a column of the table of exits."""
    rows = re.findall(r"^\| (\d) \| (.*) \| (.*) \|$", page, re.MULTILINE)
    return {name: int(row[0]) for row in rows for name in row[column].split(", ")}


def classes_of(error: type[Exception]) -> list[type[Exception]]:
    return [error, *(one for kind in error.__subclasses__() for one in classes_of(kind))]


@pytest.mark.parametrize(
    ("line", "column", "bases"),
    [
        pytest.param(
            COORDINATOR_LINE, 1, (PateFedError, ProtocolError, CoordinatorError), id="fed"
        ),
        pytest.param(PARTY_LINE, 2, (PateFedError, ProtocolError, PartyError), id="party"),
    ],
)
def test_the_reference_has_the_exit_code_of_every_error(
    line: CommandLine, column: int, bases: tuple[type[Exception], ...]
) -> None:
    said = said_exits(read(DOCS / "reference" / "errors.md"), column)
    for kind in (one for base in bases for one in classes_of(base)):
        if kind is RefusalError:
            assert line.exit_code_of(kind.__new__(kind)) == said["public PF-3xx"]
        elif code := vars(kind).get("code"):
            expected = said[code] if code in said else said[f"other {code[:4]}xx"]
            assert line.exit_code_of(kind.__new__(kind)) == expected, code


def test_every_code_named_in_the_text_exists() -> None:
    explained = set(re.findall(r"PF-\d{3}", read(DOCS / "reference" / "errors.md")))
    for page in PAGES:
        assert set(re.findall(r"PF-\d{3}", read(page))) <= explained, page


def test_the_fields_of_a_run_directory_are_those_of_the_record() -> None:
    # Where this fails: python -m tests.support.record_tables
    page = read(record_tables.PAGE)
    assert record_tables.written(page) == page
    assert all(record_tables.marked(file).search(page) for file in TABLES)


def drawn_transitions(block: str) -> set[tuple[str, str, str]]:
    """Arrows of a diagram that messages make; calls of the node end in "()"."""
    arrows = re.findall(r"^ +(\w+) --> (\w+): (\w+)$", block, re.MULTILINE)
    return {(state, message, following) for state, following, message in arrows}


def test_the_diagrams_draw_the_transitions_that_the_code_has() -> None:
    drawn = [drawn_transitions(block) for block in fenced(MESSAGES, "mermaid")]
    tables: list[Mapping[Any, Mapping[type[Message], Any]]] = [
        *(COORDINATOR_CHECKS, TALLY_CHECKS),
        *(PARTY_TRANSITIONS, COORDINATOR_TRANSITIONS),
    ]
    coded = [
        {
            (state.name, message.__name__, following.name)
            for state, row in table.items()
            for message, following in row.items()
        }
        for table in tables
    ]
    assert drawn == coded


MESSAGES = DOCS / "reference" / "messages.md"


def test_the_reference_of_the_python_api_names_what_there_is() -> None:
    page = (DOCS / "reference" / "python.md").read_text("utf-8")
    names = re.findall(r"^::: (\S+)$", page, re.M)
    assert len(names) > 20
    for name in names:
        module, _, thing = name.rpartition(".")
        assert getattr(import_module(module), thing).__doc__, name


def test_the_messages_are_listed_with_their_numbers() -> None:
    listed = re.findall(r"^- \*\*(\d+) (\w+)\*\* \(", read(MESSAGES), re.MULTILINE)
    assert {int(number): name for number, name in listed} == {
        number: kind.__name__ for number, kind in MESSAGE_TYPES.items()
    }


def test_every_test_that_the_threat_model_names_exists() -> None:
    tests = "".join(read(file) for file in (ROOT / "tests").rglob("test_*.py"))
    defined = set(re.findall(r"def (test_\w+)\(", tests))
    named = set(re.findall(r"`(test_\w+)`", read(DOCS / "explanation" / "threat-model.md")))
    assert len(named) > 40
    assert not named - defined


def test_the_threat_model_has_a_row_for_every_rule() -> None:
    page = read(DOCS / "explanation" / "threat-model.md")
    rows = re.findall(r"^\| R(\d+) .*`test_\w+`", page, re.MULTILINE)
    assert sorted({int(number) for number in rows}) == list(range(1, 15))


def rules_of(page: Path) -> dict[str, tuple[str, ...]]:
    """Cells of every table row that begins with a name, by that name."""
    rows = re.findall(r"^\| `(\w+)` \|(.+)\|$", read(page), re.MULTILINE)
    return {name: tuple(cell.strip() for cell in cells.split(" | ")) for name, cells in rows}


def shown_default(value: object) -> str:
    if isinstance(value, frozenset):
        return ", ".join(f"`{one}`" for one in sorted(value)) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value) or "none"


def test_every_rule_of_a_hospitals_guard_is_explained_with_its_default() -> None:
    page = DOCS / "reference" / "policy.md"
    for one in dataclass_fields(Policy):
        assert f"`{one.name}`" in read(page), one.name
    listed, policy = rules_of(page), Policy()
    beside = (*SETTINGS, *MEMBERSHIP_SETTINGS)
    assert set(listed) == {*RULES, *beside}
    for name in RULES:
        assert listed[name][1] == shown_default(getattr(policy, name)), name
    settings = (*dataclass_fields(MembershipSettings), *dataclass_fields(SiteSettings))
    defaults = {one.name: one.default for one in settings}
    for name in beside:
        assert listed[name][1] == shown_default(defaults[name]), name
    for name, cells in listed.items():
        assert len(cells) == 3, name
        assert all(cells), name


def test_what_an_owner_can_set_is_all_that_the_guard_reads_from_the_file() -> None:
    in_no_file = {"approved_pools", "simulated"}
    assert {*RULES} == {one.name for one in dataclass_fields(Policy)} - in_no_file


# Examples ---------------------------------------------------------------------------------------

EXAMPLES = [
    pytest.param(
        body,
        id=f"{page.relative_to(ROOT)} {number}",
        marks=[pytest.mark.slow] if "simulate(" in body else [],  # a whole federation
    )
    for page in PAGES
    for number, body in enumerate(fenced(page, "python"), start=1)
]


@pytest.fixture
def finished_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What examples read: the student of a run in `runs/first`."""
    run = tmp_path / "runs" / "first"
    rng = np.random.default_rng(5)
    data = load_dataset(DataSource("breast-cancer"), rng=rng)
    lesson = Lesson(data.pool.inputs, np.arange(20), data.pool.labels[:20], data.classes)
    train_student("auto", data.kind, lesson, rng=rng).save(run / "student")
    assert data.preprocessing is not None
    write_preprocessing(run / "student", data.preprocessing, class_names=data.class_names)
    monkeypatch.chdir(tmp_path)
    return run


@pytest.mark.parametrize("example", EXAMPLES)
@pytest.mark.usefixtures("finished_run")
def test_every_example_runs(example: str) -> None:
    # What an example claims, it asserts itself.
    exec(compile(example, "example", "exec"), {"__name__": "example"})  # noqa: S102 - ours


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 5


@pytest.mark.usefixtures("finished_run")
def test_the_table_of_the_howto_is_one_that_its_command_can_use() -> None:
    page = DOCS / "how-to" / "bring-your-data.md"
    exec(compile(fenced(page, "python")[0], "example", "exec"), {})  # noqa: S102 - ours
    (words,) = [words for shown, words in COMMANDS if shown == page]
    value = dict(zip(words[2::2], words[3::2], strict=True))
    source = DataSource(
        "csv",
        data_file=Path(value["--data-file"]),
        label_column=value["--label"],
        patient_column=value["--patient-id"],
        hospital_column=value["--hospital"],
    )
    dataset = load_dataset(source, rng=np.random.default_rng(7))
    assert dataset.class_names == ("benign", "malignant")
    assert len(set(dataset.private.hospitals or ())) == 4
