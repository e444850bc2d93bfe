"""Models that a party trains on its own records and lets vote."""

from pate_fed.teachers.choice import TEACHER_NAMES, make_ensemble
from pate_fed.teachers.teacher import TeacherEnsemble

__all__ = ["TEACHER_NAMES", "TeacherEnsemble", "make_ensemble"]
