"""The stated cost of each run, worked out once: composition takes seconds, and pages list many.

Each row is a constant of a run's terms, so it is kept for ever; another version of this program
works it out anew.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict

from sqlalchemy import bindparam, select

from party.errors import StorageDamagedError
from party.storage.party_database import PartyDatabase
from party.storage.site_schema import RunPriceRow
from pate_fed import version
from pate_fed.accounting import FormalCost
from pate_fed.nodes.database import put
from pate_fed.prices import run_price
from pate_fed.terms import RunTerms
from protocols.values import encode_value

_RECORD = select(RunPriceRow.record).where(RunPriceRow.key == bindparam("key"))


class RunPrices:
    """`prices.run_price` of runs. Every process of the site may read and add them.

    The node, which looks at any terms that are sent, adds none: they could fill the disk.
    """

    def __init__(self, database: PartyDatabase) -> None:
        self._database = database

    def of(self, terms: RunTerms) -> FormalCost:
        """Return a run's stated cost, worked out if nobody here has asked for it before."""
        facts = [version.__version__, terms.as_record()]
        key = hashlib.sha256(encode_value(facts)).digest()
        with self._database.transaction() as connection:
            stored = connection.scalar(_RECORD, {"key": key})
        if stored is not None:
            try:
                return FormalCost(**json.loads(stored))
            except (ValueError, TypeError, AttributeError) as error:
                raise StorageDamagedError("a run's stated cost must be readable") from error
        found = run_price(terms)
        with self._database.transaction() as connection:
            put(connection, RunPriceRow, {"key": key, "record": json.dumps(asdict(found))})
        return found
