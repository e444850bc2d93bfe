"""A hospital's node that comes to grief with its disk: ``python -m tests.support.hospital_victim``.

Arguments are a kind and an empty folder; what happened is printed, JSON.
"""

from __future__ import annotations

import json
import resource
import sys
from contextlib import ExitStack
from pathlib import Path

from coordinator.errors import CoordinatorError
from party.errors import PartyError
from party.service import PartyService
from party.site import DATABASE_FILE, Site
from party.status_file import FILE as STATUS_FILE
from party.status_file import read_status
from tests.support.federation import holds_vector
from tests.support.hospital_services import audit_of, ledger_of, make_hospitals
from tests.support.storage_victim import give_up_rights
from tests.test_party.test_service import Running


def run_out_of_disk(folder: Path) -> dict[str, object]:
    """Let no file grow any more in the middle of a run; then make room again."""
    hospitals = make_hospitals(folder)
    for place in range(3):
        hospitals.approve(place)
    with ExitStack() as stack:
        running = Running(hospitals, stack)
        run = running.run()
        run.set_up()
        run.ask((0,))
        before = len(running.transport.answers)
        files = [site.path(f"{DATABASE_FILE}-wal") for site in hospitals.sites]
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        # The status still fits; what is written ahead does not.
        full = min(file.stat().st_size for file in files)
        resource.setrlimit(resource.RLIMIT_FSIZE, (full, hard))
        try:
            run.ask((1,))
            said = ""
        except CoordinatorError as error:
            said = str(error)
        left = any(holds_vector(answer) for _, answer in running.transport.answers[before:])
        status = read_status(hospitals.sites[0].path(STATUS_FILE))
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        charges = [_states(site) for site in hospitals.sites]
        again = running.run()
        again.set_up()
        labels = again.ask((2,)).labels.tolist()
        again.close()
        return {
            "said": said,
            "left": left,
            "fault": None if status is None else status.last_fault,
            "charges": charges,
            "labels": labels,
            "after": [_states(site) for site in hospitals.sites],
            "told": [len(audit_of(site)) > 0 for site in hospitals.sites],
        }


def start_without_rights(folder: Path) -> dict[str, object]:
    """Start a node whose database may be read only, as somebody whom permissions bind."""
    site = Site.open(folder)
    give_up_rights()
    try:
        PartyService(site).close()
    except PartyError as error:
        status = read_status(site.path(STATUS_FILE))
        assert status is not None
        return {"code": error.code, "state": status.state, "trouble": status.trouble}
    return {"code": ""}


def _states(site: Site) -> list[str]:
    return [entry.state.value for entry in ledger_of(site).entries]


KINDS = {each.__name__: each for each in (run_out_of_disk, start_without_rights)}

if __name__ == "__main__":
    print(json.dumps(KINDS[sys.argv[1]](Path(sys.argv[2]))))
