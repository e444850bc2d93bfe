"""The process that serves a federation's public port: SuperLink, gate and enrollment.

`python -P -m coordinator.flower.superlink_process HOME` is started by `coordinator.service`, whose
end of its standard input keeps it alive.
"""

from __future__ import annotations

import logging
import secrets
import sys
import time
from pathlib import Path

from coordinator.database import Database
from coordinator.errors import ServiceError
from coordinator.federation import enrollment_app
from coordinator.federation.enrollment import Enrollment
from coordinator.federation.home import FederationHome, utc_now
from coordinator.federation.rate_limit import RateLimit
from coordinator.federation.run_files import RunFiles
from coordinator.flower.superlink import serve
from coordinator.flower.superlink_child import NO_PORT
from pate_fed.nodes.kept_child import become_child

_log = logging.getLogger(__name__)


def main() -> None:
    """Serve until our parent ends."""
    become_child("coordinator")
    home = FederationHome.open(Path(sys.argv[1]))
    database = Database(home.database_url)
    enrollment = Enrollment(home, database, random_bytes=secrets.token_bytes, clock=utc_now)
    rate = RateLimit(home.settings.limits.enrollments_per_minute, clock=time.monotonic)
    app = enrollment_app.build(
        enrollment, pools=home.path("pools"), results=RunFiles(home, database), rate=rate
    )
    try:
        serve(home, enrollment=app)
    except ServiceError as error:
        _log.error("[%s] %s", error.code, error)
        sys.exit(NO_PORT)


if __name__ == "__main__":
    main()
