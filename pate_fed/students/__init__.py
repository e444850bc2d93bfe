"""Models that learn from released labels, and the choice of queries."""

from pate_fed.students.facts import LabelFacts
from pate_fed.students.interim_chances import interim_chances
from pate_fed.students.label_sets import LabelSets
from pate_fed.students.propagation import propagate_labels
from pate_fed.students.query_selection import (
    SELECTION_METHODS,
    choose_queries,
    cluster_cores,
    least_confident,
    select_queries,
)
from pate_fed.students.student import Lesson, Student
from pate_fed.students.student_choice import (
    IMAGE_STUDENTS,
    STUDENTS,
    choose_student,
    make_student,
    read_student,
    require_student,
    students_for,
    train_student,
)
from pate_fed.students.trained import TrainedStudent, load_student
from pate_fed.students.trained_for_labels import TrainedStudents, load_students

__all__ = [
    "IMAGE_STUDENTS",
    "SELECTION_METHODS",
    "STUDENTS",
    "LabelFacts",
    "LabelSets",
    "Lesson",
    "Student",
    "TrainedStudent",
    "TrainedStudents",
    "choose_queries",
    "choose_student",
    "cluster_cores",
    "interim_chances",
    "least_confident",
    "load_student",
    "load_students",
    "make_student",
    "propagate_labels",
    "read_student",
    "require_student",
    "select_queries",
    "students_for",
    "train_student",
]
