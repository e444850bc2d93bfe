"""Reference numbers of the 2018 paper's public code, for the accounting tests.

`tests/vectors/pate_accounting.json` is a short extract over synthetic histograms. Where the
folder of real test data holds the full list, the same tests run over that as well.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

EXTRACT = Path(__file__).parent.parent / "vectors" / "pate_accounting.json"
SETS = ("extract", "full")


def load_vectors(which: str) -> dict[str, Any]:
    """Load the extract, or the full list; skip the test where that is absent."""
    path = EXTRACT
    if which == "full":
        folder = os.environ.get("PATE_FED_TEST_DATA")
        path = Path(folder or "") / "vectors" / "pate_accounting.json"
        if not folder or not path.is_file():
            pytest.skip("PATE_FED_TEST_DATA names no folder with vectors/pate_accounting.json")
    vectors: dict[str, Any] = json.loads(path.read_text())
    histograms = vectors["histograms"]
    if isinstance(histograms, list):
        vectors["histograms"] = {str(entry["id"]): entry["counts"] for entry in histograms}
    return vectors


def number(value: float | str) -> float:
    """Read a number that JSON may hold as "inf" or "-inf"."""
    return float(value)


def composition_counts(vectors: dict[str, Any], case: dict[str, Any]) -> list[list[int]]:
    """Return the counts of each query of a composition case, in order."""
    if "query_hist_ids" in case:
        return [vectors["histograms"][str(index)] for index in case["query_hist_ids"]]
    distinct = case["query_hists_distinct"]
    return [distinct[query % len(distinct)] for query in range(len(case["answered"]))]
