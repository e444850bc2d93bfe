"""A federation, as its operator uses it: hospitals, runs, results, people.

The one door of the command line and of the console. The service meets it in the database alone, so
a kill of either loses no order.
"""

from __future__ import annotations

import hashlib
import logging
import os
import pwd
import secrets
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from coordinator.database import (
    Actor,
    Database,
    FederationAct,
    FederationAuditLog,
    ReleasedAnswers,
    erase_checks,
    stored_check,
)
from coordinator.errors import RunQueueError, RunRequestError, SuperLinkError
from coordinator.federation.enrollment import (
    INVITATION_LIFETIME,
    EnrolledParty,
    Enrollment,
)
from coordinator.federation.home import LOOPBACK, FederationHome, utc_now
from coordinator.flower.superlink_child import flower_variables
from coordinator.people.api_tokens import ApiTokens
from coordinator.people.budget import FederationBudget
from coordinator.people.people import People
from coordinator.people.sessions import Sessions
from coordinator.runs.asked_evaluation import AskedEvaluation, asked_evaluation
from coordinator.runs.finished import FinishedRuns
from coordinator.runs.open_run import RUN_LIFETIME_S
from coordinator.runs.pools import Pools
from coordinator.runs.preflight import require_request
from coordinator.runs.query_states import AskedQuery, query_states
from coordinator.runs.queue import Run, RunQueue, RunState
from coordinator.runs.request import RunRequest, read_learning_task
from coordinator.runs.spending import Spending
from coordinator.runs.standings import HospitalStanding, standings_of
from coordinator.tally.side_material import SideFile
from pate_fed.data.new_task import NO_FACTS, make_task
from pate_fed.data.reading import USUAL, Reading
from pate_fed.data.task import LearningTask
from pate_fed.data.task_facts import TaskFacts
from pate_fed.evaluation_task import EvaluationTask
from pate_fed.inputs import DatasetKind
from pate_fed.nodes.audit_log import Fact, Facts
from pate_fed.nodes.owner_files import as_fault
from pate_fed.planning import RunSettings
from pate_fed.planning.evaluation_settings import EvaluationSettings
from protocols.errors import InvalidVectorError
from protocols.forms import FORMS, Verified, usual_form
from protocols.invitation import Invitation
from protocols.party_names import normalized
from protocols.suites import DEFAULT_SUITE
from protocols.verified import VoteLayout

if TYPE_CHECKING:
    from coordinator.flower.superlink_client import SuperLinkClient

T = TypeVar("T")
PATIENCE_S: Final = 24 * 3600.0
_log = logging.getLogger(__name__)


