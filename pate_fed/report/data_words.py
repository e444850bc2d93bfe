"""A data set in words, before anything is trained: columns used, their types, columns left out."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pate_fed import wording
from pate_fed.data import Dataset
from pate_fed.record.metrics import Data, Parts, UsedColumn


def data_table(dataset: Dataset) -> Data:
    """Return a data set for `metrics.json`, without an outlook; it holds no cell."""
    public = np.concatenate([dataset.pool.labels, dataset.test.labels])
    counts = np.bincount(public, minlength=dataset.classes)
    shares = counts / len(public)
    names = dataset.class_names
    if dataset.labels:
        shares = public.reshape(-1, len(dataset.labels)).mean(axis=0)
        names = tuple(f"{one}: {dataset.class_names[1]}" for one in dataset.labels)
    private, pool, test = dataset.parts
    records = dict(zip(("private", "pool", "test"), dataset.sizes, strict=True))
    return Data(
        records=Parts(**records),
        patients=Parts(private=private.unit_count, pool=pool.unit_count, test=test.unit_count),
        classes={name: float(share) for name, share in zip(names, shares, strict=True)},
        columns=tuple(
            UsedColumn(name=one.name, use=one.use, why=one.why) for one in dataset.columns
        ),
        outlook="",
    )


def data_lines(data: Data) -> Iterator[str]:
    """Say the same to a person, a line each."""
    records = data.records
    yield (
        f"Records: {records.private:,} of hospitals, {records.pool:,} in the public pool, "
        f"{records.test:,} to test."
    )
    shares = ", ".join(f"{name} {wording.percent(share)}" for name, share in data.classes.items())
    yield f"Classes (public part): {shares}."
    for use, words in (("number", "numbers"), ("category", "categories")):
        names = [_named(one) for one in data.columns if one.use == use]
        if names:
            yield f"Columns used as {words}: {', '.join(names)}."
    left = [f"{one.name} ({one.why})" for one in data.columns if one.use == "left out"]
    if left:
        yield f"Columns left out, by the public pool: {', '.join(left)}."


def _named(column: UsedColumn) -> str:
    return f"{column.name} ({column.why})" if column.why else column.name
