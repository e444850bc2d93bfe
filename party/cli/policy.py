"""This hospital's policy at the command line: every rule with its meaning, and setting one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Annotated, Any, Final

import typer

from party.cli.lifetime_budget import LIFETIME_RULES
from party.cli.terminal import DEFAULT_SITE, ByOption, FederationOption, SiteOption, decider
from party.errors import PartyUsageError, RecordError
from party.owner import OpenSite, open_records, open_site
from party.site.membership import MembershipSettings
from party.site.policy import Rules
from party.site.site import SETTINGS_FILE, Site, SiteSettings
from pate_fed.nodes import meanings, schema_of, typed_in
from pate_fed.nodes.command_line import Commands, show
from pate_fed.regular_files import read_regular
from pate_fed.rule import RECORDS_VOTE
from pate_fed.wording import did_you_mean

_MOST_LETTERS: Final = 200


RULES: Final = tuple(one.name for one in fields(Rules))
"""Rules of the guard that an owner can set, in their order there."""

SETTINGS: Final = (
    "approval",
    *LIFETIME_RULES,
    "teacher_model",
    "device",
    "records_per_teacher",
    "held_out",
)
"""Settings beside them that an owner decides on."""

MEMBERSHIP_SETTINGS: Final = ("node_port", "operator_body")
"""Settings likewise, of one federation each."""

MEANINGS: Final[Mapping[str, str]] = {
    name: known[name][0].lower() + known[name][1:].partition(". ")[0].removesuffix(".")
    for kind, names in (
        (Rules, RULES),
        (SiteSettings, SETTINGS),
        (MembershipSettings, MEMBERSHIP_SETTINGS),
    )
    for known in (meanings(kind),)
    for name in names
}
"""Meaning of each of them, in one line."""

policy_app = Commands("This hospital's rules.")


@policy_app.command("show")
def show_policy(site: SiteOption = DEFAULT_SITE) -> None:
    """Show every rule of the guard: its value, the value's origin, its meaning."""
    settings = open_site(site).settings
    allowed = settings.policy_for(frozenset())
    rules: dict[str, object] = {}
    for name in RULES:
        value = getattr(allowed, name)
        rules[name] = sorted(value) if isinstance(value, frozenset) else value
    others: dict[str, Any] = {name: getattr(settings, name) for name in SETTINGS}
    for name in MEMBERSHIP_SETTINGS:
        others[name] = {at: getattr(one, name) for at, one in settings.memberships.items()}
    show(
        {
            "policy": rules,
            "set_here": sorted(settings.policy),
            "meanings": MEANINGS,
            **others,
        },
        (
            *(
                f"{name:20} {_words(value)}{'' if name in settings.policy else '  (default)'}"
                f"  - {MEANINGS[name]}"
                for name, value in rules.items()
            ),
            *(f"{name:20} {_words(value)}  - {MEANINGS[name]}" for name, value in others.items()),
        ),
    )


@policy_app.command("set")
def set_rules(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="RULE VALUE ...",
            help="Names in `policy show`, each with its new value; a list with commas.",
        ),
    ],
    federation: FederationOption = None,
    by: ByOption = None,
    site: SiteOption = DEFAULT_SITE,
) -> None:
    """Set rules; each is recorded, and takes effect at the node's next start.

    Rules hold in every federation, except `node_port` and `operator_body`, which belong to one; the
    latter takes effect at once.
    """
    who = decider(by)
    typed = _pairs(words)
    with open_records(site) as opened:
        steps = [site_now := opened.site]
        for name, value in typed.items():
            site_now = replace(site_now, settings=_changed(site_now, name, value, federation))
            steps.append(site_now)
        _require_same_budget(opened, site_now.settings)
        # One by one: what the file says is on record, whenever this ends.
        for (name, value), step in zip(typed.items(), steps[1:], strict=True):
            saved = step.save(step.settings)
            digest = hashlib.sha256(read_regular(saved.path(SETTINGS_FILE))).digest()
            before = _words(_value(opened.site, name, federation))
            opened.decisions.state.note_rule(name, value, file=digest, by=who, before=before)
    now = {name: _value(site_now, name, federation) for name in typed}
    show(
        {"rules": now, "by": who},
        (
            *(f"{name} is {_words(value)}, by {who}." for name, value in now.items()),
            "This takes effect at once."
            if typed.keys() == {"operator_body"}
            else "This takes effect when the node starts next.",
        ),
    )


