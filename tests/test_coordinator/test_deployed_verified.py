"""Ten hospitals and a tally over real processes: one leaves, one never comes, and five lie.

Without Flower the same is in `test_verified_worker`.
"""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from protocols.messages import Plan
from protocols.vote_messages import VoteReport
from tests.support.asking import asked_run
from tests.support.command import labels_in
from tests.support.deployed import CLASSES, Hospital, deployed, true_class
from tests.support.invariants import messages_in, require_sound
from tests.support.loopback_home import add_tally, free_ports
from tests.support.waiting import wait_for
from tests.support.worked_tally import lying, require_one_coin, require_told

pytestmark = pytest.mark.exhaustive

TEN = tuple(f"Hospital {number}" for number in range(10))
LIARS, ABSENT, LEAVES = TEN[:5], TEN[8], TEN[9]
QUERIES, BATCH = 12, 4
PATIENCE_S = 600.0


def never_come(one: Hospital) -> None:
    """Let a hospital's node do nothing about a plan until it is ended."""
    honest = one.receive

    def receive(packet: bytes) -> bytes:
        if any(isinstance(message, Plan) for message in messages_in(packet)):
            one.stopped.wait()
            raise ConnectionError
        return honest(packet)

    one.receive = receive  # type: ignore[method-assign]


def has_reported(one: Hospital) -> bool:
    return any(
        isinstance(message, VoteReport)
        for _, answer in one.exchanges
        for message in messages_in(answer)
    )


def test_labels_are_right_and_every_page_says_who_is_missing(tmp_path: Path) -> None:
    with deployed(tmp_path) as federation:
        federation.tally = add_tally(federation.home, tmp_path / "tally", port=free_ports(1)[0])
        federation.start_tally()
        federation.serve()
        federation.wait_until_served()
        federation.enroll(TEN)
        hospitals = dict(zip(TEN, federation.hospitals, strict=True))
        never_come(hospitals[ABSENT])
        with (
            lying(*(hospitals[name] for name in LIARS)),
            closing(federation.coordinator) as coordinator,
        ):
            chosen = {"form": "verified", "noise": "aggregators", "sigma2": 2.0}
            asked_run(
                coordinator,
                "first",
                federation.task,
                queries=QUERIES,
                batch_size=BATCH,
                patience_s=PATIENCE_S,
                **chosen,
            )
            wait_for(lambda: has_reported(hospitals[LEAVES]), seconds=PATIENCE_S)
            hospitals[ABSENT].stop()
            hospitals[LEAVES].stop()
            run = federation.wait_for_run("first", states=("done", "failed", "paused"))
            assert (run.state.value, run.progress.void) == ("done", 0), run.reason
            labels, truth = (
                labels_in(coordinator.home.results("first")),
                true_class(federation.task.inputs),
            )
            assert labels == {place: CLASSES[truth[place]] for place in labels}
            assert len(labels) == QUERIES
            require_one_coin(coordinator, federation.tally)
            require_told(coordinator, rejected=LIARS, lost=(ABSENT, LEAVES))
        for one in federation.hospitals:
            assert set(Counter(one.asked).values()) <= {1}
        require_sound(federation.look("verified"), note=federation.log)
