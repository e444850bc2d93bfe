"""Mechanisms: the rules from summed votes to labels, and where their noise comes from."""

from pate_fed.mechanisms.coordinator_noise import CoordinatorNoise
from pate_fed.mechanisms.gaussian_max import GaussianMax
from pate_fed.mechanisms.laplace_max import LaplaceMax
from pate_fed.mechanisms.mechanism import Mechanism, Size, Spec
from pate_fed.mechanisms.mechanism_words import NOBODY_IS_PROTECTED
from pate_fed.mechanisms.noise_shares import DistributedNoise
from pate_fed.mechanisms.predictions import CONFIDENCE, HearsStudent, StudentPredictions
from pate_fed.mechanisms.registry import (
    DEPLOYED_MECHANISMS,
    SPECS,
    TALLIES,
    make_mechanism,
    spec_of,
    specs_with,
)
from pate_fed.mechanisms.sampling import RandomBytes, keyed_stream, sample_gaussian
from pate_fed.mechanisms.stable_max import StableGaussianMax, StableMax
from pate_fed.mechanisms.threshold_max import InteractiveThresholdMax, ThresholdMax

__all__ = [
    "CONFIDENCE",
    "DEPLOYED_MECHANISMS",
    "NOBODY_IS_PROTECTED",
    "SPECS",
    "TALLIES",
    "CoordinatorNoise",
    "DistributedNoise",
    "GaussianMax",
    "HearsStudent",
    "InteractiveThresholdMax",
    "LaplaceMax",
    "Mechanism",
    "RandomBytes",
    "Size",
    "Spec",
    "StableGaussianMax",
    "StableMax",
    "StudentPredictions",
    "ThresholdMax",
    "keyed_stream",
    "make_mechanism",
    "sample_gaussian",
    "spec_of",
    "specs_with",
]
