"""Takes one queued run from its first offer to its run directory, over all restarts.

Every result is on disk before it is shown: after a kill at any point the next worker continues. A
run whose setup had not finished is offered anew, as another attempt; one that was set up is resumed
from the database.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

from coordinator.errors import (
    CoordinatorError,
    DatabaseError,
    PartyFailedError,
    PartyRefusedError,
    RunEndedError,
    RunLockedError,
    RunRequestError,
    RunStateError,
    SetupError,
    SpoiledBatchError,
    TallyRefusedError,
    TallyUnreachableError,
    VoidBatchError,
)
from coordinator.federation.enrollment import EnrolledParty
from coordinator.federation.home import FederationHome
from coordinator.runs.agreement import Agreement, id_at_hospitals, refusal_in, refused
from coordinator.runs.endings import end_of, ending
from coordinator.runs.interim_student import predictions_for
from coordinator.runs.labeling import LabelingRun
from coordinator.runs.labeling.messenger import UP_TO_PEOPLE, may_pass
from coordinator.runs.later_steps import said
from coordinator.runs.open_run import OpenRun, earlier_answers, is_closed
from coordinator.runs.preflight import require_request
from coordinator.runs.queue import Run, RunQueue, RunState
from coordinator.runs.request import RunRequest, read_task
from coordinator.runs.transport import NoTransport, Transport, WatchedTransport
from coordinator.runs.waits import RunWaits
from coordinator.runs.worker_resources import WorkerResources
from coordinator.runs.write_up import Write, write_or_note
from pate_fed.errors import BudgetExhaustedError, PateFedError, RunDirectoryError
from pate_fed.planning.budgets import budget_share, tightest_cost
from protocols.errors import (
    BrokenJournalError,
    KeysGoneError,
    ProtocolError,
    UnexpectedMessageError,
    UnfinishedSetupError,
)
from protocols.rounds import CoordinatorState

OFFER_AGAIN_S: Final = 10.0
"""Between two offers of a run that waits for hospitals."""

MOST_FRUITLESS: Final = 10
"""How often in a row a run is set up without a batch that is released: some hospital does not stay
up long enough."""

MOST_LOST: Final = 3
"""How often one hospital may lose a run without a batch that is released between: it crashes, or
lies. Each time costs the others a setup, and perhaps a batch."""

_LOST: Final = {
    KeysGoneError.code: "a hospital must not have been restarted since the run was set up",
    UnexpectedMessageError.code: "a hospital must not have left the run since it was set up",
}
"""Codes with which a hospital says that it has lost the run: the conditions for it to go on."""

_log = logging.getLogger(__name__)


class RunWorker:
    """Works on one run at a time. A worker that takes its runs up elsewhere has no federation."""

    def __init__(
        self,
        home: FederationHome | None,
        queue: RunQueue,
        *,
        parties: Callable[[], list[EnrolledParty]],
        resources: WorkerResources,
        write: Write = write_or_note,
    ) -> None:
        self._home = home
        self._queue = queue
        self._with = resources
        self._write = write
        self._waits = RunWaits(queue, parties=parties, resources=resources)
        self._agreement = Agreement(queue, self._waits)

    def work(self, run: Run) -> None:
        """Work on a run until it ends, rests, or has to wait; its state says which.

        Raises:
            Exception: something that is no error of ours came in between; the run goes on from
                disk with the next call.
        """
        try:
            open_run, gone = self._taken_up(run)
            if gone is None:
                self._go_on(open_run)
            else:
                self._end(open_run, gone)
        except RunWaits.HaltedError:
            return
        except TallyUnreachableError as error:  # whatever is open stays so, until it is back
            self._wait_for_hospitals(open_run, said(error), error)
        except RunLockedError:
            # The service that took it over reports its progress.
            _log.warning("run %s was taken over by another service", run.name)
        except (RunStateError, RunRequestError, BrokenJournalError) as error:
            self._fail(run.name, error)

    def give_up(self, run: Run, reason: str) -> None:
        """End a run that nobody can go on with, and keep its results, if they can be read.

        The reason is for people, and holds no secret.

        Raises:
            DatabaseError: the database does not answer: the run is where it was.
        """
        state = RunState.FAILED
        try:
            open_run, _ = self._taken_up(run)
            ended = end_of(open_run, is_whole=not open_run.left)
            if self._queue.find(run.name).state is RunState.STOPPING:
                ended = RunState.STOPPED
            try:
                self._read_out(open_run, reason)
            except RunDirectoryError:  # the labels are in the database
                by = f"by `pate-fed export {run.name}`"
                reason = f"{reason}; the machine's administrator writes its results, {by}"
            state = ended
        except DatabaseError:
            raise
        except Exception:
            _log.exception("the results of run %s could not be written", run.name)
        _log.error("run %s is given up: %s", run.name, reason)
        self._queue.enter(run.name, state, reason)

    # Steps ------------------------------------------------------------------------------------

    def _go_on(self, run: OpenRun) -> None:
        name = run.request.name
        if run.is_unbegun and self._queue.find(name).state is RunState.STOPPING:
            self._stop(run, "by the operator, before it began")
            return
        is_waiting = self._waits.rest_if_wanted(name) is RunState.WAITING
        if not is_waiting:  # otherwise it waits until it is set up
            self._waits.enter(name, RunState.RUNNING)
        start = time.monotonic()
        if run.is_unbegun and not run.left:
            self._answer_from_store(run)
            return
        if is_closed(run, self._with.wait):
            is_stopping = self._queue.find(name).state is RunState.STOPPING
            run.stopped_by = RunWaits.HaltedError() if is_stopping else None
            self._note(run)
            self._queue.enter(name, *ending(run, self._write(run)))
            return
        if run.is_unbegun and not self._may_be_offered(run):
            return
        if self._has_to_wait(run):
            return
        # Who was approved later is at the SuperLink, too: this run is none of its business.
        nodes = [one.node for one in run.members if one.node is not None]
        with self._with.open_transport(nodes) as carrier:
            asking = WatchedTransport(carrier, self._after_exchange(run))
            if run.is_unbegun and not self._is_agreed_to(run, asking):
                return
            transport = WatchedTransport(carrier, self._after_exchange(run))
            there = transport.nodes_now()
            away = [one for one in run.members if one.node not in there]
            if away and not run.is_unbegun:
                self._waits.note_presence(run.members, away=away)
                missed = f"not connected: {', '.join(one.name for one in away)}"
                self._waits.enter(name, RunState.WAITING, missed)
            labeling = self._opened(run, transport)
            if labeling is None:
                return
            self._queue.end_wait(name)
            self._waits.enter(name, RunState.RUNNING)
            traffic = transport.traffic
            set_up = traffic.exchanges
            run.stopped_by = self._ask_all(run, labeling, asking)
            asked = traffic.exchanges
            self._close(run, labeling)
            if _has_lost_keys(run.stopped_by) and self._set_up_anew(run, run.stopped_by):
                return
            run.save_refused()
            run.exchanges = {
                "setup": set_up,
                "batches": asked - set_up,
                "closing": traffic.exchanges - asked,
            }
            run.seconds = time.monotonic() - start
            notes = self._write(run)
        self._queue.enter(name, *ending(run, notes))

    def _may_be_offered(self, run: OpenRun) -> bool:
        """Tell whether a run can end with its results; else let it wait, or end uncharged."""
        try:
            _require_known_answers(run)
            _require_affordable(run)
            fault = lack_of_room(run)
        except (RunEndedError, BudgetExhaustedError) as error:
            self._end_unoffered(run, error)
            return False
        if fault:
            self._wait_for_hospitals(run, fault)
        return not fault

    def _has_to_wait(self, run: OpenRun) -> bool:
        """Wait where another run rests with all hospitals in it, or one of them is suspended.

        Of a run that has not begun, the others are asked all the same.
        """
        name = run.request.name
        suspended = None if run.is_unbegun else self._waits.suspended(run.members)
        if suspended is not None and self._queue.find(name).state is not RunState.STOPPING:
            self._wait_for_hospitals(run, said(suspended))
            return True
        resting = self._waits.begun_and_paused()
        if run.is_unbegun and resting:
            reason = f"{resting} is paused, with all hospitals in it: resume or stop it"
            self._waits.wait(name, reason, OFFER_AGAIN_S)
            return True
        return False

    def _is_agreed_to(self, run: OpenRun, transport: Transport) -> bool:
        """Ask all hospitals that are there whether they take part; wait until all of them do.

        Who is away does not keep the others' people from deciding.
        """
        answers = self._agreement.hear(run, transport)
        refusal = refusal_in(run, answers)
        if refusal is not None:
            self._end_unoffered(run, refusal)
            return False
        reason = self._agreement.missing(run, answers, there=transport.nodes_now())
        if reason:
            self._wait_for_hospitals(run, reason)
        return not reason

    def _after_exchange(self, run: OpenRun) -> Callable[[float], None]:
        """Return the end of an exchange: who was suspended meanwhile answered in vain."""

        def note(seconds: float) -> None:
            self._with.on_exchange(seconds)
            self._waits.require_asked(run.members)

        return note

    def _end(self, run: OpenRun, reason: RunRequestError) -> None:
        """End a run that nobody may go on with, and keep its results; no hospital hears of it."""
        self._read_out(run, str(reason))
        self._fail(run.request.name, reason)

    def _stop(self, run: OpenRun, before: str) -> None:
        """End a run that no hospital is in, by the operator; keep its earlier results."""
        self._read_out(run, "by the operator")
        self._queue.enter(
            run.request.name, RunState.STOPPED, "by the operator" if run.has_asked else before
        )

    def _set_up_anew(self, run: OpenRun, error: Exception | None) -> bool:
        """Let a run begin again with all its hospitals, and with its results; return whether.

        A hospital that was restarted has none of the keys: every batch without it would be void.
        """
        assert isinstance(error, PartyRefusedError)
        if run.attempt.fruitless() >= MOST_FRUITLESS:
            run.warnings.append(
                f"The run was set up {MOST_FRUITLESS} times in a row without a result."
            )
            return False
        fingerprints = {one.name: one.identity.fingerprint for one in run.members}
        lost_by = fingerprints.get(error.party, b"")
        if lost_by and run.attempt.lost_by(lost_by) + 1 >= MOST_LOST:
            run.left_out[error.party] = f"lost the run {MOST_LOST} times without a result"
            return False
        run.give_up(said(error), lost_by=lost_by)
        self._waits.wait(run.request.name, f"set up anew: {said(error)}", 0.0)
        return True

    def _read_out(self, run: OpenRun, reason: str) -> None:
        """Keep the results of a run that nobody closes."""
        last = run.before() if run.is_unbegun else run
        if last is None:
            return
        run = last
        try:
            labeling = run.resumed(NoTransport(), self._with.wait, is_read_only=True)
        except UnfinishedSetupError:
            run.give_up("the setup was cut off")
            return
        if labeling.round.state is not CoordinatorState.DONE:
            run.warnings.append(f"The run was not closed: {reason}")
        self._note(run)
        self._write(run)

    def _answer_from_store(self, run: OpenRun) -> None:
        """Give the answers of earlier runs; no hospital hears of it, and nothing is charged."""
        run.begun(NoTransport(), self._with.wait)
        self._note(run)
        self._queue.enter(run.request.name, RunState.DONE, "; ".join(self._write(run)))

    def _opened(self, run: OpenRun, transport: Transport) -> LabelingRun | None:
        """Take a run up where it stood, or offer it; None if it has to wait, or is over."""
        name = run.request.name
        stopping = self._queue.find(name).state is RunState.STOPPING
        sleep = self._waits.sleep_for_silent(run, stopping=stopping)
        try:
            if run.is_unbegun:
                return self._offered(run, transport, sleep)
            # Who is told to stop waits for nobody.
            labeling = run.resumed(transport, sleep, patience_s=0.0 if stopping else None)
        except UnfinishedSetupError:
            run.give_up("the setup was cut off")
            self._waits.wait(name, "the setup was cut off: the run is offered anew", 0.0)
        except SetupError as error:
            if stopping:
                self._read_out(run, str(error))
                self._queue.enter(name, RunState.STOPPED, f"by the operator: {said(error)}")
            else:
                self._wait_for_hospitals(run, said(error), error)
        else:
            self._finish(run, labeling, voids=stopping)
            return labeling
        return None

    def _offered(
        self,
        run: OpenRun,
        transport: Transport,
        sleep: Callable[[float], None],
    ) -> LabelingRun | None:
        try:
            labeling = run.begun(transport, sleep)
            labeling.set_up()
        except (RunStateError, DatabaseError, TallyUnreachableError):
            raise
        except (ProtocolError, PateFedError, CoordinatorError) as error:
            run.give_up(said(error))
            if not _may_pass(error):
                self._end_unoffered(run, error)
            elif isinstance(error, PartyRefusedError):  # one that agreed a moment ago
                self._wait_for_hospitals(
                    run,
                    f"waits for the people of {error.party} [{error.cause}]; "
                    f"the run's id there: {id_at_hospitals(run)}",
                )
            else:
                self._wait_for_hospitals(run, said(error), error)
            return None
        return labeling

    def _end_unoffered(self, run: OpenRun, error: Exception) -> None:
        """End a run that hospitals do not take up; keep its earlier results."""
        run.stopped_by = error
        if not run.has_answers:
            self._fail(run.request.name, error)
            return
        self._read_out(run, said(error))
        self._queue.enter(run.request.name, RunState.INCOMPLETE, said(error))

    def _finish(self, run: OpenRun, labeling: LabelingRun, *, voids: bool) -> None:
        """Bring the batch to its end that was open when an earlier life ended."""
        try:
            labeling.finish(voids=voids)
        except (VoidBatchError, TallyRefusedError) as error:
            _note_void(run, error)
            _log.warning("run %s: %s", run.request.name, said(error))

    def _ask_all(self, run: OpenRun, labeling: LabelingRun, asking: Transport) -> Exception | None:
        """Ask batch after batch; return the reason for an end before the last."""
        name, stopped_by = run.request.name, None
        size = run.request.settings.caps.batch_size or len(run.request.queries)
        while True:
            self._note(run)
            self._waits.require_members(run.request)
            self._waits.require_asked(run.members)
            state = self._waits.rest_if_wanted(name)
            if state is RunState.STOPPING:
                return RunWaits.HaltedError()
            if state is RunState.WAITING:  # nobody is waited for any more
                self._waits.enter(name, RunState.RUNNING)
            if not labeling.is_over:
                run.choose_more()
            asked = labeling.asked
            left = [index for index in run.left if index not in asked]
            fresh = [index for index in left if index not in run.refused]
            # A refused query may have been open elsewhere: in the end it is tried once more.
            batch = tuple((fresh or left)[:size][: labeling.left.asks])
            if labeling.is_over or (run.left_out and not run.form.survives_dropouts) or not batch:
                return stopped_by
            if labeling.round.closing.frame:  # an earlier life was about to set it up anew
                return stopped_by or _lost("a hospital")
            try:
                ready = labeling.ask_ready(batch)
                self._agreement.note_unready(run, ready.unready, asking)
                unready = {} if ready.can_do_without else ready.unready
                if (error := _not_to_be_waited_for(unready)) is not None:
                    if not _has_lost_keys(error):
                        run.warnings.append(f"The run ended before all was asked: {error}")
                    return error
                fault = lack_of_room(run)
                if unready or fault:
                    self._wait_for_all(run, unready, fault)
                    continue
                self._queue.end_wait(name)
                if ready.refused:  # others are asked in their place
                    run.refused |= ready.refused
                    run.store.save_skipped({} if fresh else ready.refused)
                    continue
                known = run.lessons if labeling.terms.spec.learns else {}
                predictions = predictions_for(
                    batch, known=known, pool=run.pool, classes=run.classes
                )
                labeling.ask(batch, predictions=predictions)
                self._agreement.note_lost(run, labeling)
                stopped_by = None  # a void batch of before was not the end
            except (RunEndedError, TallyRefusedError) as error:
                run.warnings.append(f"The run ended before all was asked: {error}")
                return error
            except VoidBatchError as error:
                stopped_by = error
                _note_void(run, error)
                self._waits.enter(name, RunState.RUNNING, said(error))

    def _wait_for_all(self, run: OpenRun, unready: Mapping[str, str], fault: str) -> None:
        """Wait before a batch that would be void, or lost, at the charge of who answered it."""
        people = [f"{name} [{code}]" for name, code in unready.items() if code]
        silent = [name for name, code in unready.items() if not code]
        said = [f"waits for the people of {', '.join(people)}"] if people else []
        said += [f"waits for {', '.join(silent)}"] if silent else []
        said += [fault] if fault else []
        if not self._wait_for_hospitals(run, "; ".join(said)):
            raise RunWaits.HaltedError

    def _close(self, run: OpenRun, labeling: LabelingRun) -> None:
        try:
            labeling.close()
        except (RunStateError, DatabaseError):
            raise
        except (CoordinatorError, ProtocolError) as error:
            run.warnings.append(f"The run could not be closed by all parties: {error}")
            _log.warning("run %s could not be closed: %s", run.request.name, said(error))
        self._note(run)

    # Waiting ----------------------------------------------------------------------------------

    def _wait_for_hospitals(
        self, run: OpenRun, reason: str, error: Exception | None = None
    ) -> bool:
        """Wait until a run is tried again, or give up once its patience is over; return whether."""
        name = run.request.name
        if self._queue.find(name).state is RunState.STOPPING and run.is_unbegun:
            self._stop(run, "by the operator, before it began")
            return False
        now = datetime.fromtimestamp(self._with.clock(), UTC)
        since = self._queue.wait_since(name, now=now)
        if (now - since).total_seconds() >= run.request.patience_s:
            run.stopped_by = error
            # A run that began may be taken up once hospitals are back.
            is_fresh = run.is_unbegun and not run.has_asked
            state = RunState.FAILED if is_fresh else RunState.PAUSED
            self._queue.enter(name, state, f"its patience is over: {reason}")
            return False
        self._waits.wait(name, reason, OFFER_AGAIN_S)
        return True

    def _fail(self, name: str, error: Exception) -> None:
        _log.error("run %s failed: %s", name, said(error))
        self._queue.enter(name, RunState.FAILED, said(error))

    # Its runs ---------------------------------------------------------------------------------

    def _taken_up(self, run: Run) -> tuple[OpenRun, RunRequestError | None]:
        """Become the one who works on a run; say, too, which of its hospitals is gone."""
        assert self._home is not None
        request = RunRequest.from_json(self._queue.request(run.name))
        task = read_task(self._home, request)
        members, gone = self._waits.members(request)
        attempt = self._queue.take_up(run.name)
        taken = OpenRun(
            self._home.identity,
            request,
            task.pool,
            task,
            members,
            attempt,
            self._with,
            results=self._home.results(run.name),
            earlier=earlier_answers(request, task.pool, attempt.database),
            home=self._home,
        )
        return taken, gone

    def _note(self, run: OpenRun) -> None:
        self._queue.note(run.request.name, run.progress)


def _may_pass(error: Exception) -> bool:
    """Tell whether an offer that failed may go through later."""
    return may_pass(error) if isinstance(error, PartyFailedError) else isinstance(error, SetupError)


def _not_to_be_waited_for(unready: Mapping[str, str]) -> PartyRefusedError | None:
    """Return why no batch of a run will be answered any more, if that is so."""
    for name, code in unready.items():
        if code in _LOST:
            return _lost(name, code)
        if code and code not in UP_TO_PEOPLE:
            return refused(name, code)
    return None


def _lost(name: str, code: str = KeysGoneError.code) -> PartyRefusedError:
    return PartyRefusedError(_LOST[code], "a lost run", party=name, cause=code)


def _note_void(run: OpenRun, error: VoidBatchError | TallyRefusedError) -> None:
    """Keep the reason of a void batch, and leave out whoever spoiled it."""
    run.last_void = said(error)
    run.warnings.append(f"A batch is void: {error}")
    if isinstance(error, SpoiledBatchError) and error.parties:
        reason = f"spoiled a batch ({'; '.join(error.named)})"
        run.left_out |= dict.fromkeys(error.parties, reason)


def _require_known_answers(run: OpenRun) -> None:
    """Refuse a run that would ask rows whose answers were there: its epsilon is of the others."""
    if (left := len(run.left)) > run.request.new_queries:
        raise RunEndedError(
            "answers that made rows free when the run was asked for must still be there: ask for "
            "a new run",
            f"{left} rows to ask, {run.request.new_queries} priced",
        )


def _require_affordable(run: OpenRun) -> None:
    """Refuse a run whose price is above a budget, as that of another version may be."""
    terms = run.request.terms
    if run.request.new_queries and terms.spec.is_private and budget_share(terms) > 1:
        cost, budget = tightest_cost(terms)
        raise BudgetExhaustedError(requested=cost, budget=budget, advice="ask for a new run")


def lack_of_room(run: OpenRun) -> str:
    """Say that the results of a run have no room now; "" if they have; raise if they never will."""
    try:
        require_request(run.request, run.task, run.results)
    except RunDirectoryError as error:
        return said(error)
    except PateFedError as error:
        must = "what follows the last label must be possible before the next one is charged"
        raise RunEndedError(must, said(error)) from error
    return ""


def _has_lost_keys(error: Exception | None) -> bool:
    return isinstance(error, PartyRefusedError) and error.cause in _LOST