class Coordinator:
    """A federation, as its operator uses it. Each act and its audit entry are stored together.

    The actor is the login of this process, on the command line, where no person is named.
    """

    people: People
    tokens: ApiTokens
    budget: FederationBudget

    def __init__(
        self, home: FederationHome, *, upgrades: bool = False, actor: Actor | None = None
    ) -> None:
        self.home = home
        self._actor = actor or Actor(_login(), "command line")
        self._database = Database(home.database_url, upgrades=upgrades)
        self.enrollment = Enrollment(
            home, self._database, random_bytes=secrets.token_bytes, clock=utc_now
        )
        self.queue = RunQueue(self._database, clock=utc_now)
        self.pools = Pools(home)
        self.finished = FinishedRuns(home)
        self.spending = Spending(self.queue)
        self.audit_log = FederationAuditLog(self._database)
        self.answers = ReleasedAnswers(self._database)
        self.sessions = Sessions(self._database, random_bytes=secrets.token_bytes, clock=utc_now)
        _let_act(self, self._actor)

    @classmethod
    def open(cls, folder: Path, *, upgrades: bool = False) -> Self:
        """Open a federation's folder."""
        return cls(FederationHome.open(folder.absolute()), upgrades=upgrades)

    def on_behalf_of(self, person: str, *, door: str) -> Self:
        """Return the same federation, where another person acts; closing either closes both."""
        other = copy(self)
        _let_act(other, Actor(person, door))
        return other

    def close(self) -> None:
        """Let go of the database."""
        self._database.close()

    # Hospitals --------------------------------------------------------------------------------

    def invite(self, party: str, *, lifetime: timedelta = INVITATION_LIFETIME) -> Invitation:
        """Make an invitation; see `Enrollment.invite`."""
        make = partial(self.enrollment.invite, lifetime=lifetime)
        return self._act(FederationAct.INVITED, party, make)

    def approve(self, party: str, *, words: str) -> EnrolledParty:
        """Make a hospital a member; see `Enrollment.approve`.

        Where no service runs, its node is let in once one does.
        """
        make = partial(self.enrollment.approve, words=words)
        approved = self._act(FederationAct.APPROVED, party, make)
        self._settle()
        return _present(self, approved.name) or approved

    def revoke(self, party: str) -> EnrolledParty | None:
        """Revoke a hospital, or withdraw its request or invitation; see `Enrollment.revoke`."""
        party = normalized(party)
        with self._database.as_one():
            before = _facts_of_party(self, party)
            revoked = self.enrollment.revoke(party)
            state = "withdrawn" if revoked is None else revoked.state
            self._tell(FederationAct.REVOKED, party, before, {"state": state})
        self._settle()
        return revoked

    def superlink(self) -> SuperLinkClient:
        """Return a connection to the SuperLink; the first call tells whether one runs."""
        # Flower takes a second to load, and most of an operator's commands need none of it.
        from coordinator.flower.superlink_client import SuperLinkClient  # noqa: PLC0415

        be_quiet(self.home)
        return SuperLinkClient(
            f"{LOOPBACK}:{self.home.settings.admin_port}",
            ca_certificate=self.home.ca_certificate,
            secret=self.home.superlink_secret,
        )

    def _settle(self) -> None:
        """Tell the SuperLink at once, if one runs; otherwise the service does it at its start."""
        try:
            self.enrollment.settle(self.superlink())
        except SuperLinkError:
            _log.info("no SuperLink runs: nodes are let in and put out once one does")

    # Runs -------------------------------------------------------------------------------------

    def read_queries(
        self,
        path: Path,
        *,
        label: str,
        classes: Sequence[str],
        ignored: Sequence[str] = (),
        reading: Reading = USUAL,
        facts: TaskFacts = NO_FACTS,
    ) -> LearningTask:
        """Read a table of public inputs as the task that its columns and classes belong to.

        The first pool of a task decides how columns are read. Later ones are read the same, so
        hospitals' teachers serve them, and answered queries are not asked again.
        """
        return make_task(
            path,
            label=label,
            classes=classes,
            ignored=ignored,
            reading=reading,
            facts=facts,
            known=list(self.pools.all().values()),
        )

    def knows(self, task: LearningTask) -> bool:
        """Tell whether a pool of this task was published."""
        return any(one.digest == task.digest for one in self.pools.all().values())

    def settings_of(
        self, given: Mapping[str, Any], *, source: str, label: str, kind: DatasetKind = "table"
    ) -> RunSettings:
        """Return the settings that a person asks for; those of `given` that are None stay open."""
        members = [one for one in self.enrollment.parties() if one.state == "member"]
        given = {
            **given,
            **(
                {"data": "images", "data_file": Path(source)}
                if kind == "image"
                else {"data": "csv", "data_file": Path(source), "label": label}
            ),
            "suite": given.get("suite") or DEFAULT_SUITE,
        }  # fmt: skip
        usual = usual_form(len(members))
        if self.home.tally is not None and given.get("noise") in (None, "aggregators"):
            usual = Verified.name  # what it cannot do is refused, and never done another way
        return RunSettings.of({**given, "form": given["form"] or usual})

    def draft(
        self,
        name: str,
        task: LearningTask,
        settings: RunSettings,
        *,
        source: str,
        select: str = "medoids",
        patience_s: float = PATIENCE_S,
        seed: int = 0,
    ) -> RunRequest:
        """Fill in a run, and store nothing: `coordinator.runs.run_price` has its cost.

        Raises:
            RunRequestError: a query was answered in a run of another task.
            See `RunRequest.make`, and `require_chargeable`.
        """
        if FORMS[settings.form].adds_noise and self.home.tally is None:
            raise RunRequestError(
                "a run whose votes are verified must have a tally: `pate-fed tally invite` begins "
                "with one",
                "a federation without",
            )
        members = [one for one in self.enrollment.parties() if one.state == "member"]
        if select == "all" and settings.caps.max_asks is None:
            caps = replace(settings.caps, max_asks=len(task.pool.distinct))
            settings = replace(settings, caps=caps)
        identities = [one.identity.fingerprint for one in members]

        def answered(queries: tuple[int, ...]) -> int:
            digests = task.pool.ask(queries).digests
            return len(self.answers.find(digests, task_digest=task.digest, members=identities))

        request = RunRequest.make(
            name,
            task,
            members=members,
            settings=settings,
            source=source,
            select=select,
            patience_s=patience_s,
            seed=seed,
            answered=answered,
        )
        require_request(request, task, self.home.results(name))
        if FORMS[request.settings.form].adds_noise:
            _require_provable(request)
        digests = task.pool.ask(request.queries).digests
        elsewhere = self.answers.count_of_other_tasks(digests, task_digest=task.digest)
        if elsewhere:
            raise RunRequestError(
                "hospitals answer a row once: leave rows out that were answered in a run of "
                "another task",
                f"{elsewhere} of its queries that were",
            )
        return request

    def enqueue(self, request: RunRequest, task: LearningTask | EvaluationTask) -> Run:
        """Publish a task and queue a run of it, as it was filled in.

        Raises:
            RunRequestError: its name is taken, or its pool cannot be published.
            BudgetRuleError: the federation's budget does not hold it.
            See `require_chargeable`.
        """
        require_request(request, task, self.home.results(request.name))
        name, text = request.name, request.to_json()
        if self.home.path("runs", name).exists():
            raise RunRequestError("a run must have a name of its own", f"{name} again")
        digest = hashlib.sha256(text.encode()).hexdigest()
        with self.pools.published(request.pool, task), self._database.as_one():
            self.budget.require_room(
                [one.name for one in request.parties],
                request.epsilon,
                used=self.spending.committed,
            )
            queued = self.queue.add(name, text)
            asked: dict[str, Fact] = {"queries": len(request.queries), "request_sha256": digest}
            self._tell(FederationAct.ASKED, name, {}, {**_facts_of_run(queued), **asked})
        return queued

    def pause(self, name: str) -> Run:
        """Ask that a run rests; see `RunQueue.pause`."""
        return self._order(FederationAct.PAUSED, name, self.queue.pause)

    def resume(self, name: str) -> Run:
        """Let a paused run go on; see `RunQueue.resume`."""
        return self._order(FederationAct.RESUMED, name, self.queue.resume)

    def stop(self, name: str) -> Run:
        """Ask that a run ends; see `RunQueue.stop`."""
        return self._order(FederationAct.STOPPED, name, self.queue.stop)

    def queries(self, name: str) -> tuple[RunRequest, list[AskedQuery]]:
        """Return the request of a run that asks for labels, and each query's state."""
        request = RunRequest.from_json(self.queue.request(name))
        task = read_learning_task(self.home, request)
        return request, query_states(self._database, request, task=task)

    def export(
        self, name: str, out: Path, *, private: bool = False, agreed: Collection[str] = ()
    ) -> list[str]:
        """Write a run's results into a new folder: its public edition, or all; return the files.

        `agreed` names the hospitals that a public edition may name; the others get numbers.

        Raises:
            RunQueueError: no such run, nothing of it is there yet, or the folder exists.
            RunDirectoryError: it has no public edition, or `agreed` names a stranger.
        """
        self.queue.find(name)
        source = self.home.results(name)
        if not source.is_dir():
            raise RunQueueError("a run that is exported must have ended with labels", "none yet")
        if os.path.lexists(out):
            raise RunQueueError("--out must be a new folder")
        # First the entry: no copy without one. A copy that fails later has one as well.
        edition = "private" if private else "public"
        facts = {"to": ascii(str(out))[1:-1], "edition": edition}
        self._tell(FederationAct.EXPORTED, name, {}, facts)
        if private:
            with as_fault(RunQueueError, "--out must be a new folder"):
                shutil.copytree(source, out)
        else:
            from pate_fed.report import write_public_edition  # noqa: PLC0415 - plots take a second

            write_public_edition(source, out, agreed=agreed)
        return sorted(one.name for one in out.iterdir())

    def hand_out(self, name: str, file: str) -> bytes:
        """Return one file of a run's results, and tell it; see `FinishedRuns.content`."""
        self.queue.find(name)
        content = self.finished.content(name, file)
        self._tell(FederationAct.EXPORTED, name, {}, {"file": file})
        return content

    # The audit log ----------------------------------------------------------------------------

    def _act(self, act: FederationAct, party: str, move: Callable[[str], T]) -> T:
        """Do something with a hospital, and tell it."""
        party = normalized(party)
        with self._database.as_one():
            before = _facts_of_party(self, party)
            done = move(party)
            self._tell(act, party, before, _facts_of_party(self, party))
        return done

    def _order(self, act: FederationAct, name: str, give: Callable[[str], Run]) -> Run:
        """Give an order to a run, and tell it."""
        with self._database.as_one():
            before = _facts_of_run(self.queue.find(name))
            run = give(name)
            self._tell(act, name, before, _facts_of_run(run))
        return run

    def _tell(
        self,
        act: FederationAct,
        subject: str,
        before: Mapping[str, Fact],
        after: Mapping[str, Fact],
    ) -> None:
        who = {"by": self._actor.name, "from": self._actor.origin}
        facts: Facts = {**who, "subject": subject, "before": dict(before), "after": dict(after)}
        self.audit_log.append(act, facts, at=utc_now().timestamp())


