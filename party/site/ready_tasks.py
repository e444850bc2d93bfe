"""The tasks of approved pools, ready for queries."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

from party.errors import PartyError, TaskError
from party.site.evaluations import ready_evaluation
from party.site.party_task import PartyTask, Vote
from party.site.site import Site
from party.site.student_child import predictions
from party.site.tasks import party_task, read_task
from party.site.training import (
    load_teachers,
    ready_teachers,
    record_voters,
    teachers_digest,
)
from pate_fed.data.task import LearningTask
from pate_fed.errors import PateFedError
from pate_fed.evaluation_task import EvaluationTask

_TRY_AGAIN_S = 60.0

_log = logging.getLogger(__name__)

VoteOf = Callable[[Site, LearningTask], Vote]
"""Gives the teachers of a task, for tests; in a service they are those of `party.site.training`."""


class ReadyTasks:
    """Trains or loads teachers, and keeps them; has students predict, beside the service.

    `by_pool` has the tasks, by the digests of their pools, and counts its `changes`. `trouble` is
    the code of the fault that keeps an approved task from being ready; "" if all are.
    """

    def __init__(
        self,
        site: Site,
        *,
        clock: Callable[[], float],
        tell: Callable[[], None],
        vote_of: VoteOf | None,
    ) -> None:
        self._site = site
        self._clock = clock
        self._tell = tell
        self._vote_of = vote_of
        self._tried: tuple[object, float] | None = None
        self._predicted: dict[bytes, Future[PartyTask]] = {}
        self._failed: dict[bytes, TaskError] = {}
        self._closing = threading.Event()
        self._one_at_a_time = threading.Lock()
        self.by_pool: dict[bytes, PartyTask] = {}
        self.changes = 0
        self.trouble = ""

    def use(self, site: Site) -> None:
        """Take the site with another table: no task is ready before it is loaded again."""
        self._site = site
        self._tried = None
        self._predicted, self._failed = {}, {}
        self.by_pool = {}
        self.changes += 1

    def load(self, approved: frozenset[bytes], *, train: bool) -> None:
        """Make every approved pool ready to be asked about; one that cannot be is left out.

        Missing teachers are trained only if `train` says so: it takes long, and a packet may come.
        A student predicts meanwhile: its pool is ready in a later call.
        """
        now = self._clock()
        waited = approved & self._predicted.keys() - self._failed.keys()
        has_ended = any(self._predicted[one].done() for one in waited)
        if self._tried == (approved, now // _TRY_AGAIN_S) and not has_ended:
            return  # a table is hashed for it: not every second
        self._tried = approved, now // _TRY_AGAIN_S
        trouble = ""
        for pool in sorted(approved - self.by_pool.keys()):
            try:
                found = self._task(pool, train=train)
                if found is not None:
                    self.by_pool[pool] = found
                    self.changes += 1
            except (PartyError, PateFedError) as error:
                _log.error("an approved pool is not ready: %s", error.code)
                trouble = error.code
        self.trouble = trouble

    def close(self) -> None:
        """Give up predictions that are being made."""
        self._closing.set()

    def _task(self, pool: bytes, *, train: bool) -> PartyTask | None:
        predicted = self._predicted.get(pool)
        if predicted is not None:
            if not predicted.done():
                return None
            try:
                return predicted.result()
            except TaskError as error:
                # No second try: how often a student passes that nearly takes too long tells
                # something about the patients.
                self._failed[pool] = error
                raise
            except (PartyError, PateFedError):
                del self._predicted[pool]  # the table may be mended
                raise
        task = read_task(self._site, pool)
        if isinstance(task, EvaluationTask):
            self._predicted[pool] = self._predict(task)
            return None
        return self._with_teachers(task, train=train)

    def _predict(self, task: EvaluationTask) -> Future[PartyTask]:
        """Have a student predict in a thread, one after another: packets are answered meanwhile."""
        future: Future[PartyTask] = Future()
        site = self._site

        def run() -> None:
            try:
                with self._one_at_a_time:
                    if self._closing.is_set():
                        return
                    found = ready_evaluation(
                        site, task, predict=predictions, wait=self._closing.wait
                    )
                if not self._closing.is_set():  # else it did not wait for its time
                    future.set_result(found)
            except (PartyError, PateFedError) as error:
                future.set_exception(error)
            except Exception as error:
                must = "a student must be tried: is there memory, and room for processes?"
                future.set_exception(TaskError(must, type(error).__name__))

        try:
            threading.Thread(target=run, name="evaluation", daemon=True).start()
        except RuntimeError as error:
            raise TaskError("there must be room for a thread") from error
        return future

    def _with_teachers(self, task: LearningTask, *, train: bool) -> PartyTask:
        site, voters, patients = self._site.using(task.data_set), None, None
        if site.settings.do_records_vote:
            voters, patients = record_voters(site, task)
        number = site.settings.teachers if site.data_set else None
        if self._vote_of is not None:
            vote = self._vote_of(site, task)
            return PartyTask(
                task.pool, vote, task.classes, task.digest, patients=patients, votes=number
            )
        if voters is None and train:
            voters = ready_teachers(
                site, task, random_bytes=secrets.token_bytes, tell=lambda *_: self._tell()
            )
        elif voters is None:
            voters = load_teachers(site, task)
        ready = party_task(task, voters, teachers=teachers_digest(site, task), patients=patients)
        return replace(ready, votes=number)
