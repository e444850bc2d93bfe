"""Processes that come to grief with a hospital's database: killed, out of disk, without rights.

Each writes what it was told was done to ``acknowledged`` in its folder, a line for each step.
"""

from __future__ import annotations

import hashlib
import os
import resource
from collections.abc import Callable
from itertools import count
from pathlib import Path

from party.errors import JournalError, PartyError
from party.storage import Journal, LedgerStore, PartyDatabase
from pate_fed.accounting import GaussianMaxEvent, PrivacyLedger
from protocols.rounds import PlanClaim

RUN = b"r" * 32
BUDGET = PrivacyLedger.for_life(50.0, 1e-6)
CHARGE = GaussianMaxEvent(asks=1, sigma=400.0)
SENT = PlanClaim.sent([b"a" * 32, b"b" * 32, b"c" * 32], survives_dropouts=False)
NOBODY = 65534
FILE_LIMIT = 400_000


def acknowledging(path: Path) -> Callable[[str], None]:
    """Write lines that are there however the process ends."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def tell(line: str) -> None:
        os.write(file, f"{line}\n".encode())

    return tell


def plan_of(number: int) -> bytes:
    return hashlib.sha256(number.to_bytes(4, "big")).digest()


def y_of(number: int) -> bytes:
    return plan_of(number) * 300


def charge_for_ever(folder: Path) -> None:
    """Charge, claim, begin and keep as a node does, until somebody stops it."""
    say = acknowledging(folder / "acknowledged")
    with PartyDatabase.create(folder / "party.db") as database:
        journal, ledger = Journal(database), LedgerStore(database, budget=BUDGET)
        for number in count(1):
            plan = plan_of(number)
            ledger.save(ledger.load().reserve(plan.hex(), CHARGE))
            say(f"charged {number}")
            journal.queries.claim((plan,), plan_digest=plan, claim=SENT)
            journal.begin(run_id=RUN, epoch=number, plan_digest=plan)
            say(f"begun {number}")
            journal.keep(plan, (y_of(number),), expires_at=10_000)
            say(f"kept {number}")


def run_out_of_disk(folder: Path) -> None:
    """Keep y's until a file may not grow any more; then erase some and go on."""
    say = acknowledging(folder / "acknowledged")
    with PartyDatabase.create(folder / "party.db") as database:
        journal = Journal(database)
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_LIMIT, hard))
        for number in count(1):
            try:
                journal.begin(run_id=RUN, epoch=number, plan_digest=plan_of(number))
                say(f"begun {number}")
                journal.keep(plan_of(number), (y_of(number),), expires_at=10_000)
                say(f"kept {number}")
            except JournalError as error:
                say(f"failed {error.code}")
                break
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        journal.begin(run_id=RUN, epoch=10_000, plan_digest=plan_of(10_000))
        say("begun 10000")


def give_up_rights() -> None:
    """Become somebody whom permissions bind."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def open_without_rights(folder: Path) -> None:
    """Open a database that may be read only; whoever may everything gives that up first."""
    give_up_rights()
    try:
        PartyDatabase.at(folder / "party.db")
    except PartyError as error:
        print(f"{error.code} {error}")


def become_second_node(folder: Path) -> None:
    """Look at what another process is the node of, then try to be it."""
    with PartyDatabase.at(folder / "party.db") as database:
        print(LedgerStore(database).load().used_share() > 0)
        try:
            Journal(database)
        except JournalError as error:
            print(error.code)
