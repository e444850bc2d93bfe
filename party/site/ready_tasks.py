"""The tasks of approved pools whose teachers are ready."""

from __future__ import annotations

import logging
from collections.abc import Callable

from party.errors import PartyError
from party.site.evaluations import ready_evaluation
from party.site.folder import Site
from party.site.tasks import AskedTask, PartyTask, Vote, party_task, read_task
from party.site.training import load_teachers, ready_teachers, teachers_digest
from pate_fed.data.task import LearningTask
from pate_fed.errors import PateFedError
from pate_fed.evaluation_task import EvaluationTask

_TRY_AGAIN_S = 60.0
"""How often missing teachers are tried again."""

_log = logging.getLogger(__name__)

VoteOf = Callable[[Site, LearningTask], Vote]
"""Gives the teachers of a task, for tests; in a service they are those of `party.site.training`."""


class ReadyTasks:
    """Trains or loads teachers, and keeps them.

    Args:
        site: The hospital's folder.
        random_bytes: Cryptographic random numbers.
        clock: Unix time, in seconds.
        tell: Called now and then while teachers are trained.
        vote_of: Other teachers, in tests.

    Attributes:
        by_pool: The tasks, by the digests of their pools.
        trouble: Code of the fault that keeps an approved task from being ready; "" if all are.
    """

    def __init__(
        self,
        site: Site,
        *,
        random_bytes: Callable[[int], bytes],
        clock: Callable[[], float],
        tell: Callable[[], None],
        vote_of: VoteOf | None,
    ) -> None:
        self._site = site
        self._random_bytes = random_bytes
        self._clock = clock
        self._tell = tell
        self._vote_of = vote_of
        self._tried: tuple[object, float] | None = None
        self.by_pool: dict[bytes, PartyTask] = {}
        self.trouble = ""

    def load(self, approved: frozenset[bytes], *, train: bool) -> None:
        """Make the teachers of every approved pool ready; one that cannot be is left out.

        Missing teachers are trained only if `train` says so: it takes long, and a packet may come.
        """
        now = self._clock()
        if self._tried == (approved, now // _TRY_AGAIN_S):
            return  # a table is hashed for it: not every second
        self._tried = approved, now // _TRY_AGAIN_S
        trouble = ""
        for pool in sorted(approved - self.by_pool.keys()):
            try:
                self.by_pool[pool] = self._task(read_task(self._site, pool), train=train)
            except (PartyError, PateFedError) as error:
                _log.error("the teachers of an approved pool are not ready: %s", error.code)
                trouble = error.code
        self.trouble = trouble

    def _task(self, task: AskedTask, *, train: bool) -> PartyTask:
        if isinstance(task, EvaluationTask):
            return ready_evaluation(self._site, task)
        if self._vote_of is not None:
            vote = self._vote_of(self._site, task)
            return PartyTask(task.pool, vote, len(task.class_names), task.digest)
        if train:
            ensemble = ready_teachers(
                self._site, task, random_bytes=self._random_bytes, tell=lambda *_: self._tell()
            )
        else:
            ensemble = load_teachers(self._site, task)
        return party_task(task, ensemble, teachers=teachers_digest(self._site, task))