def suspend(coordinator: Coordinator, party: str) -> EnrolledParty:
    """Ask a hospital nothing until `reinstate`; see `Enrollment.suspend`."""
    return coordinator._act(FederationAct.SUSPENDED, party, coordinator.enrollment.suspend)


def reinstate(coordinator: Coordinator, party: str) -> EnrolledParty:
    """Let a suspended hospital take part again; see `Enrollment.reinstate`."""
    return coordinator._act(FederationAct.REINSTATED, party, coordinator.enrollment.reinstate)


def standings(
    coordinator: Coordinator, runs: Collection[Run]
) -> dict[str, tuple[HospitalStanding, ...]]:
    """Return where each hospital of some runs stands, by the run's name; the same for all doors."""
    terms, parties = coordinator.spending.terms(), coordinator.enrollment.parties()
    answers = coordinator.queue.hospitals.answers([run.number for run in runs])
    return {
        run.name: standings_of(
            dict(zip(terms[run.number].fingerprints, terms[run.number].hospitals, strict=True)),
            is_ended=run.is_ended,
            parties=parties,
            answers=answers[run.number],
            votes=terms[run.number].votes,
            now=utc_now(),
        )
        for run in runs
    }


def reports_without_votes(coordinator: Coordinator) -> tuple[tuple[str, str, int], ...]:
    """Return whose reports held no votes: hospital, run, and how many; the newest run first."""
    terms, runs = coordinator.spending.terms(), coordinator.queue.all()
    answers = coordinator.queue.hospitals.answers([run.number for run in runs])
    return tuple(
        (name, run.name, said[party].no_votes)
        for run in reversed(runs)
        if (said := answers[run.number])
        for party, name in zip(
            terms[run.number].fingerprints, terms[run.number].hospitals, strict=True
        )
        if party in said and said[party].no_votes
    )


