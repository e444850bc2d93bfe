"""Mechanisms: the rules from summed votes to labels, and where their noise comes from."""

from pate_fed.mechanisms.always_answering import AlwaysAnsweringMechanism
from pate_fed.mechanisms.discrete_sampling import (
    discrete_variation_bound,
    sample_discrete_gaussian,
    sample_discrete_laplace,
)
from pate_fed.mechanisms.gaussian_max import ConfidentGaussianMax, GaussianMax
from pate_fed.mechanisms.immutable_max import ImmutableMax
from pate_fed.mechanisms.interactive_max import InteractiveGaussianMax
from pate_fed.mechanisms.laplace_max import LaplaceMax
from pate_fed.mechanisms.mechanism import Mechanism
from pate_fed.mechanisms.noise import NoisePlan
from pate_fed.mechanisms.registry import MECHANISM_NAMES, make_mechanism
from pate_fed.mechanisms.sampling import (
    RandomBytes,
    keyed_stream,
    sample_gaussian,
    sample_laplace,
)
from pate_fed.mechanisms.stable_max import StableGaussianMax, StableLaplaceMax, StableMax

__all__ = [
    "MECHANISM_NAMES",
    "AlwaysAnsweringMechanism",
    "ConfidentGaussianMax",
    "GaussianMax",
    "ImmutableMax",
    "InteractiveGaussianMax",
    "LaplaceMax",
    "Mechanism",
    "NoisePlan",
    "RandomBytes",
    "StableGaussianMax",
    "StableLaplaceMax",
    "StableMax",
    "discrete_variation_bound",
    "keyed_stream",
    "make_mechanism",
    "sample_discrete_gaussian",
    "sample_discrete_laplace",
    "sample_gaussian",
    "sample_laplace",
]
