"""The coordinator of `benchmarks.deployment`: `pate-fed serve`, and when it passed which stage.

``python -m benchmarks.deployed_service HOME STAGES`` writes a line per stage: seconds and its name.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from coordinator.runs.stages import BatchStage
from coordinator.service import serve
from pate_fed.nodes import write_logs


def main(home: Path, stages: Path) -> None:
    with stages.open("a", buffering=1, encoding="utf-8") as file:
        write_logs("coordinator")
        serve(home, on_stage=lambda stage: _note(stage, file.write))


def _note(stage: BatchStage, write: object) -> None:
    assert callable(write)
    write(f"{time.monotonic():.6f} {stage.value}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
