"""`pate-fed serve` that kills itself: ``python -m tests.support.mortal_service HOME STAGE PASSES``.

It dies by SIGKILL when it has passed the stage so often; it never does where no stage is named.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from coordinator.runs.stages import BatchStage, OnStage
from coordinator.service import serve
from pate_fed.nodes import write_logs


def signalled_at(stage: str, passes: int, number: int = signal.SIGKILL) -> OnStage:
    """Return what sends this process a signal when a stage is passed for the so many-th time."""
    left = passes

    def pass_by(passed: BatchStage) -> None:
        nonlocal left
        left -= passed.value == stage
        if passed.value == stage and not left:
            os.kill(os.getpid(), number)

    return pass_by


def main(home: Path, stage: str, passes: int) -> None:
    write_logs("coordinator")
    serve(home, on_stage=signalled_at(stage, passes))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
