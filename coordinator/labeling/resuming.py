"""Whether a run's journal and its results tell the same story, before a run goes on.

The store is written before a batch's plan is in the journal, and before its settlement is; so of
the two the store may be one step ahead, never behind. Anything else means that one of the files
was put back to an older one: then nobody knows what was released, and the run must not go on.
"""

from __future__ import annotations

from coordinator.errors import RunDamagedError
from coordinator.store import AskedBatch, BatchState, RunStore
from pate_fed.federation import RunTerms
from protocols import wire
from protocols.rounds import CoordinatorRound, SettledPlan


def require_fit(run: CoordinatorRound, store: RunStore, terms: RunTerms) -> None:
    """Hold a run's journal against its results and its terms.

    Raises:
        RunDamagedError: they do not fit.
    """
    _require("results must be of the journal's run", store.run_id() == run.run_id)
    recorded = run.run_record.terms
    _require("the run must be of its terms", recorded == wire.encode_value(terms.as_record()))
    asked = store.asked()
    settled: dict[int, list[SettledPlan]] = {number: [] for number in asked}
    for each in run.settled:
        _require("a plan must be of a batch that was asked", each.plan.batch in asked)
        settled[each.plan.batch].append(each)
    open_batch = run.open_plan.batch if run.has_open_plan else None
    _require("a plan must be of a batch that was asked", open_batch is None or open_batch in asked)
    last = max(asked, default=None)
    for number, batch in asked.items():
        is_last = number == last
        _require("an open batch must be the last", batch.state is not BatchState.OPEN or is_last)
        _require("an open plan must be the last", number != open_batch or is_last)
        _require_story(run, store, batch, settled[number], is_open=number == open_batch)


def _require_story(
    run: CoordinatorRound,
    store: RunStore,
    batch: AskedBatch,
    settled: list[SettledPlan],
    *,
    is_open: bool,
) -> None:
    """Check one batch: what its plans came to must be what is stored of it."""
    results = [each.settlement.result for each in settled if each.is_released]
    first, release = store.first_phase(batch.number), store.releases().get(batch.number)
    known = [] if first is None else [wire.encode_value(first.as_record())]
    if release is not None:
        known.append(wire.encode_value(release[1].as_record()))
    voids = [each for each in settled if not each.is_released]
    _require("a void plan must be the last of its batch", voids in ([], settled[-1:]))
    _require("what was released must be stored", results == known[: len(results)])
    decided = first is not None and (is_open and not run.phase)
    _require("a first phase must follow an opened sum", run.was_opened or not decided)
    match batch.state:
        case BatchState.OPEN:
            _require("an open batch must not be settled", release is None and not voids)
        case BatchState.WITHDRAWN:
            _require("a withdrawn batch must have no plan", not settled and not is_open)
        case BatchState.VOID:
            _require("a void batch must be settled so", is_open or bool(voids))
            _require("a void batch must have no release", release is None)
        case BatchState.RELEASED:
            nothing_passed = first is not None and not len(first.passed)
            wanted = len(known) - nothing_passed
            _require("a released batch must have its release", release is not None)
            _require("a release must be settled, or about to be", len(results) + is_open >= wanted)
            _require("a release must follow an opened sum", run.was_opened or not is_open)


def _require(must: str, holds: bool) -> None:
    if not holds:
        raise RunDamagedError(f"the journal and the results must fit: {must}", "otherwise")
