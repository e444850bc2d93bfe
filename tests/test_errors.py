"""One rule for all errors: each shows what was typed, where it is public, and nothing private."""

from __future__ import annotations

import ast
import inspect
import re
import typing
from collections.abc import Iterator
from dataclasses import fields
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from coordinator.cli import command
from coordinator.errors import CoordinatorError
from coordinator.simulation.simulated_federation import SimulatedFederation
from party.errors import PartyError, Reason, RefusalError
from party.site.policy import Policy, Rules
from pate_fed.accounting.ranges import RANGES
from pate_fed.errors import (
    BudgetExhaustedError,
    CodedError,
    InvalidParameterError,
    NoLabelError,
    PateFedError,
    Shown,
)
from pate_fed.options import OPTIONS
from pate_fed.rule import Caps, Rule
from pate_fed.terms import BatchTerms, RunTerms
from pate_fed.votes import NoiseShare, SummedHistogram, VoteHistogram
from protocols.dealing import Dealt
from protocols.envelope import SealingKey
from protocols.identity import SigningIdentity
from protocols.pair_keys import PairRoots
from tests.support.command import Command, pate_fed

__all__ = ["pate_fed"]

ROOT = Path(__file__).parents[1]
PACKAGES = ("pate_fed", "party", "coordinator")
PAGE = (ROOT / "docs" / "reference" / "errors.md").read_text("utf-8")
BASES = (CodedError, PateFedError, PartyError, CoordinatorError)


def below(kind: type[CodedError]) -> Iterator[type[CodedError]]:
    """Every product class below one, however deep."""
    for each in kind.__subclasses__():
        if each.__module__.split(".")[0] in PACKAGES:
            yield each
        yield from below(each)


ALL = sorted({*below(CodedError)}, key=lambda kind: kind.__name__)
FACTS: dict[str, dict[str, Any]] = {
    "AlteredResultsError": {"file": "labels.csv"},
    "BrokenAuditLogError": {"number": 2},
    "BrokenSiteLogError": {"number": 2},
    "BrokenTranscriptError": {"line": 3, "kind": "plan"},
    "PartyFailedError": {"party": "North", "cause": "PF-301"},
    "PartyRefusedError": {"party": "North", "cause": "PF-301"},
    "RowSumError": {"row": 1},
    "TallyRefusedError": {"reason": "PF-453"},
    "SpoiledBatchError": {"reservation": "cancelled", "named": ("North",)},
    "VoidBatchError": {"reservation": "cancelled"},
}
"""Facts beside a rule and a value, by class."""
MADE_OF_FACTS = (BudgetExhaustedError, NoLabelError)
MADE_OF_A_RULE = [kind for kind in ALL if kind not in MADE_OF_FACTS]


def made(kind: type[CodedError], *said: Any) -> CodedError:
    if kind is RefusalError:
        return RefusalError(Reason.BUDGET, *said)
    return kind(*said, **FACTS.get(kind.__name__, {}))


def test_walk_finds_every_class_of_the_packages() -> None:
    written = {
        node.name
        for package in PACKAGES
        for node in ast.parse((ROOT / package / "errors.py").read_text("utf-8")).body
        if isinstance(node, ast.ClassDef)
    }
    assert {kind.__name__ for kind in ALL} == written - {"CodedError", "Reason"}
    assert len(ALL) > 80


def test_every_class_has_a_code_of_its_own_on_the_page_of_errors() -> None:
    codes = {kind: vars(kind).get("code", "") for kind in ALL if kind is not RefusalError}
    assert len({*codes.values(), *map(str, Reason)}) == len(codes) + len(Reason)
    unknown = {kind.__name__: code for kind, code in codes.items() if f"**{code}**" not in PAGE}
    assert unknown == {}


@pytest.mark.parametrize("kind", MADE_OF_A_RULE, ids=lambda kind: kind.__name__)
def test_a_message_says_the_rule_and_the_value_where_one_is_given(kind: type[CodedError]) -> None:
    error = made(kind, "a must hold", "many")
    assert re.search(r"a must hold, got .*many", str(error)), str(error)
    assert error.got.startswith("many")
    alone = made(kind, "a must hold")
    assert "a must hold" in str(alone)
    assert not alone.got or kind.__name__ in FACTS


SECRETS = [
    *(b"key", bytearray(b"key"), memoryview(b"key"), (1, 2), [1], {1: 2}, {1}, 1j),
    *(np.int64(3), np.arange(3), VoteHistogram(np.array([[2, 1]])), ValueError("a cell")),
    *(SummedHistogram(np.array([[2, 1]]), total_votes=3), SigningIdentity.generate()),
    *(SealingKey(), PairRoots(bytes(32), {}), np.datetime64("2026-01-01"), object()),
]


