"""Published experiments, repeated: `pate-fed reproduce`."""

from pate_fed.lab.experiments.experiment import Experiment, Result, Row, picture_of
from pate_fed.lab.experiments.registry import EXPERIMENTS, reproduce

__all__ = ["EXPERIMENTS", "Experiment", "Result", "Row", "picture_of", "reproduce"]
