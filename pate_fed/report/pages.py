"""Both pages of a finished run's files, made by a process of its own.

A hospital gets these files from a coordinator. It starts this program with bounded memory, so that
neither a crafted file nor the code that draws pages meets what the hospital's own process holds.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pate_fed.errors import RunDirectoryError
from pate_fed.report.annexes import render_annexes
from pate_fed.report.html import render_report
from pate_fed.report.run_directory import RunDirectory


def main(folder: str) -> None:
    """Write the pages into the folder of a run; say why not, if its files are not a run's."""
    directory = RunDirectory(Path(folder))
    try:
        record = directory.read_back()
        directory.write_annexes(render_annexes(record))
        directory.write_report(render_report(record))
    except RunDirectoryError as error:
        sys.stdout.write(json.dumps([error.must, str(error.got)]))
