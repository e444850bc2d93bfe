"""The run directories of finished runs: their content, and one file at a time."""

from __future__ import annotations

import io
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coordinator.errors import RunQueueError
from coordinator.federation.home import FederationHome
from pate_fed.record import Audit
from pate_fed.regular_files import read_regular
from pate_fed.report import FinishedRun, read_run
from pate_fed.run_folder import ANNEXES, REPORT, SEAL, SEALED

FILES: Final = (REPORT, ANNEXES, *SEALED, SEAL)
"""Every file that can be in a run directory, by its path there."""

PUBLIC_EDITION: Final = "public-edition.zip"
"""The name of an archive of the files that may be published."""


@dataclass(frozen=True, slots=True)
class FinishedFile:
    """A file of a run's results.

    Attributes:
        sha256: In hex; empty for pages and the seal, which the seal does not name.
    """

    path: str
    size: int
    sha256: str


class FinishedRuns:
    """The run directories of a federation; an absent run or file is a `RunQueueError`."""

    def __init__(self, home: FederationHome) -> None:
        self._home = home

    def has(self, name: str) -> bool:
        """Tell whether a run has results."""
        return self._home.results(name).is_dir()

    def read(self, name: str) -> tuple[FinishedRun, list[FinishedFile]]:
        """Return the results of a run, and the files that they stand in."""
        folder = self._home.results(name)
        if not folder.is_dir():
            raise RunQueueError("a run must have ended with labels to have results", "none yet")
        record = read_run(folder)
        there = [file for file in FILES if (folder / file).is_file()]
        return record, [
            FinishedFile(file, (folder / file).stat().st_size, record.digests.get(file, ""))
            for file in there
        ]

    def content(self, name: str, file: str) -> bytes:
        """Return one of `FILES` of a run's results, or its `PUBLIC_EDITION`.

        A requested name is looked up there, and never taken for a path.
        """
        folder = self._home.results(name)
        if file == PUBLIC_EDITION and folder.is_dir():
            return _public_edition(folder, name)
        known = next((one for one in FILES if one == file), None)
        if known is None or not (folder / known).is_file():
            raise RunQueueError("a file must be one of the run's results")
        return read_regular(folder / known)

    def leak(self, name: str) -> Audit:
        """Return the vote leak of a run, on made-up votes: nothing of it is private."""
        from coordinator.runs.run_leak import leak_of_run  # noqa: PLC0415 - takes a second

        self.read(name)
        return leak_of_run(self._home.results(name))


def _public_edition(folder: Path, name: str) -> bytes:
    from pate_fed.report import write_public_edition  # noqa: PLC0415 - plots take a second

    archive = io.BytesIO()
    with tempfile.TemporaryDirectory(prefix="pate-fed-public-") as place:
        out = Path(place, name)
        write_public_edition(folder, out)
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
            for path in sorted(one for one in out.rglob("*") if one.is_file()):
                packed.write(path, path.relative_to(place))
    return archive.getvalue()
