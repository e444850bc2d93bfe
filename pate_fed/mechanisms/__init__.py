"""Mechanisms: the rules from summed votes to labels, and where their noise comes from."""

from pate_fed.mechanisms.gaussian_max import ConfidentGaussianMax, GaussianMax, make_mechanism
from pate_fed.mechanisms.mechanism import Mechanism
from pate_fed.mechanisms.noise import NoisePlan
from pate_fed.mechanisms.sampling import RandomBytes, keyed_stream, sample_gaussian

__all__ = [
    "ConfidentGaussianMax",
    "GaussianMax",
    "Mechanism",
    "NoisePlan",
    "RandomBytes",
    "keyed_stream",
    "make_mechanism",
    "sample_gaussian",
]
