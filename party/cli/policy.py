"""This hospital's policy at the command line: every rule with its meaning, and setting one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

import typer

from party.cli.console import (
    DEFAULT_SITE,
    ByOption,
    FederationOption,
    FormatOption,
    OpenSite,
    SiteOption,
    decider,
    open_records,
    open_site,
    show,
)
from party.errors import RecordError, UsageError
from party.site.folder import SETTINGS_FILE, Site, SiteSettings
from party.site.membership import MembershipSettings
from party.site.policy import Policy
from pate_fed.accounting.statement import NoisePlace, PrivacyUnit
from pate_fed.mechanisms import DEPLOYED
from pate_fed.nodes import Format
from protocols.envelope import SUITES
from protocols.forms import DEPLOYED_FORMS

_MOST_LETTERS: Final = 200


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule, for people.

    Attributes:
        meaning: Its meaning, in one line.
        least: Smallest number that can be meant; None for no number.
        most: Largest.
        choices: All that a list may name, or a text be; empty if it may be anything.
    """

    meaning: str
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()


RULES: Final[Mapping[str, Rule]] = {
    "least_parties": Rule("fewest hospitals of a run, ours among them", 3),
    "least_checked_peers": Rule("fewest other bodies of a run whose words our people checked", 2),
    "least_colluders": Rule("fewest hospitals that may help the coordinator to lie, in vain", 1),
    "operator_body": Rule("body that runs the coordinator: its hospitals count as its allies"),
    "forms": Rule("secure sums that we take part in", choices=tuple(DEPLOYED_FORMS)),
    "suites": Rule("sealing suites that we accept", choices=tuple(sorted(SUITES))),
    "mechanisms": Rule("ways from votes to labels", choices=DEPLOYED),
    "noise_places": Rule("who may add the noise", choices=get_args(NoisePlace)),
    "units": Rule(
        "the privacy unit of a price: a patient (record) or a hospital (party)",
        choices=get_args(PrivacyUnit),
    ),
    "least_sigma1": Rule("least noise of the threshold check, votes per vote of one patient", 0),
    "least_sigma2": Rule("least noise of each count, votes per vote of one patient", 0),
    "most_queries": Rule("most queries that we ever answer, over all runs", 0),
    "near_distance": Rule(
        "up to which part of their length two queries may differ and be near", 0, 0.5
    ),
    "most_near_queries": Rule("most queries near to one answered before, over all runs", 0),
    "most_epsilon": Rule("largest epsilon that one run may cost", 0),
    "most_delta": Rule("largest delta of a run", 0, 1),
    "trusts_valid_votes": Rule("whether all hospitals are trusted to send valid votes"),
}
"""Rules of `party.decision.guard.Policy` that an owner can set, in their order there."""

SETTINGS: Final[Mapping[str, Rule]] = {
    "approval": Rule("a person approves each run, or a pool", choices=("each run", "pool")),
    "lifetime_epsilon": Rule(
        "most epsilon for one patient, over all runs; fixed at the first start"
    ),
    "delta": Rule("delta of that number; fixed at the first start"),
    "delta_for_tests": Rule(
        "part of delta kept for tests of stability (stable-*); fixed at the first start", 0
    ),
    "teachers": Rule("teachers that are trained here; the operator approves that number"),
    "node_port": Rule("port on loopback between the node's two processes, one per federation"),
}
"""Settings beside them that an owner decides on; their values are checked by `SiteSettings`, and of
the port by `MembershipSettings`.
"""

_PORT: Final = "node_port"

policy_app = typer.Typer(
    help="This hospital's rules.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    suggest_commands=False,
)


@policy_app.callback()
def policy() -> None:
    """This hospital's rules."""


@policy_app.command("show")
def show_policy(site: SiteOption = DEFAULT_SITE, output_format: FormatOption = Format.TEXT) -> None:
    """Show every rule of the guard: its value, the value's origin, its meaning."""
    settings = open_site(site).settings
    allowed = settings.policy_for(frozenset())
    rules: dict[str, Any] = {}
    for name in RULES:
        value = getattr(allowed, name)
        rules[name] = sorted(value) if isinstance(value, frozenset) else value
    others: dict[str, Any] = {name: getattr(settings, name) for name in SETTINGS if name != _PORT}
    others[_PORT] = {name: one.node_port for name, one in settings.memberships.items()}
    show(
        output_format,
        {
            "policy": rules,
            "set_here": sorted(settings.policy),
            "meanings": {name: rule.meaning for name, rule in {**RULES, **SETTINGS}.items()},
            **others,
        },
        (
            *(
                f"{name:20} {_words(value)}{'' if name in settings.policy else '  (default)'}"
                f"  - {RULES[name].meaning}"
                for name, value in rules.items()
            ),
            *(
                f"{name:20} {_words(value)}  - {SETTINGS[name].meaning}"
                for name, value in others.items()
            ),
        ),
    )


