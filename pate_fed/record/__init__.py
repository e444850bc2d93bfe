"""The typed record of a run: the content of its files, as values.

`privacy.json`, `metrics.json`, `manifest.json`, `audit.json` and `run.toml` are read into these
tables and written from them. Loading them takes a moment, since pydantic does.
"""

from pate_fed.record.audit import Audit
from pate_fed.record.base import SCHEMA_VERSION, File, RecordTable, about
from pate_fed.record.manifest import Manifest
from pate_fed.record.metrics import Metrics
from pate_fed.record.privacy import Privacy
from pate_fed.record.settings import Settings

TABLES: dict[str, type[RecordTable]] = {
    table.FILE: table for table in (Privacy, Metrics, Manifest, Settings, Audit)
}
"""The table of each file, by its name."""

__all__ = [
    "SCHEMA_VERSION",
    "TABLES",
    "Audit",
    "File",
    "Manifest",
    "Metrics",
    "Privacy",
    "RecordTable",
    "Settings",
    "about",
]
