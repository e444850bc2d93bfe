"""Features of images: a projection that keeps variance, edges by cell and direction."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.decomposition import PCA

from pate_fed.data.image_features import describe_images, fit_image_encoder, fit_projection
from pate_fed.errors import InvalidDataError, InvalidParameterError

DIRECTIONS = 8


def bars(side: int = 28, *, across: bool = False, at: int = 14) -> NDArray[np.uint8]:
    """Draw one bar, upright or lying."""
    image = np.zeros((1, side, side, 1), dtype=np.uint8)
    if across:
        image[0, at : at + 3, 4:-4] = 255
    else:
        image[0, 4:-4, at : at + 3] = 255
    return image


def edges(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the strength of edges by direction, over all cells."""
    pixels = int(np.prod(images.shape[1:]))
    described = describe_images(images)[:, :-pixels]
    return (described.reshape(len(images), -1, DIRECTIONS) ** 2).sum(axis=1)


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


def test_upright_and_lying_bars_have_edges_of_different_directions() -> None:
    upright, lying = edges(bars())[0], edges(bars(across=True))[0]
    assert upright.argmax() == 0
    assert lying.argmax() == DIRECTIONS // 2
    assert upright[0] > 0.8 * upright.sum()
    assert lying[DIRECTIONS // 2] > 0.8 * lying.sum()


def test_a_negative_has_the_same_edges() -> None:
    image = bars()
    assert np.allclose(edges(image), edges(255 - image), atol=1e-5)


@pytest.mark.parametrize("side", [4, 8, 28, 65])
@pytest.mark.parametrize("channels", [1, 3])
def test_images_of_any_size_are_described(side: int, channels: int) -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, side, side, channels)).astype(np.uint8)
    described = describe_images(images)
    assert described.shape[0] == 3
    assert np.isfinite(described).all()
    assert np.allclose((described**2).sum(axis=1), 1.25, atol=1e-4)


def test_an_empty_image_gives_finite_features() -> None:
    empty = np.zeros((1, 28, 28, 1), dtype=np.uint8)
    assert not describe_images(empty).any()


def test_an_images_features_do_not_depend_on_its_neighbors() -> None:
    images = np.concatenate([bars(at=6), bars(), bars(at=20)])
    assert np.array_equal(describe_images(images)[1:2], describe_images(images[1:2]))


def test_encoding_in_chunks_equals_encoding_at_once() -> None:
    images = np.random.default_rng(0).integers(0, 256, (5000, 8, 8, 1)).astype(np.uint8)
    encoder = fit_image_encoder(images[:300], components=4)
    at_once = encoder.projection.apply(describe_images(images))
    assert np.allclose(encoder.apply(images), at_once)


def test_the_encoder_learns_from_the_public_images_alone() -> None:
    public = np.random.default_rng(0).integers(0, 256, (50, 8, 8, 1)).astype(np.uint8)
    first, again = (fit_image_encoder(public, components=4) for _ in range(2))
    assert np.array_equal(first.projection.axes, again.projection.axes)
    assert first.apply(public).shape == (50, 4)


def test_images_of_another_size_are_refused() -> None:
    encoder = fit_image_encoder(bars(8))
    with pytest.raises(InvalidDataError, match="channels"):
        encoder.apply(bars(12))
