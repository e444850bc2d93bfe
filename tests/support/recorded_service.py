"""`pate-fed serve` that writes down every packet: ``python -m tests.support.recorded_service``.

Arguments: the federation's folder, a folder for what enters and leaves Flower's messages and the
calls of the tally in the clear, then a stage, its number, and the signal that it sends itself
there; no stage is never. It logs all that anybody wants to log.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from pathlib import Path

from coordinator import service
from coordinator.flower.server_app import GridTransport
from coordinator.runs import run_tally
from coordinator.runs.transport import Silence
from coordinator.tally.tally_client import TallyClient
from pate_fed.nodes import write_logs
from tests.support.mortal_hospital import RECEIVED, SENT, Witness
from tests.support.mortal_service import signalled_at


def main(home: Path, packets: Path, stage: str, passes: int, number: int) -> None:
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

    class RecordedClient(TallyClient):
        """A tally's calls, and a witness of them."""

        def _call(self, name: str, request: bytes) -> bytes:
            witness.note(SENT, request)
            answer = super()._call(name, request)
            witness.note(RECEIVED, answer)
            return answer

    service.GridTransport = RecordedTransport  # type: ignore[misc]
    run_tally.TallyClient = RecordedClient  # type: ignore[misc]
    write_logs("coordinator")
    logging.getLogger().setLevel(logging.DEBUG)
    service.serve(home, on_stage=signalled_at(stage, passes, number))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
