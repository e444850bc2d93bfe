"""Another student for a finished simulation: its public inputs are loaded once more."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from coordinator.runs.retraining import PublicInputs, give_student
from coordinator.simulation.chance import Chance
from coordinator.simulation.earlier_runs import simulation_record
from pate_fed.data import Dataset, DataSource, load_dataset
from pate_fed.errors import InvalidDataError, RunDirectoryError
from pate_fed.options import OPTIONS, fields_of
from pate_fed.queries import QueryPool
from pate_fed.report import FinishedRun
from protocols.identity import SigningIdentity


def train_another(
    run_dir: Path, name: str, *, data_dir: Path | None = None, data_file: Path | None = None
) -> tuple[FinishedRun, list[str]]:
    """Train a student of another kind from a simulation's labels; see `give_student`.

    No run directory names folders: its data set's folder or file is named again.

    Raises:
        RunDirectoryError: it is no simulation's.
        InvalidDataError: the public pool is not the simulation's.
        See `give_student`.
    """
    record = simulation_record(run_dir, what="RUN")
    split, settings = record.manifest.split, record.settings
    assert split is not None
    try:
        root, key = bytes.fromhex(split.seed), bytes.fromhex(split.coordinator)
        identity = SigningIdentity.from_private_bytes(key)
    except ValueError as error:
        raise RunDirectoryError("manifest.json must have its split") from error
    chance = Chance(settings.seed, root=root, run_number=1 + len(settings.earlier))
    kept = {name: value for name, value in settings if name in OPTIONS and value is not None}
    given = {**kept, "data": settings.data or "", "data_dir": data_dir, "data_file": data_file}
    source = DataSource(**fields_of("data", given))
    dataset = load_dataset(source, rng=chance.of("data"))
    pool = QueryPool(dataset.pool.features, images=dataset.pool.images)
    if pool.digest.hex() != record.manifest.pool_sha256:
        raise InvalidDataError("the public pool must be that of the run")
    inputs = PublicInputs(
        pool=pool,
        kind=dataset.kind,
        class_names=dataset.class_names,
        preprocessing=dataset.preprocessing,
        labels=dataset.labels,
        pool_shares=pool_shares(dataset),
        test=dataset.test,
    )
    return give_student(
        run_dir, name, inputs, identity=identity, rng=chance.of("student"), run=str(run_dir)
    )


def pool_shares(dataset: Dataset) -> tuple[tuple[float, ...] | None, ...]:
    """Return the share of each class in a simulation's pool, label by label.

    None for a label of which a class does not occur.
    """
    found: list[tuple[float, ...] | None] = []
    for label in range(dataset.label_count):
        answers = dataset.pool.labels[label :: dataset.label_count]
        counts = np.bincount(answers, minlength=len(dataset.class_names))
        shares = tuple(float(one) for one in counts / len(answers))
        found.append(shares if min(shares) > 0 else None)
    return tuple(found)
