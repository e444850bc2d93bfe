"""The bundled sets: sizes, disjoint parts, nothing learned from private records."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits

from pate_fed.data import Dataset, DataSource, load_dataset
from pate_fed.data.image_features import fit_image_encoder
from pate_fed.errors import InvalidParameterError


def load(name: str, seed: int = 3) -> Dataset:
    return load_dataset(DataSource(name), rng=np.random.default_rng(seed))


@pytest.mark.parametrize(
    ("name", "sizes", "kind", "classes"),
    [
        pytest.param("digits", (1000, 500, 297), "image", 10, id="digits"),
        pytest.param("breast-cancer", (341, 142, 86), "table", 2, id="breast-cancer"),
    ],
)
def test_a_bundled_set_has_its_sizes_and_disjoint_parts(
    name: str, sizes: tuple[int, ...], kind: str, classes: int
) -> None:
    data = load(name)
    assert tuple(len(part) for part in data.parts) == sizes
    assert (data.kind, data.classes) == (kind, classes)
    ids = [unit for part in data.parts for unit in part.unit_ids]
    assert len(set(ids)) == len(ids) == sum(sizes)


@pytest.mark.parametrize("name", ["digits", "breast-cancer"])
def test_the_same_seed_gives_the_same_split_and_another_seed_another(name: str) -> None:
    first, again, other = load(name), load(name), load(name, seed=4)
    assert first.private.unit_ids == again.private.unit_ids
    assert np.array_equal(first.private.features, again.private.features)
    assert first.private.unit_ids != other.private.unit_ids


def test_digits_are_projected_on_components_of_the_pool_alone() -> None:
    data = load("digits")
    images, labels = load_digits(return_X_y=True)
    pool, private = (
        np.array([int(unit.removeprefix("digit-")) for unit in part.unit_ids])
        for part in (data.pool, data.private)
    )
    shown = np.rint(images * 255 / 16).astype(np.uint8).reshape(-1, 8, 8, 1)
    encoder = fit_image_encoder(shown[pool])
    assert np.allclose(data.private.features, encoder.apply(shown[private]))
    assert np.array_equal(data.private.labels, labels[private])


def test_breast_cancer_is_standardized_by_the_pool() -> None:
    data = load("breast-cancer")
    assert np.allclose(data.pool.features.mean(axis=0), 0.0, atol=0.05)
    assert not np.allclose(data.private.features.mean(axis=0), 0.0, atol=1e-6)


def test_breast_cancer_has_both_classes_everywhere_in_like_shares() -> None:
    shares = [part.labels.mean() for part in load("breast-cancer").parts]
    assert max(shares) - min(shares) < 0.02


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param({"name": "imagenet"}, id="unknown name"),
        pytest.param({"name": "mnist"}, id="mnist without folder"),
        pytest.param({"name": "csv", "label_column": "y"}, id="csv without file"),
    ],
)
def test_a_source_that_says_too_little_is_refused(arguments: dict[str, str]) -> None:
    with pytest.raises(InvalidParameterError):
        DataSource(**arguments)  # type: ignore[arg-type]
