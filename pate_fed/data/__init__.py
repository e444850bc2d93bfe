"""Real records from files and bundled sets, split and preprocessed without private statistics."""

from pate_fed.data.dataset import Dataset, Records
from pate_fed.data.sources import SOURCE_NAMES, DataSource, load_dataset, read_public_inputs
from pate_fed.inputs import DatasetKind, Inputs

__all__ = [
    "SOURCE_NAMES",
    "DataSource",
    "Dataset",
    "DatasetKind",
    "Inputs",
    "Records",
    "load_dataset",
    "read_public_inputs",
]
