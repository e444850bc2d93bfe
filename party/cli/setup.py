"""A hospital's first day at the command line: each step in order, continued after a stop.

A person's decisions stay with people: they compare the words, and their names are written down.
Each step calls its own command, unless it is done already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import click
import typer

from party.cli.lifetime_budget import LIFETIME_RULES
from party.cli.machine import show_examination
from party.cli.membership import join, read_invitation
from party.cli.peers import add as add_peer
from party.cli.peers import check_in_one_sitting
from party.cli.policy import MEANINGS, RULES, set_rules
from party.cli.records import register as add_table
from party.cli.tally import compare, pin, require_both, words_in
from party.cli.terminal import (
    DEFAULT_SITE,
    ByOption,
    SiteOption,
    ask_text,
    decider,
    is_attended,
    tell,
)
from party.errors import JoinError, NotConfirmedError, PartyError, PartyUsageError
from party.owner import open_records, open_site
from party.site.joining import ask_membership
from party.site.membership import SiteMembership
from party.site.peers import ListedPeer, listed_peers
from party.site.policy import Rules
from party.site.site import SCHEMA_VERSION, SETTINGS_FILE, SiteSettings
from party.site.tally_standing import TallyStanding
from pate_fed.data.reading import read_table
from pate_fed.errors import PateFedError
from pate_fed.nodes import one_line, printable, read_settings, schema_of
from pate_fed.nodes.command_line import EXIT_FAILED, print_json
from pate_fed.rule import RECORDS_VOTE
from protocols.fingerprint_words import spoken
from protocols.membership_messages import Membership
from protocols.party_names import normalized

ANSWERS_VERSION: Final = 1

ASKED_RULES: Final = (
    *LIFETIME_RULES,
    "most_epsilon",
    "least_checked_peers",
    "own_body",
)
"""Rules that an owner decides before the first start; all others have a safe default."""

OFFERED: Final = ("teacher_model",)
"""Settings for which a terminal asks, too: their default fits unless the federation told more."""

_SENSES: Final = {
    "lifetime_epsilon": "Epsilon 5: one patient's records change the probability of any result at "
    "most 149-fold, over all runs. At most 1 (2.8-fold) is usually called strong.",
    "delta": "Delta is the probability that epsilon may fail: take far less than 1 divided by your "
    "number of patients.",
    "teacher_model": "auto fits your table, unless the federation agreed that records vote: then "
    f"type {RECORDS_VOTE}. You take part in no other runs then, and all learn your number of "
    "patients. direction is for teachers of few patients each; auto takes it there.",
}
"""Meaning of a rule's numbers for an owner."""


@dataclass(frozen=True, slots=True)
class TableAnswers:
    """The hospital's table, as `data add` takes it.

    Attributes:
        file: The CSV file; empty if it is not given.
        label: Column that is predicted.
        patient_id: Column that names the patient; empty if each row is another patient.
    """

    file: str = ""
    label: str = ""
    patient_id: str = ""

    def __post_init__(self) -> None:
        if bool(self.file) is not bool(self.label):
            raise PartyUsageError("file and label must be said together")


@dataclass(frozen=True, slots=True)
class PeerAnswers:
    """A peer that a person has checked, as `peers add` takes it.

    Attributes:
        compared: The 12 words that its own people read aloud.
        how: How it was checked.
        body: Its owner; empty if it is its own.
    """

    compared: str
    how: str
    body: str = ""


@dataclass(frozen=True, slots=True)
class SetupAnswers:
    """The answers of `--answers`, in place of a person at a terminal.

    Attributes:
        invitation: The operator's file; empty if it is named on the command line.
        compared: The 12 words of the federation, as the operator read them aloud.
        by: Who decides and checked.
        data: The table.
        operator_body: The coordinator's owner.
        compared_tally: The 12 words of the tally, as its own people read them aloud.
        tally_body: The tally's owner.
        policy: Rules with their values.
        peers: Peers that were checked, by the name that the coordinator gives them.
    """

    invitation: str = ""
    compared: str = ""
    by: str = ""
    data: TableAnswers = TableAnswers()
    operator_body: str = ""
    compared_tally: str = ""
    tally_body: str = ""
    policy: dict[str, object] = field(default_factory=dict)
    peers: dict[str, PeerAnswers] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if "operator_body" in self.policy:
            raise PartyUsageError("operator_body must stand above [policy]: each federation's own")
        require_both(self.compared_tally or None, self.tally_body or None)


@dataclass(frozen=True, slots=True)
class _Sitting:
    folder: Path
    answers: SetupAnswers
    by: str


