"""Read NumPy files with a row per query: votes that teachers cast, chances of a student."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import (
    InvalidAnswersError,
    InvalidParameterError,
    InvalidVotesError,
    UnreadableFileError,
)
from pate_fed.regular_files import open_regular
from pate_fed.votes import MAX_TOTAL_VOTES

MAX_FILE_BYTES = 2**31


def load_vote_counts(path: Path, *, rows: tuple[int, int] | None = None) -> NDArray[np.int64]:
    """Load vote counts from a NumPy file, strictly.

    Integers of every width and floats that hold integers give the same result.

    Args:
        path: A `.npy` file; shape (queries, classes).
        rows: First row and the one after the last; None for all.
    """
    raw = load_array(path)
    if raw.ndim != 2 or raw.shape[1] < 2 or not len(raw):
        raise InvalidVotesError(
            "votes must be a table of 1 or more queries by 2 or more classes", str(raw.shape)
        )
    return _whole_counts(_rows_of(raw, rows))


def load_predictions(path: Path, *, rows: tuple[int, int] | None = None) -> NDArray[np.float64]:
    """Load a student's chances of each class, finite numbers of any range, from a NumPy file."""
    raw = load_array(path)
    is_number = np.issubdtype(raw.dtype, np.integer) or np.issubdtype(raw.dtype, np.floating)
    if raw.ndim != 2 or not is_number:
        raise InvalidParameterError("predictions must be numbers with 2 axes", str(raw.shape))
    chances = _rows_of(raw, rows).astype(np.float64)
    if not np.isfinite(chances).all():
        raise InvalidParameterError("predictions must be finite")
    return chances


def load_outcomes(path: Path) -> NDArray[np.int64]:
    """Load the answers to one repeated query from a NumPy file."""
    raw = load_array(path)
    if raw.ndim != 1 or not np.issubdtype(raw.dtype, np.integer):
        raise InvalidAnswersError("answers must be whole numbers on one axis", str(raw.shape))
    # Beyond 2^31 a number is no class either way.
    return np.asarray(np.clip(raw, -2, 2**31), dtype=np.int64)


def _rows_of(raw: NDArray[np.generic], rows: tuple[int, int] | None) -> NDArray[np.generic]:
    if rows is None:
        return raw
    start, stop = rows
    if not 0 <= start < stop <= len(raw):
        raise InvalidParameterError(
            f"rows must be A:B with 0 <= A < B <= {len(raw)}", f"{start}:{stop}"
        )
    return raw[start:stop]


def load_array(path: Path) -> NDArray[np.generic]:
    """Load a plain NumPy array, of no objects; anything else is an UnreadableFileError."""
    try:
        with open_regular(path, most_bytes=MAX_FILE_BYTES) as file:
            raw = np.load(file, allow_pickle=False)
    except FileNotFoundError as error:
        raise UnreadableFileError(
            f"{path.name} must be a file that can be read", "none: it does not exist"
        ) from error
    except OSError as error:
        raise UnreadableFileError(
            f"{path.name} must be a file that can be read", type(error).__name__
        ) from error
    except (ValueError, EOFError, MemoryError, SyntaxError) as error:
        raise UnreadableFileError(f"{path.name} must be a plain .npy file") from error
    if not isinstance(raw, np.ndarray):
        raise UnreadableFileError(f"{path.name} must hold one array (.npy)", "several (.npz)")
    return raw


def _whole_counts(raw: NDArray[np.generic]) -> NDArray[np.int64]:
    is_number = np.issubdtype(raw.dtype, np.integer) or np.issubdtype(raw.dtype, np.floating)
    if not is_number:
        raise InvalidVotesError("votes must be numbers", str(raw.dtype))
    numbers = raw.astype(np.float64)
    if not np.isfinite(numbers).all() or (numbers != np.floor(numbers)).any():
        raise InvalidVotesError("votes must be whole numbers")
    if (numbers < 0).any() or (numbers > MAX_TOTAL_VOTES).any():
        raise InvalidVotesError(f"votes must be 0 to {MAX_TOTAL_VOTES}")
    counts = numbers.astype(np.int64)
    sums = counts.sum(axis=1)
    if sums[0] == 0 or (sums != sums[0]).any():
        row = int(np.argmax(sums != sums[0]))
        raise InvalidVotesError(
            f"every row must sum to the number of teachers ({sums[0]} in the first)",
            f"another sum in row {row}",
        )
    return counts
