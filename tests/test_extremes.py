"""Each number of each message, record and file in turn at its extremes: taken, or a coded error.

Places come from the messages' fields, from the records that the code writes, and from settings as
it would write them: a new field is tried without a word here. `tests.support.extremes` has the
values; `test_price_bounds` prices what the ranges allow.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

import cbor2
import numpy as np
import pytest
import tomli_w

from coordinator.errors import CoordinatorError
from coordinator.federation.home import FROM_ENVIRONMENT, PREFIX, FederationSettings
from coordinator.runs.request import RequestedParty, RunRequest, source_of
from party.errors import PartyError, SiteError
from party.site.membership import MembershipSettings
from party.site.policy import Rules
from party.site.site import SiteSettings
from party.site.status_file import FederationStatus, Status, read_status
from pate_fed.accounting import Outcomes, PrivacyLedger
from pate_fed.accounting.events import (
    EVENT_TYPES,
    ConfidentGaussianMaxEvent,
    PrivacyEvent,
    event_from_record,
)
from pate_fed.accounting.outcome_caps import OutcomeLedger
from pate_fed.accounting.ranges import RANGES
from pate_fed.data import DataSource
from pate_fed.errors import PateFedError
from pate_fed.nodes import read_settings, record_of, with_environment
from pate_fed.planning.evaluation_settings import EvaluationSettings
from pate_fed.record import File, Manifest, Metrics, Privacy
from pate_fed.releases import NoisyRelease
from pate_fed.report import read_run
from pate_fed.terms import BatchTerms, RunTerms
from protocols import wire
from protocols.errors import ProtocolError
from protocols.fields import field_types
from protocols.forms import FORMS
from protocols.identity import SigningIdentity
from protocols.wire import MESSAGE_TYPES
from tests.support.extremes import EXTREMES, NUMBERS, extremes_of, nested
from tests.support.federation import Federation
from tests.support.mutations import encoded
from tests.support.rules import plan_request, run_settings, with_other
from tests.support.sample_run import sample_manifest, sample_metrics, sample_privacy, write_sample
from tests.support.vectors import read_vectors

CODED = (CoordinatorError, PartyError, PateFedError, ProtocolError)
Door = Callable[[], object]


def taken(doors: Iterable[tuple[Any, Door]]) -> list[Any]:
    """Knock at each door; return the places of those inputs that were taken."""
    found = []
    for place, door in doors:
        try:
            with contextlib.suppress(*CODED):
                door()
                found.append(place)
        except Exception as error:
            raise AssertionError(
                f"{type(error).__name__} at {place}: {str(error)[:300]}"
            ) from error
    return found


def test_a_door_without_a_code_is_found() -> None:
    with pytest.raises(AssertionError, match="KeyError at "):
        taken([("here", lambda: {}["missing"])])


# Messages --------------------------------------------------------------------------------------


def good_frame(kind: Any) -> list[Any]:
    frames = (cbor2.loads(bytes.fromhex(item["frame"])) for item in _GOOD_FRAMES.values())
    return next(list(frame) for frame in frames if frame[1] == kind.TYPE)


_GOOD_FRAMES = read_vectors("wire_frames")["good"]


@pytest.mark.parametrize("kind", MESSAGE_TYPES.values(), ids=lambda kind: kind.__name__)
def test_a_message_with_an_extreme_field_is_decoded_or_refused(kind: Any) -> None:
    version, number, values, signature = good_frame(kind)
    assert len(values) == len(field_types(kind))
    assert wire.decode(encoded([version, number, values, signature]))

    def door(changed: Any) -> Door:
        return lambda: wire.decode(encoded([version, number, changed, signature]))

    taken((place, door(changed)) for place, changed in extremes_of(values))


# Records ---------------------------------------------------------------------------------------

TERMS = Federation(weights={1: (1, 1, 3)}).run.terms
AT_PARTIES = with_other(
    TERMS, sigma2=40.0, noise_place="parties", max_asks=5, max_answers=5, colluders=1, dropouts=0
)
STABLE = with_other(
    TERMS,
    mechanism="stable-gaussian",
    vote_threshold=None,
    sigma1=4.0,
    sigma2=None,
    test_delta=1e-8,
)
EVENTS = {
    "gaussian-max/1": (3, 5.0, 1.0),
    "capped-gaussian-max/1": (3, 5.0, 1.0),
    "confident-gaussian-max/1": (3, 2, 5.0, 5.0, 1.0),
    "laplace-max/1": (3, 0.1, 1.0),
    "stable-laplace-max/1": (3, 0.1, 1e-8, 1.0),
    "stable-gaussian-max/1": (3, 5.0, 1e-8, 1.0),
    "immutable-max/1": (3, 1.0),
    "distributed-gaussian-max/1": (3, 15.0, 2, 1),
    "distributed-counts/1": (3, 15.0, 2, 1),
}
LEDGER = PrivacyLedger.for_life(5.0, 1e-5, additive_delta=1e-6).reserve(
    "batch 0", ConfidentGaussianMaxEvent(3, 2, 50.0, 50.0)
)
COUNTED = OutcomeLedger(Outcomes(5, 4)).reserve("batch 0", Outcomes(2, 2))


def test_every_event_is_tried() -> None:
    assert {name for name in EVENT_TYPES if "toy" not in name} == set(EVENTS)


def _event(name: str) -> PrivacyEvent:
    return EVENT_TYPES[name](*EVENTS[name])


@pytest.mark.parametrize(
    ("read", "record"),
    [
        pytest.param(RunTerms.from_record, TERMS.as_record(), id="terms"),
        pytest.param(RunTerms.from_record, AT_PARTIES.as_record(), id="terms, noise at parties"),
        pytest.param(RunTerms.from_record, STABLE.as_record(), id="terms, test of stability"),
        pytest.param(
            BatchTerms.from_record, BatchTerms(TERMS, (4, 1, 9)).as_record(), id="batch terms"
        ),
        pytest.param(
            NoisyRelease.from_record,
            NoisyRelease(np.array([1, -1, 2, -1]), np.array([0, 1, 0, 2])).as_record(),
            id="release",
        ),
        pytest.param(PrivacyLedger.from_record, LEDGER.to_record(), id="ledger"),
        pytest.param(OutcomeLedger.from_record, COUNTED.to_record(), id="ledger of outcomes"),
        *(
            pytest.param(event_from_record, _event(name).as_record(), id=name.partition("/")[0])
            for name in EVENTS
        ),
    ],
)
def test_a_record_with_an_extreme_value_is_read_or_refused(
    read: Callable[[Any], object], record: Any
) -> None:
    assert read(record)
    taken((place, lambda changed=changed: read(changed)) for place, changed in extremes_of(record))


# Settings --------------------------------------------------------------------------------------

MEMBERSHIP = MembershipSettings(
    "lung study",
    "North",
    "coordinator.example.org:8443",
    SigningIdentity.generate().public.key.hex(),
)
SITE = SiteSettings(policy=record_of(Rules()), memberships={"lung-study": MEMBERSHIP})
FEDERATION = FederationSettings("lung study", "coordinator.example.org:8443", hosts=("a.example",))


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(one) for key, one in value.items() if one is not None}
    return value


def _toml_of(value: Any) -> bytes:
    return tomli_w.dumps({"schema_version": 1, **value}).encode()


@pytest.mark.slow
@pytest.mark.parametrize("settings", [SITE, FEDERATION], ids=["party.toml", "federation.toml"])
def test_a_settings_file_with_an_extreme_value_is_read_or_refused(
    settings: Any, tmp_path: Path
) -> None:
    path, table = tmp_path / "settings.toml", _without_none(record_of(settings))

    def door(changed: Any) -> Door:
        def read() -> object:
            path.write_bytes(_toml_of(changed))
            return read_settings(
                path, type(settings), version=1, advice="be there", fault=EitherEndError
            )

        return read

    assert door(table)() == settings
    places = taken((place, door(changed)) for place, changed in extremes_of(table))
    assert places  # a 1 is a number of teachers


class EitherEndError(SiteError, CoordinatorError):
    """Either end's: the reader of a file is told which."""


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"a = " + b"[" * 50_000 + b"]" * 50_000, id="deep lists"),
        pytest.param(b"a = " + b"[" * 150 + b"]" * 150, id="lists a little too deep"),
        pytest.param(b"[" + b"a." * 5_000 + b"a]", id="deep tables"),
        pytest.param(b"a = " + b"{a = " * 5_000 + b"1" + b"}" * 5_000, id="deep inline tables"),
        pytest.param(b"teachers = " + b"9" * 5_000, id="a number of 5,000 digits"),
        pytest.param(b"schema_version = " + b"[" * 150 + b"]" * 150, id="a deep version"),
        pytest.param(b"a = 1\n" * 2, id="one key twice"),
        pytest.param(b"\xff\xfe", id="no text"),
        pytest.param(b"# " + b"x" * 2**20, id="more than a megabyte"),
    ],
)
def test_a_settings_file_that_is_a_trap_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "party.toml"
    if not content.startswith(b"schema"):
        content = b"schema_version = 1\n" + content
    path.write_bytes(content)
    with pytest.raises(SiteError):
        read_settings(path, SiteSettings, version=1, advice="be there", fault=SiteError)


