"""The readme's pictures: a simulation's terminal, and the console after the federation demo.

    make pictures

What a simulation prints comes with `--seed 7`; a test holds it against `docs/numbers.json`. The
federation demo, which takes minutes, leaves its coordinator's folder: the console is shown from it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from coordinator.federation.home import FederationHome
from coordinator.operator import Coordinator
from coordinator.people.people import Role
from tests.support.chromium import chromium
from tests.support.console import served

ROOT: Final = Path(__file__).parents[2]
PICTURES: Final = ROOT / "docs" / "pictures"
TERMINAL: Final = PICTURES / "demo.svg"
CONSOLE: Final = PICTURES / "console.png"
COMMAND: Final = ("simulate", "--seed", "7", "--out", "runs/first")
_WIDTH: Final = 82
_THEME: Final = TerminalTheme((255, 255, 255), (36, 41, 47), [(36, 41, 47)] * 8, [(36, 41, 47)] * 8)


def terminal(text: str) -> str:
    """Return a picture of a terminal, SVG; its text can be read and searched."""
    shown = Console(record=True, width=_WIDTH, file=StringIO())
    shown.print(Text(text))
    picture = shown.export_svg(title="pate-fed", theme=_THEME, unique_id="demo")
    return re.sub(r"@font-face \{[^}]*\}\s*", "", picture)  # it would be loaded from elsewhere


def simulated() -> str:
    """Return the command of the first run, and what it prints."""
    with TemporaryDirectory() as folder:
        program = [sys.executable, "-m", "coordinator.cli", *COMMAND]
        alone = {**os.environ, "COLUMNS": "80", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        ended = subprocess.run(program, cwd=folder, env=alone, capture_output=True, check=True)
    return f"$ pate-fed {' '.join(COMMAND)}\n{ended.stdout.decode().strip()}"


def console(federation: Path) -> bytes:
    """Return a picture of a run's page in the console of a federation's folder, PNG."""
    coordinator = Coordinator(FederationHome.open(federation))
    try:
        name = "Operator"
        if name not in {one.name for one in coordinator.people.all()}:
            coordinator.people.add(name, Role.ADMINISTRATOR)
        with served(coordinator) as address, chromium() as browser:
            page = browser.new_page(viewport={"width": 1100, "height": 840})
            session = coordinator.sessions.open(name)
            page.context.add_cookies(
                [{"name": "pate-fed-session", "value": session, "url": address}]
            )
            page.goto(f"{address}/runs/first")
            return page.screenshot()
    finally:
        coordinator.close()


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    TERMINAL.write_text(terminal(simulated()), "utf-8")
    with TemporaryDirectory() as folder:
        demo = [sys.executable, "-m", "coordinator.cli", "demo", "--out", f"{folder}/demo"]
        subprocess.run(demo, cwd=ROOT, check=True)
        CONSOLE.write_bytes(console(Path(folder, "demo", "operator", "federation")))


if __name__ == "__main__":
    main()
