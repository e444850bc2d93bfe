"""Failures where everything is real: `pate-fed serve` and three `pate-party start`, one federation.

Each test asks a run of its own and does harm in its middle. Charges are read in the hospitals'
databases, where a run stands is read in what `pate-fed status` shows. The tests are in the order of
the harm that they do; whatever it was, the federation that it was done to goes on with the next.

In runs that are not exhaustive, `test_service_log` kills a SuperLink, and `test_kills` hospitals
and coordinators without Flower.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from coordinator.runs.queue import ENDED, Run, RunState
from party.site.site import DATABASE_FILE
from pate_fed.accounting import DistributedCountsEvent
from pate_fed.evaluation_task import EvaluationTask
from tests.support.hospital_services import NAMES, ledger_of
from tests.support.invariants import require_sound
from tests.support.marker import (
    MARKERS,
    findings,
    findings_in_files,
    not_in,
    released_tallies,
)
from tests.support.whole_federation import (
    CLASSES,
    NAME_BEHIND_PROXY,
    NORTH,
    PROXIED,
    RUN_S,
    SOUTH,
    Hospital,
    WholeFederation,
    can_be_immutable,
    connections_of,
    enroll,
    immutable,
    no_room,
    whole_federation,
)

pytestmark = pytest.mark.exhaustive

STORAGE = ("PF-333", "PF-350")
"""What a hospital says whose database stores nothing."""

NO_ROOM = "nothing can be stored [PF-440]: look at disk and rights"
QUERIES = 3
PLACES = 999_983
"""For held-out patients of a hospital: a prime, to be found."""
SOON_S = 0.05
"""From look to look where a run must not end meanwhile."""

HOUR_S = 3600.0
A_WHILE_S = 60.0
"""What a machine that is busy takes from one look at a clock to the next."""


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeFederation]:
    with whole_federation(tmp_path_factory.mktemp("whole")) as made:
        made.serve()
        enroll(made)
        made.start_hospitals(*NAMES)
        yield made


@pytest.fixture(autouse=True)
def everybody_is_there(federation: WholeFederation) -> None:
    """Whatever the test before did is over, and was mended by the federation itself."""
    federation.wait_for(lambda: federation.is_at_rest and federation.online() == set(NAMES))


def require_scored(federation: WholeFederation, name: str) -> None:
    """Hospitals score a run's student while the operator's command waits; no count is found.

    One hospital's counts are the markers, so they decide the scores; the others' are their own.
    """
    known = federation.documents
    with ThreadPoolExecutor(1) as operator:
        words = ("evaluate", name, "--places", PLACES, "--format", "json")
        typed = operator.submit(federation.pate_fed, *words)
        federation.wait_for(lambda: typed.done() or federation.documents > known)
        [document] = federation.documents - known
        federation.approve(EvaluationTask.from_bytes(document.read_bytes()))
        shown = json.loads(typed.result())
    assert (shown["state"], shown["reason"]) == ("done", "")
    assert shown["price"]["epsilon"] <= 1
    rights, wrong_no = dict(zip(CLASSES, MARKERS, strict=False)), MARKERS[2]
    for of, wrong in zip(CLASSES, (wrong_no, 0), strict=True):
        share = shown["evaluation"]["by_class"][of]["right"]
        assert share == pytest.approx(rights[of] / (rights[of] + wrong), abs=1e-3)
    for one in federation.hospitals.values():
        counts = ledger_of(one.site).entries[-1]
        assert isinstance(counts.reserved, DistributedCountsEvent)
        assert counts.state.value == "committed"
    hidden = not_in(released_tallies(federation.home.path("coordinator.db")))
    assert hidden
    assert not findings_in_files(federation.folder, hidden)
    for path in federation.folder.rglob("*.db"):
        with closing(sqlite3.connect(path)) as database:
            cells = "\n".join(database.iterdump()).encode("utf-8", "surrogateescape")
        assert not findings(cells, hidden), path.name
    # The search reads them: how many places there are is public.
    assert findings_in_files(federation.folder, (PLACES,))


def begun(federation: WholeFederation, name: str, *, queries: int = QUERIES) -> dict[str, int]:
    """Ask a run, wait for its first label; return what hospitals were charged before it, each."""
    before = {one.name: len(one.charges) for one in federation.hospitals.values()}
    federation.ask(name, queries=queries, batch_size=1)
    federation.wait_for(lambda: federation.answered(name) >= 1, pause_s=SOON_S)
    return before


def ended(federation: WholeFederation, name: str) -> Run:
    """Wait for a run's end, and hold everything against everything."""
    run = federation.wait_for_run(name, lambda run: run.state in ENDED)
    require_sound(federation.look(), note=federation.said)
    return run


