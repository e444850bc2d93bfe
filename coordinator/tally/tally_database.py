"""A tally's database: one SQLite file. What is erased is gone."""

from __future__ import annotations

from coordinator.errors import DatabaseError, DatabaseVersionError
from coordinator.tally.tally_schema import TallyRow
from pate_fed.nodes.database import NodeDatabase


class TallyDatabase(NodeDatabase):
    """A tally's database; see `NodeDatabase`."""

    package = "coordinator.tally"
    newest = "0001"
    tables = TallyRow.metadata
    fault = damage_fault = DatabaseError
    version_fault = DatabaseVersionError
    emptied = "the database must hold what was made with the tally: no older copy may replace it"
    pragmas = ("secure_delete=ON",)