@pytest.mark.parametrize("name", sorted(FROM_ENVIRONMENT))
def test_an_extreme_variable_is_taken_or_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = f"{PREFIX}{name.upper()}"

    def door(text: str) -> Door:
        def read() -> object:
            monkeypatch.setenv(variable, text)
            return with_environment(
                FEDERATION, prefix=PREFIX, only=FROM_ENVIRONMENT, fault=EitherEndError
            )

        return read

    texts = [*(str(each) for each in NUMBERS), "9" * 5_000, "[" * 50_000, "{", '{"x": 1e999}', ""]
    taken((f"{variable}={text[:40]}", door(text)) for text in texts)


def test_a_status_file_with_an_extreme_value_is_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    table = record_of(Status("running", 1.0, 1, federations={"a": FederationStatus()}))

    def door(changed: Any) -> Door:
        def read() -> object:
            path.write_text(json.dumps({"schema_version": 1, **changed}))
            return read_status(path)

        return read

    assert door(table)()
    taken((place, door(changed)) for place, changed in extremes_of(table))
    path.write_text("[" * 200_000)
    assert not taken([("nesting", lambda: read_status(path))])


SETTINGS = run_settings(
    DataSource("digits"),
    suite="x25519",
    parties=3,
    teachers=10,
    queries=5,
    sigma1=15.0,
    sigma2=8.0,
    vote_threshold=20.0,
    party_teachers=(10, 10, 10),
    weights=(1, 1, 1),
    party_epsilons=(5.0, 5.0, 5.0),
    confidence=None,
    max_answers=5,
    batch_size=2,
    unit="record",
    evaluation_epsilon=None,
    seed=1,
)
REQUEST = RunRequest(
    name="first",
    pool=b"p" * 32,
    task=b"t" * 32,
    source="queries.csv",
    kind="table",
    label="sick",
    class_names=("no", "yes"),
    parties=tuple(RequestedParty(name, name.encode() * 32, 10) for name in "abc"),
    queries=(0, 1, 2, 3, 4),
    patience_s=60.0,
    settings=replace(SETTINGS, data=source_of("queries.csv", "sick", kind="table")),
    epsilon=1.0,
)


