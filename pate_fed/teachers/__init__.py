"""Models that a party trains on its own records and lets vote."""

from pate_fed.teachers.teacher import TeacherEnsemble
from pate_fed.teachers.teacher_choice import TEACHER_NAMES, make_ensemble

__all__ = ["TEACHER_NAMES", "TeacherEnsemble", "make_ensemble"]