def require_whole(federation: WholeFederation, name: str, before: dict[str, int]) -> None:
    """A run came to its end by itself, and each hospital was charged once for each batch."""
    run = ended(federation, name)
    assert (run.state, run.reason, run.progress.void) == (RunState.DONE, "", 0)
    assert run.progress.answered == QUERIES
    for one in federation.hospitals.values():
        assert one.charges[before[one.name] :] == ["committed"] * QUERIES, one.name


def require_charged_once(
    federation: WholeFederation, name: str, before: dict[str, int], *, queries: int
) -> None:
    """A run came to its end; of batches that it asked anew only the last cost anything."""
    run = ended(federation, name)
    assert (run.state, run.progress.answered) == (RunState.DONE, queries)
    for one in federation.hospitals.values():
        charges = one.charges[before[one.name] :]
        assert charges.count("committed") == queries, one.name
        assert set(charges) <= {"committed", "cancelled"}, one.name


def wait_until_shown(federation: WholeFederation, name: str, *said: str) -> None:
    """Wait until `pate-fed status` says it of a run, to people and to programs."""

    def is_shown() -> bool:
        text, table = federation.status(name)
        why = f"{table['state']}: {table['reason']}"
        return why in text.splitlines()[0] and all(word in why for word in said)

    federation.wait_for(is_shown, seconds=RUN_S)


def require_mended(federation: WholeFederation, name: str, hospital: Hospital) -> None:
    """The run came to its end; what is void is so for this hospital, which knows why."""
    run = ended(federation, name)
    assert run.state is RunState.DONE
    assert run.progress.answered >= QUERIES - run.progress.void
    if run.progress.void:
        assert "PF-411" in run.reason
        assert hospital.name in run.reason
    assert hospital.in_federation.last_fault in STORAGE


def require_clock(federation: WholeFederation, name: str, state: str, *, by: str) -> None:
    """A hospital's doctor finds its clock so, and wrong by an hour."""
    shown = json.loads(federation.pate_party(name, "doctor", "--format", "json", codes=(0, 1, 4)))
    [found] = [one for one in shown["checks"] if one["name"] == "clock"]
    assert found["state"] == state
    wrong = re.search(r"(\d+) s (ahead|behind)", found["said"])
    assert wrong, found
    assert wrong[2] == by
    assert abs(int(wrong[1]) - HOUR_S) < A_WHILE_S


def test_a_supernode_that_is_killed_in_the_middle_of_a_run_is_waited_for_by_name(
    federation: WholeFederation,
) -> None:
    """Its hospital's node stands still meanwhile, so that the run is surely under way.

    Then hospitals score the student that it gave.
    """
    before = begun(federation, "supernode")
    south = federation.hospitals[SOUTH]
    starts = south.in_federation.supernode_starts
    south.node.signal(signal.SIGSTOP)
    try:
        os.kill(south.node.child, signal.SIGKILL)
        # Going on, it would start another before `pate-fed status` was read.
        wait_until_shown(federation, "supernode", f"waiting: waits for {SOUTH}")
    finally:
        south.node.signal(signal.SIGCONT)
    require_whole(federation, "supernode", before)
    assert south.in_federation.supernode_starts > starts
    require_scored(federation, "supernode")


def test_a_hospital_behind_a_proxy_speaks_to_nobody_else(federation: WholeFederation) -> None:
    """It joined through it, and only the proxy knows the name of the coordinator."""
    hospital, proxy = federation.hospitals[PROXIED], federation.proxy
    assert hospital.site.membership().settings.address.startswith(f"{NAME_BEHIND_PROXY}:")
    carried = sum(map(len, proxy.streams))
    before = begun(federation, "proxied")
    own = hospital.site.membership().settings.node_port
    right, partners = {("127.0.0.1", own), ("127.0.0.1", proxy.port)}, set()

    def are_seen() -> bool:
        found = connections_of(hospital.node.pid, hospital.node.child)
        # On its own port the SuperNode speaks to the node beside it.
        partners.update((address, port) for mine, address, port in found if mine != own)
        return partners >= right

    while federation.run("proxied").state not in ENDED:
        are_seen()
    require_whole(federation, "proxied", before)
    federation.wait_for(are_seen)  # a run may be over before we look
    assert partners == right
    assert set(proxy.asked) == {
        f"CONNECT {NAME_BEHIND_PROXY}:{federation.home.settings.port} HTTP/1.1"
    }
    answers = sum(len(answer) for _, answer in hospital.look().exchanges[-QUERIES:])
    assert sum(map(len, proxy.streams)) > carried + answers > carried


