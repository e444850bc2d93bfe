"""A hospital's node that comes to grief at its start: ``python -m tests.support.hospital_victim``.

Arguments are a kind and a site's folder; what happened is printed, JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from party.errors import PartyError
from party.service import PartyService
from party.site.site import Site
from party.site.status_file import FILE as STATUS_FILE
from party.site.status_file import read_status
from tests.support.storage_victim import give_up_rights


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


KINDS = {each.__name__: each for each in (start_without_rights,)}

if __name__ == "__main__":
    print(json.dumps(KINDS[sys.argv[1]](Path(sys.argv[2]))))