@pytest.mark.parametrize("secret", SECRETS, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("kind", MADE_OF_A_RULE, ids=lambda kind: kind.__name__)
def test_of_a_secret_type_an_error_shows_the_name_alone(
    kind: type[CodedError], secret: Any
) -> None:
    shown = str(made(kind, "a must hold", secret))
    assert f"a {type(secret).__name__}" in shown
    assert repr(secret) not in shown


def test_no_class_widens_the_types_that_an_error_shows() -> None:
    """The type checker proves it for every site."""
    secret = (VoteHistogram, SummedHistogram, NoiseShare, Dealt, SigningIdentity, np.ndarray, bytes)
    allowed = typing.get_args(Shown)
    assert not any(issubclass(kind, one) for kind in secret for one in allowed)
    for kind in [CodedError, *MADE_OF_A_RULE]:
        got = inspect.signature(kind.__init__).parameters["got"]
        assert got.annotation == "Shown", kind.__name__


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        pytest.param(0.0, "0", id="zero"),
        pytest.param(-1.0, "-1", id="negative"),
        pytest.param(1e-5, "1e-05", id="small"),
        pytest.param(float("nan"), "nan", id="nan"),
        pytest.param(float("inf"), "inf", id="infinite"),
        pytest.param(10**5000, "a longer number", id="thousands of digits"),
        pytest.param(-(10**20), "a longer number", id="negative and long"),
        pytest.param(date(2026, 1, 2), "2026-01-02", id="date"),
        pytest.param(Path("a/b"), "a/b", id="path"),
        pytest.param(None, "nothing", id="nothing"),
    ],
)
def test_a_value_is_shown_as_it_is_typed(value: Any, shown: str) -> None:
    assert str(InvalidParameterError("a must hold", value)) == f"a must hold, got {shown}"


# Every site ------------------------------------------------------------------------------------


NAMES = {kind.__name__ for kind in ALL} | {base.__name__ for base in BASES}


def sites() -> dict[str, ast.Call]:
    """Every error that the packages make, by its place."""
    return {
        f"{path.relative_to(ROOT)}:{node.lineno}:{node.col_offset}": node
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if path.name != "errors.py"
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in NAMES
    }


SETTINGS = {
    *OPTIONS,
    *RANGES,
    *(one.name for kind in (Caps, Rule, RunTerms, BatchTerms) for one in fields(kind)),
    *(one.name for kind in (Rules, Policy) for one in fields(kind)),
}
"""Names of what people set and of a run's terms: each is public, or its owner's own."""

NAMES_OF_SIZES = {
    *("shape", "dtype", "ndim", "count", "copies", "days", "hours", "lifetime", "patience"),
    *(
        "rarest",
        "fewest",
        "least",
        "poor",
        "lost",
        "length",
        "lengths",
        "size",
        "units",
        "patients",
    ),
    *(
        "least",
        "trials",
        "alarms",
        "cases",
        "models",
        "rows",
        "records",
        "lowest",
        "free",
        "places",
    ),
    *("row_sum_bound", "total_votes", "votes", "unit_patients", "new_queries", "labels", "most"),
    *("kept", "left", "budget", "senders", "components", "features", "seats", "strange"),
}
"""Of public things, or of the user's own table where it is the user who reads the error."""

NAMES_OF_PLACES = {
    *("line", "line_num", "row", "number", "start", "stop", "version", "status_code"),
    *("path", "file", "folder", "parent", "out", "target", "above", "place"),
    *("host", "address", "ports", "issuer", "mode", "strerror", "origin", "head"),
}
NAMES_OF_PEOPLE_AND_THINGS = {
    *("name", "names", "party", "federation", "owner", "user", "subject", "person", "role"),
    *("column", "file", "kind", "type", "__name__", "code", "must", "got", "reason", "why", "said"),
    *(
        "state",
        "states",
        "entry_id",
        "teacher",
        "one",
        "other",
        "differing",
        "digests",
        "strangers",
        "law",
    ),
    *(
        "missing",
        "others",
        "method",
        "scheme",
        "balance",
        "options",
        "words",
        "wrong",
        "open_rules",
    ),
    *(
        "budget_words",
        "known",
        "elsewhere",
        "chosen_from",
        "text",
        "then",
        "failed",
        "advice",
        "settled",
        "taken_for",
        "scopes",
        "unknown",
        "returncode",
        "command",
        "differs",
        "module",
    ),
}
NUMBERS_OF_A_CALL = {
    *(
        "value",
        "values",
        "bound",
        "mu",
        "margin",
        "mixed",
        "constant",
        "share",
        "distance",
        "order",
    ),
    *("concentration", "additive_delta", "answered", "error", "fixed", "now", "public", "stated"),
    *("found", "came", "teacher_accuracy", "threshold", "delta_for_tests", "first", "more"),
}
PUBLIC = (
    SETTINGS | NAMES_OF_SIZES | NAMES_OF_PLACES | NAMES_OF_PEOPLE_AND_THINGS | NUMBERS_OF_A_CALL
)
"""What an error may show, by its name; each was looked at where it is shown."""

SAFE = {"len", "type", "place_of", "minute", "option_of", "whose_words", "_flags", "_nearest"}
"""Functions whose result may be shown, whatever they are given."""

PASSING = {
    "str",
    "repr",
    "ascii",
    "int",
    "sorted",
    "set",
    "map",
    "said",
    "rstrip",
    "get",
    "join",
    "max",
    "min",
}
"""Functions whose result may be shown if what they are given may."""


