"""The stated costs of runs, worked out once: exact composition takes seconds, and pages list many.

Each row is a constant of a run's terms, so it is kept for ever; another version of this program
works it out anew.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass

from sqlalchemy import bindparam, select

import pate_fed
from party.errors import StorageDamagedError
from party.storage.engine import PartyDatabase
from party.storage.schema import RunCostRow
from pate_fed.accounting import FormalCost
from pate_fed.federation import RunTerms
from pate_fed.nodes.database import put
from pate_fed.pricing import public_cost, run_cost
from protocols import wire

_RECORD = select(RunCostRow.record).where(RunCostRow.key == bindparam("key"))


@dataclass(frozen=True, slots=True)
class StatedCosts:
    """A run's cost as it is stated, and one hospital's part of it.

    Attributes:
        run: `pricing.run_cost`: the number that everybody states for the run.
        own: `pricing.public_cost` of this hospital's units: at most the same.
    """

    run: FormalCost
    own: FormalCost


class RunCosts:
    """The stated costs of runs. Every process of the site may read and add them.

    Args:
        database: The site's.
    """

    def __init__(self, database: PartyDatabase) -> None:
        self._database = database

    def of(self, terms: RunTerms, seat: int) -> StatedCosts:
        """Return a run's stated costs, worked out if nobody here has asked for them before.

        Args:
            terms: The run's.
            seat: Place of this party among all, from 0.

        Raises:
            StorageDamagedError: the stored ones cannot be read.
            StorageError: they could not be read or stored.
        """
        facts = [pate_fed.__version__, seat, terms.as_record()]
        key = hashlib.sha256(wire.encode_value(facts)).digest()
        with self._database.transaction() as connection:
            stored = connection.scalar(_RECORD, {"key": key})
        if stored is not None:
            return _costs_in(stored)
        found = StatedCosts(run_cost(terms), public_cost(terms, seat))
        with self._database.transaction() as connection:
            put(connection, RunCostRow, {"key": key, "record": json.dumps(asdict(found))})
        return found

    def __repr__(self) -> str:
        return f"RunCosts({self._database!r})"


def _costs_in(record: str) -> StatedCosts:
    try:
        return StatedCosts(**{name: FormalCost(**one) for name, one in json.loads(record).items()})
    except (ValueError, TypeError, AttributeError) as error:
        raise StorageDamagedError("a run's stated cost must be readable", "another") from error