def test_superlink_service_and_a_hospital_are_killed_one_after_the_other_in_one_run(
    federation: WholeFederation,
) -> None:
    """The coordinator's deaths cost nothing; after a hospital's the run is set up anew."""
    queries = 5
    before = begun(federation, "killed", queries=queries)
    os.kill(federation.service.child, signal.SIGKILL)
    federation.wait_for(lambda: federation.answered("killed") >= 2, pause_s=SOON_S)
    assert "pate_fed_superlink_restarts_total 1.0" in federation.metrics()
    federation.service.kill()
    federation.serve()
    federation.wait_for(lambda: federation.answered("killed") >= 3, pause_s=SOON_S)
    run = federation.run("killed")
    assert (run.reason, run.progress.void) == ("", 0)
    node = federation.hospitals[SOUTH].node
    node.kill()
    federation.start_hospitals(SOUTH)
    require_charged_once(federation, "killed", before, queries=queries)


def test_a_coordinator_without_room_on_its_disk_waits_and_status_says_for_what(
    federation: WholeFederation,
) -> None:
    """First its SuperLink finds no room, then the service: that one cannot even store why it waits.

    After either there is room again, and the run goes on by itself.
    """
    before = begun(federation, "full")
    with no_room(federation.service.child):
        wait_until_shown(federation, "full", "waiting: interrupted, will go on: PF-4")
    federation.wait_for(lambda: federation.answered("full") >= 2, pause_s=SOON_S)
    with no_room(federation.service.pid):
        federation.wait_for(lambda: NO_ROOM in federation.status("full")[0].splitlines())
        shown = json.loads(federation.pate_fed("status", "full", "--format", "json"))
        assert shown["missing"] == [NO_ROOM]
        assert federation.run("full").state not in ENDED
    require_whole(federation, "full", before)
    assert "PF-440" in federation.service.said


def test_a_hospital_without_room_on_its_disk_answers_nothing_and_is_named(
    federation: WholeFederation,
) -> None:
    hospital = federation.hospitals[NORTH]
    begun(federation, "full-site")
    with no_room(hospital.node.pid):
        wait_until_shown(federation, "full-site", hospital.name)
    require_mended(federation, "full-site", hospital)


@pytest.mark.skipif(not can_be_immutable(), reason="no file can be made immutable here")
def test_a_hospital_whose_database_may_not_be_written_any_more_answers_nothing_and_is_named(
    federation: WholeFederation,
) -> None:
    """Rights bind nobody whose file is open; an immutable file is written by nobody."""
    hospital = federation.hospitals[NORTH]
    # Not the shared memory: a process that writes it first is ended by the kernel (SIGBUS).
    files = [hospital.site.path(f"{DATABASE_FILE}{end}") for end in ("", "-wal")]
    begun(federation, "read-only")
    with immutable(*files):
        wait_until_shown(federation, "read-only", hospital.name)
    assert hospital.node.is_alive, hospital.node.said
    require_mended(federation, "read-only", hospital)


def test_a_hospital_whose_clock_is_an_hour_ahead_is_waited_for_and_its_doctor_says_why(
    federation: WholeFederation,
) -> None:
    """What its SuperNode signs is of the future to the SuperLink, which refuses it."""
    before = begun(federation, "ahead")
    with federation.hospitals[SOUTH].node.clock.ahead(HOUR_S):
        wait_until_shown(federation, "ahead", f"waiting: waits for {SOUTH}")
        require_clock(federation, SOUTH, "fail", by="ahead")
    require_whole(federation, "ahead", before)


def test_a_coordinator_whose_clock_jumps_an_hour_and_back_loses_nothing(
    federation: WholeFederation,
) -> None:
    """To its SuperLink all hospitals are of the past, and none is let in."""
    before = begun(federation, "jumped")
    with federation.service.clock.ahead(HOUR_S):
        wait_until_shown(federation, "jumped", "waiting: ")
        require_clock(federation, SOUTH, "fail", by="behind")
    require_whole(federation, "jumped", before)
