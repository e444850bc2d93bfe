"""Models that learn from released labels, and the choice of queries."""

from pate_fed.students.choice import STUDENTS, load_student, make_student
from pate_fed.students.interim import interim_chances
from pate_fed.students.propagation import SpreadLabels, propagate_labels
from pate_fed.students.query_selection import SELECTION_METHODS, select_queries
from pate_fed.students.student import Student

__all__ = [
    "SELECTION_METHODS",
    "STUDENTS",
    "SpreadLabels",
    "Student",
    "interim_chances",
    "load_student",
    "make_student",
    "propagate_labels",
    "select_queries",
]
