"""Real records from files and bundled sets, split and preprocessed without private statistics."""

from pate_fed.data.dataset import Dataset, DatasetKind, Records
from pate_fed.data.sources import SOURCE_NAMES, DataSource, load_dataset

__all__ = ["SOURCE_NAMES", "DataSource", "Dataset", "DatasetKind", "Records", "load_dataset"]