@policy_app.command("set")
def set_rule(  # noqa: PLR0917 - one argument per option
    name: Annotated[str, typer.Argument(metavar="RULE", help="Its name in `policy show`.")],
    value: Annotated[
        str, typer.Argument(metavar="VALUE", help="Its new value; a list with commas.")
    ],
    federation: FederationOption = None,
    by: ByOption = None,
    site: SiteOption = DEFAULT_SITE,
    output_format: FormatOption = Format.TEXT,
) -> None:
    """Set one rule; it is recorded, and takes effect at the node's next start.

    Rules hold in every federation, except `node_port`, which belongs to one.
    """
    who = decider(by)
    with open_records(site) as opened:
        changed = _changed(opened.site, name, value, federation)
        _require_same_budget(opened, changed)
        saved = opened.site.save(changed)
        digest = hashlib.sha256(saved.path(SETTINGS_FILE).read_bytes()).digest()
        opened.records.standing.note_rule(name, value, file=digest, by=who)
    now = _value(changed, name, saved.membership(federation).name if name == _PORT else "")
    show(
        output_format,
        {"rule": name, "value": now, "by": who},
        (f"{name} is {_words(now)}, by {who}. It holds from the next start of the node.",),
    )


def _value(settings: SiteSettings, name: str, membership: str) -> Any:
    if membership:
        return settings.memberships[membership].node_port
    return settings.policy[name] if name in RULES else getattr(settings, name)


def _changed(site: Site, name: str, text: str, federation: str | None) -> SiteSettings:
    settings = site.settings
    rule = {**RULES, **SETTINGS}.get(name)
    if rule is None:
        raise UsageError("a rule must be one that `pate-party policy show` lists", repr(name))
    if not (text.isprintable() and len(text) <= _MOST_LETTERS):
        raise UsageError(f"{name} must be at most {_MOST_LETTERS} letters on one line", "others")
    if name == _PORT:
        joined = site.membership(federation)
        port = _read(name, rule, text, get_type_hints(MembershipSettings)[name])
        return settings.with_port(joined.name, port)
    if federation is not None:
        raise UsageError(f"{name} must be set without --federation: it holds in all", federation)
    hints = get_type_hints(Policy if name in RULES else SiteSettings)
    value = _read(name, rule, text, hints[name])
    if name in RULES:
        return replace(settings, policy={**settings.policy, name: value})
    return replace(settings, **{name: value})


def _read(name: str, rule: Rule, text: str, hint: Any) -> Any:
    if get_origin(hint) is frozenset:
        return sorted(_named(name, rule, {one.strip() for one in text.split(",")}))
    if hint is str:
        return next(iter(_named(name, rule, {text})))
    if hint is bool:
        return _named(name, Rule("", choices=("true", "false")), {text.lower()}) == {"true"}
    return _number(name, rule, text, float if hint is float else int)


def _named(name: str, rule: Rule, words: set[str]) -> set[str]:
    if rule.choices and not words <= set(rule.choices):
        raise UsageError(
            f"{name} must be of {', '.join(rule.choices)}",
            ", ".join(sorted(words - set(rule.choices))) or "nothing",
        )
    return words


def _number(name: str, rule: Rule, text: str, kind: type[int] | type[float]) -> int | float:
    least = -float("inf") if rule.least is None else rule.least
    most = float("inf") if rule.most is None else rule.most
    try:
        value = kind(text)
        is_good = least <= value <= most and abs(value) != float("inf")
    except ValueError:
        is_good = False
    if not is_good:
        words = "a number" if kind is float else "a whole number"
        bounds = "" if rule.least is None else f", at least {rule.least:g}"
        bounds += "" if rule.most is None else f" and at most {rule.most:g}"
        raise UsageError(f"{name} must be {words}{bounds}", repr(text))
    return value


def _require_same_budget(opened: OpenSite, settings: SiteSettings) -> None:
    """Refuse another budget for life than the one that was opened: no node would start on it."""
    from party.storage import read_ledger  # noqa: PLC0415 - keeps --help fast

    wanted = settings.new_ledger()
    ledger = read_ledger(opened.database, budget=wanted)
    if replace(ledger, entries=()) != wanted:
        raise RecordError(
            "the budget for life must stay as it was at the node's first start",
            f"{wanted.budget_words} after {ledger.budget_words}",
        )


def _words(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return ", ".join(f"{one} ({name})" for name, one in value.items()) or "none"
    return "none" if value in ("", None) else str(value)