PLAN = plan_request(parties=3, teachers=10, classes=2, epsilon=5.0, delta=1e-5, unit="record")


def test_a_stored_request_with_an_extreme_value_is_read_or_refused() -> None:
    table = json.loads(REQUEST.to_json())

    def door(changed: Any) -> Door:
        return lambda: RunRequest.from_json(json.dumps(changed))

    taken((place, door(changed)) for place, changed in extremes_of(table))
    assert not taken([("nesting", lambda: RunRequest.from_json("[" * 200_000))])


@pytest.mark.parametrize(
    ("settings", "check"),
    [
        pytest.param(SETTINGS, lambda one: one.check(FORMS), id="run"),
        pytest.param(EvaluationSettings(), lambda one: one.check(parties=3), id="evaluation"),
        pytest.param(PLAN, lambda one: one, id="plan"),
    ],
)
def test_an_extreme_option_is_taken_or_refused(
    settings: Any, check: Callable[[Any], object]
) -> None:
    tables = [settings]
    for held in tables:
        tables += [getattr(held, one) for one in ("settings", "rule", "caps") if hasattr(held, one)]
    hints = {name: hint for one in tables for name, hint in get_type_hints(type(one)).items()}
    other = with_other if len(tables) > 1 else replace

    def door(name: str, number: Any) -> Door:
        given = (number,) * 3 if "tuple" in str(hints[name]) else number
        return lambda: check(other(settings, **{name: given}))

    # The command line reads whole numbers where a setting is whole.
    taken(
        (f"{name}={number}", door(name, number))
        for name in hints.keys() & RANGES.keys()
        for number in NUMBERS
        if isinstance(number, int) or "float" in str(hints[name])
    )


@pytest.mark.parametrize("name", sorted(RANGES))
def test_a_range_holds_its_ends_and_nothing_beyond(name: str) -> None:
    allowed = RANGES[name]
    assert not allowed.broken_rule(allowed.least)
    assert not allowed.broken_rule(allowed.largest)
    beyond = [allowed.least - max(1.0, abs(allowed.least)), allowed.most * 2 + 1]
    assert all(map(allowed.broken_rule, [*beyond, float("nan"), float("inf"), -float("inf")]))


# Run directories -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "table"),
    [
        pytest.param(sample_privacy(), Privacy, id="privacy.json"),
        pytest.param(sample_metrics(), Metrics, id="metrics.json"),
        pytest.param(sample_manifest(), Manifest, id="manifest.json"),
    ],
)
def test_a_file_of_a_run_with_an_extreme_value_is_read_or_refused(
    content: Any, table: type[File]
) -> None:
    def door(changed: Any) -> Door:
        return lambda: table.read(json.dumps(changed))

    door(content)()
    places = taken((place, door(changed)) for place, changed in extremes_of(content))
    assert len(places) < len(list(extremes_of(content)))


@pytest.mark.parametrize("name", ["privacy.json", "metrics.json", "manifest.json", "run.toml"])
@pytest.mark.parametrize(
    "text",
    [
        pytest.param("[" * 200_000, id="nesting"),
        pytest.param('{"schema_version": ' + "9" * 5_000 + "}", id="digits"),
        pytest.param('{"schema_version": 1e999}', id="infinity"),
        pytest.param("a = " + "[" * 50_000, id="nesting of TOML"),
    ],
)
def test_a_run_directory_with_a_trap_is_refused(name: str, text: str, tmp_path: Path) -> None:
    write_sample(tmp_path / "run")
    (tmp_path / "run" / name).write_text(text)
    with pytest.raises(PateFedError):
        read_run(tmp_path / "run")


def test_extremes_are_of_every_kind() -> None:
    assert {type(one) for one in EXTREMES} >= {int, float, str, list, dict, bool}
    assert nested(3) == [[[[]]]]