def is_public(node: ast.expr) -> bool:
    match node:
        case ast.Constant():
            return True
        case ast.JoinedStr(values=parts) | ast.BoolOp(values=parts):
            return all(map(is_public, parts))
        case ast.FormattedValue(value=inner) | ast.Starred(value=inner):
            return is_public(inner)
        case ast.UnaryOp(operand=inner) | ast.GeneratorExp(elt=inner) | ast.Subscript(value=inner):
            return is_public(inner)
        case ast.IfExp(body=left, orelse=right) | ast.BinOp(left=left, right=right):
            return is_public(left) and is_public(right)
        case ast.Call(func=ast.Name(id=name), args=given):
            return name in SAFE or (name in PASSING and all(map(is_public, given)))
        case ast.Call(func=ast.Attribute(attr="keys", value=of)):
            return is_public(of)
        case ast.Call(func=ast.Attribute(attr=name, value=of), args=given):
            return name in PASSING and all(map(is_public, [of, *given]))
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name in PUBLIC | PASSING or name.isupper()
        case _:
            return False


def shown_at(call: ast.Call) -> list[ast.expr]:
    after = 2 if ast.unparse(call.func).endswith("RefusalError") else 1
    return [*call.args[after:], *(each.value for each in call.keywords if each.arg == "got")]


def test_an_error_shows_public_names_alone_at_every_site() -> None:
    found = sites()
    private = {
        place: ast.unparse(shown)
        for place, call in found.items()
        for shown in shown_at(call)
        if not is_public(shown)
    }
    assert private == {}
    assert len(found) > 900


def test_every_site_says_a_rule() -> None:
    """A rule is a text of this program, or another error's."""
    silent = {
        place: ast.unparse(call)
        for place, call in sites().items()
        if ast.unparse(call.func).split(".")[-1] not in {kind.__name__ for kind in MADE_OF_FACTS}
        and not call.args
    }
    assert silent == {}


# Every option -----------------------------------------------------------------------------------

BAD = ("0", "-1", "nan", "many", "")
TAKEN = {
    ("plan", "--vote-threshold"): {"0"},
    ("plan", "--expected-dropouts"): {"0"},
    ("account", "--vote-threshold"): {"0", "-1"},
    ("simulate", "--seed"): {"0"},
    ("simulate", "--vote-threshold"): {"0"},
    ("simulate", "--confidence"): {"0"},  # a number for another mechanism
}
"""Values of `BAD` that are good, by command and option."""

FREE_TEXT = {
    *("--config", "--after", "--data-dir", "--data-file", "--label", "--patient-id", "--hospital"),
    *("--missing", "--map", "--ignore-file", "--drop-unlabeled"),
    *("--ignore", "--positive", "--separator", "--evaluate-by", "--purpose", "--out", "--plot"),
    *("--pool", "--predictions", "--format", "--evaluation-epsilon", "--help"),
}
"""Options of files, columns and texts, where most values are good; one needs another option."""

OF_OTHER_MECHANISMS = {"--sigma1", "--confidence", "--test-delta", "--max-answers"}
COMMANDS = typer.main.get_command(command.app).commands  # type: ignore[attr-defined]
OPTIONS_TRIED = [
    (name, option.opts[0])
    for name in ("plan", "account", "simulate")
    for option in COMMANDS[name].params
    if option.opts[0].startswith("--")
    and option.opts[0] not in FREE_TEXT
    and not (name == "account" and option.opts[0] in OF_OTHER_MECHANISMS)
]


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, object]]:
    """Arguments without a fault, by command. Nothing is trained."""
    votes = tmp_path / "votes.npy"
    np.save(votes, np.array([[9, 1], [8, 2], [3, 7]]))

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a bad value was taken")

    monkeypatch.setattr(SimulatedFederation, "made", refuse)
    return {
        "plan": {"--parties": 5, "--teachers": 20},
        "account": {"": votes, "--vote-threshold": 1, "--sigma2": 1},
        "simulate": {"--data": "digits", "--out": tmp_path / "run"},
    }


def test_the_table_has_every_option() -> None:
    assert len(OPTIONS_TRIED) > 50
    assert {*TAKEN} <= {*OPTIONS_TRIED}


@pytest.mark.parametrize(
    ("name", "option"), OPTIONS_TRIED, ids=[" ".join(one) for one in OPTIONS_TRIED]
)
def test_an_error_of_an_option_shows_the_value_that_was_typed(
    pate_fed: Command, arguments: dict[str, dict[str, object]], name: str, option: str
) -> None:
    for value in BAD:
        if value in TAKEN.get((name, option), ()):
            continue
        given = {key: one for key, one in arguments[name].items() if key != option}
        words = [word for pair in given.items() for word in pair if word]
        ended = pate_fed(name, *words, option, value)
        assert ended.code not in (0, 1), (value, ended)
        assert ended.error_code in {"PF-101", "PF-105", "PF-402", "PF-106"}, ended.err
        shown = rf"(?:got |'|\(|: ){re.escape(value)}(?:'| |\n|\.|,|\))" if value else "''"
        assert re.search(shown, ended.err), ended.err
