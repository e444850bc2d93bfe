"""What students of images have in common."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InvalidParameterError
from pate_fed.students.student import Lesson, Student


class ImageStudent(Student):
    """A student that looks at images."""

    def images_of(self, lesson: Lesson) -> NDArray[np.uint8]:
        """Return the pool's images; shape (inputs, height, width, channels).

        Raises:
            InvalidParameterError: the pool is a table, or its images are too small.
        """
        images = lesson.pool.images
        if images is None or min(images.shape[1:3]) < 8:
            raise InvalidParameterError(
                f"the student {self.name} must learn from images of at least 8 x 8",
                "a table" if images is None else f"{images.shape[1]} x {images.shape[2]}",
            )
        return images
