"""A data set in words, before anything is trained: columns used, their types, columns left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pate_fed import wording
from pate_fed.data import Dataset


def data_table(dataset: Dataset) -> dict[str, Any]:
    """Return a data set for `metrics.json`; it holds no cell.

    Returns:
        "records" and "patients" of the private part, the pool and the test; "classes": share of
        each class in pool and test together, by name; "columns": list of name, use and reason.
    """
    public = np.concatenate([dataset.pool.labels, dataset.test.labels])
    counts = np.bincount(public, minlength=dataset.classes)
    parts = dict(zip(("private", "pool", "test"), dataset.parts, strict=True))
    return {
        "records": {name: len(part) for name, part in parts.items()},
        "patients": {name: part.unit_count for name, part in parts.items()},
        "classes": {
            name: int(count) / len(public)
            for name, count in zip(dataset.class_names, counts, strict=True)
        },
        "columns": [{"name": one.name, "use": one.use, "why": one.why} for one in dataset.columns],
    }


def data_lines(table: Mapping[str, Any]) -> Iterator[str]:
    """Say the same to a person, a line each.

    Args:
        table: From `data_table`.
    """
    records = table["records"]
    yield (
        f"Records: {records['private']:,} of hospitals, {records['pool']:,} in the public pool, "
        f"{records['test']:,} to test."
    )
    shares = ", ".join(
        f"{name} {wording.percent(share)}" for name, share in table["classes"].items()
    )
    yield f"Classes (public part): {shares}."
    columns = table["columns"]
    for use, words in (("number", "numbers"), ("category", "categories")):
        names = [_named(one) for one in columns if one["use"] == use]
        if names:
            yield f"Columns used as {words}: {', '.join(names)}."
    left = [f"{one['name']} ({one['why']})" for one in columns if one["use"] == "left out"]
    if left:
        yield f"Columns left out: {', '.join(left)}."


def _named(column: Mapping[str, str]) -> str:
    return f"{column['name']} ({column['why']})" if column["why"] else column["name"]
