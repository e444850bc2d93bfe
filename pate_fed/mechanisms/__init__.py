"""Mechanisms: the rules from summed votes to labels, and where their noise comes from."""

from pate_fed.mechanisms.discrete_sampling import (
    discrete_variation_bound,
    largest_draw,
    sample_discrete_gaussian,
)
from pate_fed.mechanisms.gaussian_max import GaussianMax
from pate_fed.mechanisms.laplace_max import LaplaceMax
from pate_fed.mechanisms.mechanism import Mechanism, Size, Spec
from pate_fed.mechanisms.mechanism_words import NOBODY_IS_PROTECTED
from pate_fed.mechanisms.noise import NoisePlan
from pate_fed.mechanisms.noise_shares import ROW_SUM_FALSE_ALARM, DistributedNoise
from pate_fed.mechanisms.noisy_max import NoisyMax
from pate_fed.mechanisms.predictions import CONFIDENCE, HearsStudent, StudentPredictions
from pate_fed.mechanisms.registry import (
    DEPLOYED,
    SPECS,
    TALLIES,
    make_mechanism,
    spec_of,
    specs_with,
)
from pate_fed.mechanisms.sampling import (
    RandomBytes,
    keyed_stream,
    sample_gaussian,
    sample_laplace,
)
from pate_fed.mechanisms.stable_max import StableGaussianMax, StableLaplaceMax, StableMax
from pate_fed.mechanisms.tallies import Tallies
from pate_fed.mechanisms.threshold_max import InteractiveThresholdMax, ThresholdMax

__all__ = [
    "CONFIDENCE",
    "DEPLOYED",
    "NOBODY_IS_PROTECTED",
    "ROW_SUM_FALSE_ALARM",
    "SPECS",
    "TALLIES",
    "DistributedNoise",
    "GaussianMax",
    "HearsStudent",
    "InteractiveThresholdMax",
    "LaplaceMax",
    "Mechanism",
    "NoisePlan",
    "NoisyMax",
    "RandomBytes",
    "Size",
    "Spec",
    "StableGaussianMax",
    "StableLaplaceMax",
    "StableMax",
    "StudentPredictions",
    "Tallies",
    "ThresholdMax",
    "discrete_variation_bound",
    "keyed_stream",
    "largest_draw",
    "make_mechanism",
    "sample_discrete_gaussian",
    "sample_gaussian",
    "sample_laplace",
    "spec_of",
    "specs_with",
]