def changed_votes(coordinator: Coordinator, request: RunRequest) -> dict[str, int]:
    """Return the hospitals that had another number of votes in their last run, with that number."""
    last: dict[bytes, int] = {}
    for _, terms in sorted(coordinator.spending.terms().items()):
        last |= terms.votes
    return {
        one.name: last[one.fingerprint]
        for one in request.parties
        if last.get(one.fingerprint, one.teachers) != one.teachers
    }


def evaluation_of(
    coordinator: Coordinator,
    run: str,
    settings: EvaluationSettings,
    *,
    by: Sequence[str] = (),
    name: str = "",
    patience_s: float = PATIENCE_S,
) -> AskedEvaluation:
    """Prepare an evaluation of a run's student, with its price; see `asked_evaluation`.

    Nothing is asked yet. Its run is called like the run, with ".evaluation", where no name is
    given.
    """
    return asked_evaluation(
        coordinator.home,
        RunRequest.from_json(coordinator.queue.request(run)),
        settings,
        name=name or f"{run}.evaluation",
        by=by,
        members=[one for one in coordinator.enrollment.parties() if one.state == "member"],
        patience_s=patience_s,
    )


def evaluate(coordinator: Coordinator, asked: AskedEvaluation) -> Run:
    """Queue an evaluation; one of the same student in the same groups is not asked again.

    Hospitals count for a question once in their life. So a run that asks it already, or has its
    answer, is returned instead: no fresh noise, and no charge.
    """
    for known in coordinator.queue.all():
        is_lost = known.state in (RunState.FAILED, RunState.STOPPED)
        request = RunRequest.from_json(coordinator.queue.request(known.name))
        if not is_lost and asked.is_asked_by(request):
            return known
    return coordinator.enqueue(asked.request, asked.task)


