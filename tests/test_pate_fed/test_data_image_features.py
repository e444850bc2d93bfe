"""Features of images: a projection that keeps variance, strokes made upright."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.decomposition import PCA

from pate_fed.data.image_features import (
    deskew,
    fit_projection,
    project_strokes,
    stroke_features,
)
from pate_fed.errors import InvalidParameterError


def stroke(slant: float, shift: int = 0) -> NDArray[np.uint8]:
    """Draw a thick line that leans by `slant` columns per row."""
    image = np.zeros((28, 28), dtype=np.uint8)
    for row in range(4, 24):
        column = round(14 + slant * (row - 14)) + shift
        image[row, column - 1 : column + 2] = 255
    return image


def test_projection_is_that_of_scikit_learn_up_to_sign() -> None:
    inputs = np.random.default_rng(0).normal(size=(200, 12)) @ np.diag(np.arange(1.0, 13.0))
    ours = fit_projection(inputs, components=5)
    theirs = PCA(5, svd_solver="full").fit(inputs)
    assert np.allclose(np.abs(ours.apply(inputs)), np.abs(theirs.transform(inputs)))


def test_the_largest_entry_of_every_axis_is_positive() -> None:
    axes = fit_projection(np.random.default_rng(1).normal(size=(50, 8)), components=8).axes
    assert (axes[np.abs(axes).argmax(axis=0), np.arange(8)] > 0).all()


@pytest.mark.parametrize("components", [0, 9])
def test_impossible_numbers_of_components_are_refused(components: int) -> None:
    with pytest.raises(InvalidParameterError):
        fit_projection(np.ones((20, 8)), components=components)


def test_leaning_strokes_become_upright_and_centered() -> None:
    leaning = np.stack([stroke(0.5), stroke(-0.4), stroke(0.0, shift=6)]).astype(np.float32)
    upright = deskew(leaning)
    columns = np.arange(28)
    for image in upright:
        centers = [(row @ columns) / row.sum() for row in image if row.sum() > 100]
        assert np.ptp(centers) < 1.5
        assert np.mean(centers) == pytest.approx(13.5, abs=0.6)


def test_an_empty_image_stays_empty_and_gives_finite_features() -> None:
    empty = np.zeros((1, 28, 28), dtype=np.uint8)
    assert not deskew(empty.astype(np.float32)).any()
    assert np.isfinite(stroke_features(empty)).all()


def test_an_images_features_do_not_depend_on_its_neighbors() -> None:
    images = np.stack([stroke(0.3), stroke(0.0), stroke(-0.3)])
    assert np.array_equal(stroke_features(images)[1:2], stroke_features(images[1:2]))


def test_projecting_in_chunks_equals_projecting_at_once() -> None:
    images = np.random.default_rng(0).integers(0, 256, (5000, 8, 8)).astype(np.uint8)
    projection = fit_projection(stroke_features(images[:300]), components=4)
    at_once = projection.apply(stroke_features(images))
    assert np.allclose(project_strokes(images, projection), at_once)
