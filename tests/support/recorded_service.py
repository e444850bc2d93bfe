"""`pate-fed serve` that writes down every packet: ``python -m tests.support.recorded_service``.

Arguments: the federation's folder, and a file for what enters and leaves Flower's messages in the
clear. It logs all that anybody wants to log.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from pathlib import Path

from coordinator import service
from coordinator.flower.app import GridTransport
from coordinator.runs.transport import Silence
from pate_fed.nodes import write_logs_as_json


def main(home: Path, packets: Path) -> None:
    class RecordedTransport(GridTransport):
        """Packets over a Flower grid, and a file of them."""

        def _carry(self, sent: Mapping[int, bytes]) -> dict[int, bytes | Silence]:
            answers = super()._carry(sent)
            with packets.open("ab") as file:
                for one in (*sent.values(), *answers.values()):
                    if isinstance(one, bytes):
                        file.write(len(one).to_bytes(8, "big") + one)
            return answers

    service.GridTransport = RecordedTransport  # type: ignore[misc]
    write_logs_as_json("coordinator")
    logging.getLogger().setLevel(logging.DEBUG)
    service.serve(home)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
