"""Models that a party trains on its own records and lets vote."""

from pate_fed.teachers.teacher import TeacherEnsemble
from pate_fed.teachers.teacher_choice import CONVOLUTION, TEACHER_NAMES, make_ensemble

__all__ = ["CONVOLUTION", "TEACHER_NAMES", "TeacherEnsemble", "make_ensemble"]