def side_of_batch(coordinator: Coordinator, plan: str, *, is_secret: bool) -> SideFile:
    """Return the coordinator's file of a verified batch, by first digits of its plan's digest.

    Secret, it holds the coordinator's opened parts and its noise: for an auditor who has nothing of
    the tally's.
    """
    stored = stored_check(coordinator._database, plan)
    return SideFile.of_steps(
        "coordinator",
        stored.steps,
        coordinator=coordinator.home.identity.public,
        record=stored.record,
        plan=stored.plan,
        key=stored.key if is_secret else None,
    )


def erase_ended(coordinator: Coordinator) -> int:
    """Erase keys and reports of setups whose audit window has ended; return the number of keys.

    Each expires with its run's lifetime, whatever became of the run, and is kept for the window.
    """
    kept = timedelta(days=coordinator.home.settings.audit_days, seconds=RUN_LIFETIME_S)
    return erase_checks(coordinator._database, begun_before=utc_now() - kept)


def be_quiet(home: FederationHome) -> None:
    """Let Flower's parts in this process call nobody, and write into the folder alone."""
    os.environ.update(flower_variables(home))


def _let_act(coordinator: Coordinator, actor: Actor) -> None:
    """Let the acts at a door be those of a person."""
    coordinator._actor, database, tell = actor, coordinator._database, coordinator._tell
    random = secrets.token_bytes
    coordinator.people = People(database, random_bytes=random, clock=utc_now, tell=tell)
    coordinator.tokens = ApiTokens(database, random_bytes=random, clock=utc_now, tell=tell)
    coordinator.budget = FederationBudget(database, clock=utc_now, actor=actor, tell=tell)


def _present(coordinator: Coordinator, name: str) -> EnrolledParty | None:
    """Return the hospital that has a name now."""
    found = (one for one in coordinator.enrollment.parties() if one.name == name)
    return next((one for one in found if one.state != "revoked"), None)


def _facts_of_party(coordinator: Coordinator, party: str) -> dict[str, Fact]:
    """Return the facts of a hospital that its audit entries state."""
    party = normalized(party)
    known = _present(coordinator, party)
    if known is not None:
        facts: dict[str, Fact] = {
            "state": known.state,
            "fingerprint": known.identity.fingerprint.hex(),
        }
        return {**facts, "votes": known.votes} if known.state == "member" else facts
    open_until = [
        one.expires_at.isoformat(timespec="seconds")
        for one in coordinator.enrollment.invitations()
        if one.party == party and one.is_open(now=utc_now())
    ]
    return {"state": "invited", "until": open_until[-1]} if open_until else {}


def _login() -> str:
    """Return the login that this process runs as; variables of the environment cannot change it."""
    number = os.getuid()
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def _facts_of_run(run: Run) -> dict[str, Fact]:
    return (
        {"state": run.state.value, "wanted": run.wanted}
        if run.wanted
        else {"state": run.state.value}
    )


def _require_provable(request: RunRequest) -> None:
    """Refuse batches too large for a hospital's proof, before a hospital votes on one."""
    rows = request.settings.caps.batch_size or len(request.queries)
    for votes in {one.teachers for one in request.parties}:
        try:
            VoteLayout.of(queries=rows, columns=len(request.class_names), votes=votes)
        except InvalidVectorError as error:
            raise RunRequestError(error.must, error.got) from error
