"""Published tables by name: their sizes, classes and patients as published."""

from __future__ import annotations

import numpy as np
import pytest

from pate_fed.data import Dataset, DataSource, load_dataset
from pate_fed.errors import InvalidParameterError, UnreadableFileError
from tests.support.real_data import real_data


def load(name: str, folder: str) -> Dataset:
    where = real_data(f"data/{folder}")
    return load_dataset(DataSource(name, data_dir=where), rng=np.random.default_rng(0))


@pytest.mark.slow
def test_adult_keeps_the_publishers_test_rows_public() -> None:
    data = load("adult", "adult")
    assert len(data.private) == 32_561
    assert len(data.pool) + len(data.test) == 16_281
    assert int(data.private.labels.sum()) == 7_841
    assert int(data.pool.labels.sum() + data.test.labels.sum()) == 3_846


def test_heart_disease_has_four_hospitals_and_reads_no_cholesterol_as_unknown() -> None:
    data = load("heart-disease", "heart_disease")
    everybody = [name for part in data.parts for name in part.hospitals or ()]
    counts = {name: everybody.count(name) for name in set(everybody)}
    assert counts == {
        "Cleveland": 303,
        "Budapest": 294,
        "Zurich and Basel": 123,
        "Long Beach": 200,
    }
    assert sum(int(part.labels.sum()) for part in data.parts) == 139 + 106 + 115 + 149


@pytest.mark.exhaustive
def test_brfss_has_its_published_prevalence() -> None:
    data = load("brfss", "brfss_diabetes")
    labels = np.concatenate([part.labels for part in data.parts])
    assert (len(labels), int(labels.sum())) == (253_680, 35_346)


@pytest.mark.exhaustive
def test_all_stays_of_a_diabetes_patient_are_on_one_side() -> None:
    data = load("diabetes130", "diabetes130")
    units = [set(part.unit_ids) for part in data.parts]
    assert sum(len(part) for part in data.parts) == 101_766
    assert sum(len(one) for one in units) == 71_518
    assert not units[0] & units[1]
    assert not units[0] & units[2]


def test_a_published_table_needs_its_folder(tmp_path: object) -> None:
    with pytest.raises(InvalidParameterError, match="--data-dir"):
        DataSource("adult")
    with pytest.raises(UnreadableFileError, match=r"adult\.data"):
        load_dataset(
            DataSource("adult", data_dir=tmp_path),  # type: ignore[arg-type]
            rng=np.random.default_rng(0),
        )