def setup(
    invite: Annotated[
        Path | None, typer.Argument(metavar="[INVITE]", help="The operator's file.")
    ] = None,
    answers: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="TOML file of answers, for use without a terminal."),
    ] = None,
    by: ByOption = None,
    site: SiteOption = DEFAULT_SITE,
) -> None:
    """Set up this hospital step by step: join, table, rules, peers, doctor.

    You may stop at any time: the next call asks only for the rest. Exit codes: 0 all done,
    1 steps left, 4 the doctor reports a failure.
    """
    given = _read(answers)
    try:
        who = by or given.by or _name()
        sitting = _Sitting(site, given, who)
        _join(sitting, invite)
        left = [line for step in _STEPS for line in step(sitting)]
    except (click.Abort, KeyboardInterrupt):
        tell("\nStopped. The finished steps are kept: `pate-party setup` goes on from here.")
        raise typer.Exit(EXIT_FAILED) from None
    tell("\nThe doctor checks everything that could stop your node:")
    code = show_examination(open_site(site))
    _tell_what_is_next(left, site, code)
    raise typer.Exit(max(code, EXIT_FAILED if left else 0))


def schema(
    answers: Annotated[
        bool, typer.Option("--answers", help="Of the answers of `setup` instead.")
    ] = False,
) -> None:
    """Print the JSON schema of a site's settings file, with the meaning of every key."""
    if answers:
        print_json(schema_of(SetupAnswers, version=ANSWERS_VERSION))
        return
    found = schema_of(SiteSettings, version=SCHEMA_VERSION)
    found["properties"]["policy"] |= schema_of(Rules)
    print_json(found)


def _read(path: Path | None) -> SetupAnswers:
    if path is None:
        return SetupAnswers()
    return read_settings(
        path,
        SetupAnswers,
        version=ANSWERS_VERSION,
        advice="--answers must be a file that is there",
        fault=PartyUsageError,
    )


def _name() -> str:
    if not is_attended():
        return decider(None)
    return ask_text("Your name: it is put on record with all that you decide", decider(None))


# Steps ------------------------------------------------------------------------------------------


def _join(sitting: _Sitting, invite: Path | None) -> None:
    """Join, unless it is done: all later steps need it."""
    named = invite or (Path(sitting.answers.invitation) if sitting.answers.invitation else None)
    has_site = (sitting.folder / SETTINGS_FILE).exists()
    if has_site and invite is None and named is not None and not named.exists():
        named = None  # the file of answers outlives the invitation, which is good once
    if has_site and (named is None or _has_joined(sitting.folder, named)):
        for one in open_site(sitting.folder).current:
            tell(f"Joined: {one.settings.federation}, as {one.settings.party}.")
        return
    if named is None:
        if not is_attended():
            raise PartyUsageError("an invitation must be named: `pate-party setup INVITE`")
        named = Path(ask_text("The operator's invitation file"))
    if not (sitting.answers.compared or is_attended()):
        raise NotConfirmedError(
            "a person must telephone the operator, and write the 12 words that the operator reads "
            "into `compared` of the answers",
            "no words, and no terminal",
        )
    given, has_tally = sitting.answers, read_invitation(named).tally is not None
    join(
        named,
        sitting.folder,
        compared=given.compared or None,
        operator_body=given.operator_body or None,
        # An older invitation names no tally: it is compared once the operator approved us.
        compared_tally=given.compared_tally or None if has_tally else None,
        tally_body=given.tally_body or None if has_tally else None,
    )


def _has_joined(folder: Path, invite: Path) -> bool:
    """Tell whether the invitation's coordinator took our request, by our record."""
    from party.storage.site_audit_log import SiteAct  # noqa: PLC0415 - keeps --help fast

    coordinator = read_invitation(invite).coordinator.fingerprint
    with open_records(folder) as opened:
        known = opened.site.membership_at(coordinator)
        return (
            known is not None
            and not known.has_left
            and any(
                record.act is SiteAct.JOINED and record.facts.get("membership") == known.name
                for record in opened.log.entries()
            )
        )


def _register(sitting: _Sitting) -> Iterator[str]:
    known, given = open_site(sitting.folder).settings.data, sitting.answers.data
    if known.file:
        tell(f"Table: {known.file}, {known.rows} rows.")
    elif given.file:
        add_table(Path(given.file), given.label, given.patient_id or None, site=sitting.folder)
    elif not (is_attended() and _is_done(lambda: _ask_for_table(sitting))):
        yield "Register your table: pate-party data add FILE --label COLUMN --patient-id COLUMN"


def _ask_for_table(sitting: _Sitting) -> bool:
    name = ask_text("\nYour table, a CSV file with a header; nothing of it leaves (-: later)", "-")
    if name == "-":
        return False
    path = Path(name)
    tell(f"Its columns: {printable(', '.join(read_table(path).header))}")
    label = ask_text("Column that is predicted")
    patient_id = ask_text("Column that says whose a row is (-: each row is another patient)", "-")
    add_table(path, label, None if patient_id == "-" else patient_id, site=sitting.folder)
    return True


def _decide(sitting: _Sitting) -> Iterator[str]:

    given = sitting.answers.policy
    with open_records(sitting.folder) as opened:
        decided = opened.decided_rules()
    for name in dict.fromkeys((*ASKED_RULES, *OFFERED, *given)):
        if name in decided:
            continue
        if name in given:
            set_rules([name, _as_typed(given[name])], by=sitting.by, site=sitting.folder)
        elif is_attended():
            _is_done(lambda: _ask_for_rule(sitting, name))  # noqa: B023 - called here
        elif name not in OFFERED:
            yield f"Decide {name} ({_meaning(name)}): pate-party policy set {name} VALUE"


