"""`pate-fed serve` that writes down every packet: ``python -m tests.support.recorded_service``.

Arguments: the federation's folder, and a folder for what enters and leaves Flower's messages in the
clear. It logs all that anybody wants to log.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from pathlib import Path

from coordinator import service
from coordinator.flower.server_app import GridTransport
from coordinator.runs.transport import Silence
from pate_fed.nodes import write_logs_as_json
from tests.support.mortal_hospital import RECEIVED, SENT, Witness


def main(home: Path, packets: Path) -> None:
    witness = Witness(packets)

    class RecordedTransport(GridTransport):
        """Packets over a Flower grid, and a witness of them."""

        def _carry(self, sent: Mapping[int, bytes]) -> dict[int, bytes | Silence]:
            answers = super()._carry(sent)
            for kind, some in ((SENT, sent), (RECEIVED, answers)):
                for one in some.values():
                    if isinstance(one, bytes):
                        witness.note(kind, one)
            return answers

    service.GridTransport = RecordedTransport  # type: ignore[misc]
    write_logs_as_json("coordinator")
    logging.getLogger().setLevel(logging.DEBUG)
    service.serve(home)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
