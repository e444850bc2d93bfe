"""A coordinator that is killed at any moment goes on: nothing is lost, doubled or drawn twice."""

from __future__ import annotations

import random
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from coordinator.stages import Stage
from protocols.errors import UnfinishedSetupError
from protocols.rounds import CoordinatorState, PartyState
from protocols.transcript_verifier import verify_transcript
from tests.support.killing import BATCHES, KINDS, PARTIES, KilledError, MortalFederation

VARIANTS = [
    pytest.param(kind, form, id=f"{form}, {kind}")
    for kind in KINDS
    for form in ("additive", "masked")
]
EVERY_STAGE = [pytest.param(stage, id=stage.value) for stage in Stage]


def started(folder: Path, kind: str, form: str) -> MortalFederation:
    federation = MortalFederation(folder, kind=kind, form=form)
    federation.run.set_up()
    federation.passed.clear()
    federation._since = 0
    return federation


@lru_cache
def undisturbed(kind: str, form: str) -> MortalFederation:
    """A run that nobody killed."""
    with TemporaryDirectory() as folder:
        federation = started(Path(folder), kind, form)
        federation.work()
        federation.journal.close()
    return federation


def check(federation: MortalFederation, kind: str, form: str) -> None:
    """Hold a run that was killed against one that was not."""
    reference = undisturbed(kind, form)
    for place in range(PARTIES):
        assert federation.charged(place) == reference.charged(place)
        assert federation.votes_of(place) == reference.votes_of(place)
    assert federation.counted() == reference.counted()
    # No query was released twice, and what is stored is what the parties were told.
    asked = [index for indices in federation.released for index in indices]
    assert len(set(asked)) == len(asked) == sum(map(len, BATCHES))
    two_phases = "two phases" in kind
    told = federation.results()
    assert [each for each in told if "labels" in each] == [
        release.as_record()
        for release in federation.released.values()
        if release.answered or not two_phases  # else the first phase has said it all
    ]
    assert sum("labels" not in each for each in told) == (len(BATCHES) if two_phases else 0)
    assert {indices: r.labels.tolist() for indices, r in federation.released.items()} == {
        indices: r.labels.tolist() for indices, r in reference.released.items()
    }
    # One y for a plan, one settlement for a plan, one history for all.
    assert all(len(bodies) == 1 for bodies in federation.ys().values())
    assert all(len(digests) == 1 for digests in federation.settlements().values())
    assert len(federation.ys()) == len(reference.ys())
    assert federation.run.round.state is CoordinatorState.DONE
    assert {node.state for node in federation.nodes} == {PartyState.DONE}
    verdict = verify_transcript(federation.transcript)
    assert (verdict.is_good, verdict.head) == (
        True,
        federation.nodes[0].transcript_head.hex(),
    )
    assert verdict.entries == verify_transcript(reference.transcript).entries


def places_of(stage: Stage, kind: str, form: str) -> list[int]:
    """Where a run passes a stage, counted in stages."""
    passed = enumerate(undisturbed(kind, form).passed, start=1)
    places = [number for number, each in passed if each is stage]
    never = {Stage.VOID_STORED}
    if "two phases" not in kind:
        never.add(Stage.FIRST_STORED)
    if form == "additive":
        never.add(Stage.SURVIVORS_FIXED)
    assert bool(places) != (stage in never)
    return places


def kill_once(federation: MortalFederation, place: int) -> None:
    federation.is_fatal = lambda number, _: federation.lives == 1 and number == place


def die_and_go_on(folder: Path, kind: str, form: str, place: int) -> None:
    """Kill a coordinator at one place, let it come back, and look at everything."""
    folder.mkdir()
    federation = started(folder, kind, form)
    kill_once(federation, place)
    federation.live()
    assert federation.lives == 2
    federation.journal.close()
    check(federation, kind, form)


class TestEveryStage:
    @pytest.mark.parametrize(("kind", "form"), VARIANTS)
    @pytest.mark.parametrize("stage", EVERY_STAGE)
    def test_killed_there_the_run_ends_as_if_nothing_had_happened(
        self, tmp_path: Path, kind: str, form: str, stage: Stage
    ) -> None:
        for place in places_of(stage, kind, form)[-1:]:
            die_and_go_on(tmp_path / "one", kind, form, place)

    @pytest.mark.slow
    @pytest.mark.parametrize(("kind", "form"), VARIANTS)
    def test_killed_anywhere_the_run_ends_as_if_nothing_had_happened(
        self, tmp_path: Path, kind: str, form: str
    ) -> None:
        for place in range(1, len(undisturbed(kind, form).passed) + 1):
            die_and_go_on(tmp_path / str(place), kind, form, place)

    @pytest.mark.parametrize(("kind", "form"), VARIANTS)
    def test_killed_again_and_again_it_gets_to_its_end(
        self, tmp_path: Path, kind: str, form: str
    ) -> None:
        chance = random.Random(f"{kind} {form}")  # noqa: S311 - picks where to die
        federation = started(tmp_path, kind, form)
        fate: dict[int, int] = {}

        def is_fatal(number: int, stage: Stage) -> bool:
            return number == fate.setdefault(federation.lives, chance.randrange(1, 25))

        federation.is_fatal = is_fatal
        federation.live()
        assert federation.lives > 3
        federation.journal.close()
        check(federation, kind, form)


def test_a_run_that_was_not_set_up_is_given_up(tmp_path: Path) -> None:
    federation = MortalFederation(tmp_path, kind="noise at the coordinator", form="additive")
    federation.is_fatal = lambda number, stage: number == 2 * PARTIES + 1
    with pytest.raises(KilledError):
        federation.run.set_up()
    federation.bury()
    with pytest.raises(UnfinishedSetupError) as caught:
        federation.resume()
    assert caught.value.code == "PF-249"
