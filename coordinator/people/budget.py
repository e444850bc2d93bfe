"""The federation's budget: the most epsilon of all runs together, which one person cannot raise.

The command line knows logins, not people, so it raises nothing. An administrator could invent the
second person, or take an account over by a new setup code. So an account that was made or changed
agrees to nothing for `SETTLED_AFTER`: others see its audit entry.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from coordinator.database import Actor, Database, FederationAct
from coordinator.database.federation_schema import FederationBudgetRow, PersonRow
from coordinator.errors import BudgetRuleError
from coordinator.people.people import Role, Tell

CONSOLE: Final = "console"
"""Origin of the acts of people who have signed in."""

PROPOSAL_LIFETIME: Final = timedelta(days=7)
SETTLED_AFTER: Final = timedelta(days=1)
AGREEING: Final = frozenset({Role.ADMINISTRATOR, Role.PRIVACY_OFFICER})
PROPOSING: Final = AGREEING | {Role.OPERATOR}
MOST_REASON_LETTERS: Final = 300
_HOLDS, _PROPOSED, _WITHDRAWN = "holds", "proposed", "withdrawn"
_SLACK: Final = 1e-9
"""Of sums of epsilons in floating point."""


@dataclass(frozen=True, slots=True)
class BudgetProposal:
    """A higher budget that waits for a second person."""

    number: int
    epsilon: float
    by: str
    reason: str
    until: datetime


class FederationBudget:
    """The budget, and the proposal that waits, if any. A refusal is a `BudgetRuleError`."""

    def __init__(
        self, database: Database, *, clock: Callable[[], datetime], actor: Actor, tell: Tell
    ) -> None:
        self._database = database
        self._clock = clock
        self._actor = actor
        self._tell = tell

    def epsilon(self) -> float | None:
        """Return the budget; None if none was set."""
        with self._database.session() as session:
            row = _held(session)
            return None if row is None else row.epsilon

    def proposal(self) -> BudgetProposal | None:
        """Return the proposal that waits for a second person."""
        with self._database.session() as session:
            row = self._open(session)
            return None if row is None else self._shown(row)

    def change(self, epsilon: float, *, reason: str = "") -> BudgetProposal | None:
        """Set the first or a lower budget, or propose a higher one; return the proposal."""
        if not (math.isfinite(epsilon) and epsilon > 0):
            raise BudgetRuleError("a budget must be a number above 0", epsilon)
        if len(reason) > MOST_REASON_LETTERS or not (reason.isprintable() or not reason):
            raise BudgetRuleError(
                f"a reason must be a line of at most {MOST_REASON_LETTERS} letters", len(reason)
            )
        with self._database.as_one(), self._database.session() as session:
            held = _held(session)
            known = None if held is None else held.epsilon
            if epsilon == known:
                raise BudgetRuleError("a budget must be another than before", f"{epsilon:g} again")
            is_raise = known is not None and epsilon > known
            if is_raise:
                self._require_person(session, PROPOSING)
            self._withdraw(session)
            now = self._clock()
            row = FederationBudgetRow(
                epsilon=epsilon,
                state=_PROPOSED if is_raise else _HOLDS,
                reason=reason,
                changed_by=self._actor.name,
                changed_at=now,
            )
            session.add(row)
            session.flush()
            before = {} if known is None else {"epsilon": f"{known:g}"}
            act = FederationAct.BUDGET_PROPOSED if is_raise else FederationAct.BUDGET_SET
            self._tell(act, "all runs", before, {"epsilon": f"{epsilon:g}", "reason": reason})
            return self._shown(row) if is_raise else None

    def agree(self, number: int) -> float:
        """Agree to a proposal as its second person; it holds from here on."""
        with self._database.as_one(), self._database.session() as session:
            row = self._open(session)
            if row is None or row.number != number:
                raise BudgetRuleError("the proposal must be open still")
            person = self._require_person(session, AGREEING)
            if person.name.casefold() == row.changed_by.casefold():
                raise BudgetRuleError("a second person must agree", "the one who proposed it")
            settled = person.changed_at + SETTLED_AFTER
            if settled > self._clock():
                raise BudgetRuleError(
                    "who agrees must have had their role and access for a day",
                    f"a change of {person.name} less than a day ago: try again after "
                    f"{settled:%Y-%m-%d %H:%M} UTC",
                )
            held = _held(session)
            before = {"epsilon": f"{held.epsilon:g}"} if held is not None else {}
            row.state = _HOLDS
            session.flush()
            facts = {"epsilon": f"{row.epsilon:g}", "proposed by": row.changed_by}
            self._tell(FederationAct.BUDGET_AGREED, "all runs", before, facts)
            return row.epsilon

    def withdraw(self) -> None:
        """Withdraw the open proposal, of whomever."""
        with self._database.as_one(), self._database.session() as session:
            if not self._withdraw(session):
                raise BudgetRuleError("a proposal must be open to be withdrawn")

    def require_room(
        self, hospitals: Iterable[str], epsilon: float, *, used: Callable[[], Mapping[str, float]]
    ) -> None:
        """Refuse a run that the budget does not hold; within the run's own transaction.

        `used` tells the epsilon of all other runs, by hospital.
        """
        with self._database.session() as session:
            held = _held(session)  # locked: of two runs at once the second sees the first
        if held is None:
            return
        known = used()
        for name in hospitals:
            left = held.epsilon - known.get(name, 0.0)
            if epsilon > left + _SLACK:
                raise BudgetRuleError(
                    f"all runs together must stay within the federation's budget of epsilon "
                    f"{held.epsilon:g}: ask for less, or let two people raise it",
                    f"epsilon {epsilon:g} for {name}, where {max(0.0, left):.4g} is left",
                )

    def _require_person(self, session: Session, roles: frozenset[Role]) -> PersonRow:
        """Return the acting person, with the role that they have now."""
        is_signed_in = self._actor.origin == CONSOLE
        row = session.get(PersonRow, self._actor.name) if is_signed_in else None
        if row is None:
            raise BudgetRuleError(
                "a budget must be raised by two people in the console", self._actor.origin
            )
        if row.role not in roles:
            may = " or ".join(sorted(roles))
            raise BudgetRuleError(f"this needs the role {may}", row.role)
        return row

    def _open(self, session: Session) -> FederationBudgetRow | None:
        row = session.scalars(_NEWEST.where(FederationBudgetRow.state == _PROPOSED)).first()
        is_open = row is not None and row.changed_at + PROPOSAL_LIFETIME > self._clock()
        return row if is_open else None

    def _withdraw(self, session: Session) -> bool:
        row = self._open(session)
        if row is None:
            return False
        row.state = _WITHDRAWN
        session.flush()
        self._tell(FederationAct.BUDGET_WITHDRAWN, "all runs", {"epsilon": f"{row.epsilon:g}"}, {})
        return True

    @staticmethod
    def _shown(row: FederationBudgetRow) -> BudgetProposal:
        until = row.changed_at + PROPOSAL_LIFETIME
        return BudgetProposal(row.number, row.epsilon, row.changed_by, row.reason, until)


_NEWEST: Final = (
    select(FederationBudgetRow)
    .order_by(FederationBudgetRow.number.desc())
    .limit(1)
    .with_for_update()
)


def _held(session: Session) -> FederationBudgetRow | None:
    return session.scalars(_NEWEST.where(FederationBudgetRow.state == _HOLDS)).first()