def _ask_for_rule(sitting: _Sitting, name: str) -> bool:
    settings = open_site(sitting.folder).settings
    if name in _SENSES:
        tell(f"\n{_SENSES[name]}")
    known = settings.policy_for(frozenset()) if name in RULES else settings
    value = ask_text(f"\n{_meaning(name)}\n{name}", _as_typed(getattr(known, name)) or "none")
    typed = "" if name == "own_body" and value == "none" else value
    set_rules([name, typed], by=sitting.by, site=sitting.folder)
    return True


def _meaning(name: str) -> str:
    return MEANINGS.get(name, "an unknown rule")


def _as_typed(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, float):
        return f"{value:g}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check(sitting: _Sitting) -> Iterator[str]:
    for joined in open_site(sitting.folder).current:
        membership = _member(joined)
        if membership is None:
            yield (
                f"{joined.settings.federation}: the operator has to approve you first. Then check "
                "your peers: pate-party setup"
            )
            continue
        yield from _check_tally(sitting, joined, membership)
        for one in _unchecked(sitting, membership):
            given = sitting.answers.peers.get(one.name)
            if given is not None:
                add_peer(
                    one.name,
                    given.compared,
                    given.how,
                    sitting.by,
                    given.body or None,
                    federation=joined.name,
                    site=sitting.folder,
                )
        differing: list[str] = []
        if is_attended():
            with open_records(sitting.folder) as opened:
                differing = check_in_one_sitting(opened, membership, by=sitting.by)
        for one in _unchecked(sitting, membership):
            if one.name in differing:
                yield f"{one.name} has other words: tell its people and the operator."
            else:
                yield f"Check {one.name}: pate-party peers check"
        with open_records(sitting.folder) as opened:
            known = {*membership.peer_names, *(pin.name for pin in opened.decisions.pins())}
        for name in sitting.answers.peers:
            if normalized(name) not in known:
                yield f"{name} is in the answers, and no member yet: pate-party setup"


def _check_tally(
    sitting: _Sitting, joined: SiteMembership, membership: Membership
) -> Iterator[str]:
    standing = TallyStanding.of(joined.settings, membership)
    named, given = standing.waiting, sitting.answers
    if named is not None:
        compared, body = given.compared_tally or None, given.tally_body or None
        known = words_in(joined)
        owner = compare(named, compared, body, before=standing.pinned, known=known)
        if owner is None:
            yield f"Compare the tally's words with its own people: pate-party tally ({named.name})"
            return
        with open_records(sitting.folder) as opened:
            joined = pin(opened, joined, named, body=owner, by=sitting.by)
    aggregators = joined.settings.aggregators
    if aggregators.tally is not None and aggregators.fault:
        yield f"{joined.settings.federation}: {aggregators.fault}"


def _member(joined: SiteMembership) -> Membership | None:
    """Return the members, once the operator approved us; None if that is left for later."""
    while True:
        try:
            answer = ask_membership(joined)
        except JoinError as error:
            tell(f"{error.code}: {one_line(str(error))}")
            return None
        if answer.state == "member":
            return answer
        if answer.state in ("revoked", "suspended"):
            tell(f"{answer.federation}: this hospital is {answer.state}. Ask the operator.")
            return None
        tell(
            f"\nThe operator of {answer.federation} has to approve you. Telephone, and read aloud:"
        )
        tell(f"  {spoken(joined.identity.public.fingerprint)}")
        if not is_attended() or ask_text("Press Enter once it is done (later: go on)") == "later":
            return None


def _unchecked(sitting: _Sitting, membership: Membership) -> list[ListedPeer]:
    with open_records(sitting.folder) as opened:
        return [one for one in listed_peers(opened.decisions.pins(), membership) if one.pin is None]


_STEPS: Final[tuple[Callable[[_Sitting], Iterator[str]], ...]] = (_register, _decide, _check)


# Words ------------------------------------------------------------------------------------------


def _is_done(step: Callable[[], bool]) -> bool:
    """Do a step that a person answers; tell the fault of a wrong answer."""
    while True:
        try:
            return step()
        except (PartyError, PateFedError) as error:
            tell(f"{error.code}: {one_line(str(error))}")


def _tell_what_is_next(left: list[str], site: Path, code: int) -> None:
    if left:
        tell("\nLeft to do:")
    for line in left:
        tell(f"  {printable(line)}")
    where = "" if site == DEFAULT_SITE else f" --site {site}"
    if code > EXIT_FAILED:
        tell(f"\nMend the faults, then go on: pate-party setup{where}")
        return
    tell(f"\nStart your node: pate-party start{where}")
    tell("It runs until Ctrl-C. To have systemd run it, also after a restart of the machine:")
    tell(f"  pate-party service install --print{where} > pate-party.service")
    tell("Read this file; an administrator then copies it to /etc/systemd/system and enables it.")
    tell(
        f"Once the operator offers a run, a person reads and approves it: pate-party approve{where}"
    )
