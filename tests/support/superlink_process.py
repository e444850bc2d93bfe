"""A coordinator's SuperLink as a process of its own, for tests: `python -m ... FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from coordinator.home import FederationHome
from coordinator.superlink import SuperLinkSettings, serve


def main() -> None:
    """Serve the federation in a folder until the parent ends."""
    home = FederationHome.open(Path(sys.argv[1]))
    serve(
        SuperLinkSettings(
            host="127.0.0.1",
            port=home.settings.port,
            admin_port=home.settings.admin_port,
            certificate=home.path("server.crt"),
            private_key=home.path("server.key"),
            ca_certificate=home.path("ca.crt"),
            secret=home.path("superlink.secret"),
            database=home.path("superlink.db"),
        )
    )


if __name__ == "__main__":
    main()