def _pairs(words: list[str]) -> dict[str, str]:
    names = words[::2]
    if len(words) % 2:
        raise PartyUsageError("every rule must come with its value", f"{words[-1]!r} alone")
    if len(set(names)) < len(names):
        raise PartyUsageError("every rule must be set once")
    return dict(zip(names, words[1::2], strict=True))


def _value(site: Site, name: str, federation: str | None) -> Any:
    settings = site.settings
    if name in MEMBERSHIP_SETTINGS:
        return getattr(settings.memberships[site.membership(federation).name], name)
    if name not in RULES:
        return getattr(settings, name)
    usual = getattr(Rules(), name)
    return settings.policy.get(name, sorted(usual) if isinstance(usual, frozenset) else usual)


def _changed(site: Site, name: str, text: str, federation: str | None) -> SiteSettings:
    settings = site.settings
    if name not in MEANINGS:
        raise PartyUsageError(
            f"a rule must be one that `pate-party policy show` lists{did_you_mean(name, MEANINGS)}",
            repr(name),
        )
    if not (text.isprintable() and len(text) <= _MOST_LETTERS):
        raise PartyUsageError(f"{name} must be at most {_MOST_LETTERS} letters on one line")
    if name in MEMBERSHIP_SETTINGS:
        joined = site.membership(federation)
        return settings.with_setting(joined.name, **{name: _typed(joined.settings, name, text)})
    if federation is not None:
        raise PartyUsageError(
            f"{name} must be set without --federation: it holds in all", federation
        )
    if name in RULES:
        value = _typed(Rules(), name, text)
        in_file = sorted(value) if isinstance(value, frozenset) else value
        return replace(settings, policy={**settings.policy, name: in_file})
    if name == "teacher_model":
        text = _teachers(text, settings)
    return replace(settings, **{name: _typed(settings, name, text)})


def _teachers(name: str, settings: SiteSettings) -> str:
    from pate_fed.teachers import TEACHER_NAMES  # noqa: PLC0415 - keeps --help fast
    from pate_fed.teachers.own_teacher import pinned  # noqa: PLC0415 - the same

    names = (*TEACHER_NAMES, RECORDS_VOTE)
    if name not in names and ":" not in name:
        raise PartyUsageError(
            f"teacher_model must be of {', '.join(names)}, or MODULE:FUNCTION", repr(name)
        )
    return pinned(name, settings.data_folders)


def _typed(known: Rules | SiteSettings | MembershipSettings, name: str, text: str) -> Any:
    given: Any = text
    if isinstance(getattr(known, name), frozenset):
        given = sorted({one.strip() for one in text.split(",")})
        entries = schema_of(type(known))["properties"][name]["items"]["enum"]
        wrong = sorted({*given} - {*entries})
        if wrong:
            raise PartyUsageError(
                f"{name} must be of {', '.join(entries)}", ", ".join(wrong) or "nothing"
            )
    elif isinstance(getattr(known, name), bool):
        given = {"true": True, "false": False}.get(text.lower(), text)
    values = {one.name: getattr(known, one.name) for one in fields(known)}
    return getattr(typed_in(type(known), {**values, name: given}, fault=PartyUsageError), name)


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
        return ", ".join(f"{_words(one)} ({name})" for name, one in value.items()) or "none"
    return "none" if value in ("", None) else str(value)
