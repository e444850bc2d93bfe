"""Mechanisms: the rules from summed votes to labels, and where their noise comes from."""

from pate_fed.mechanisms.always_answering import AlwaysAnsweringMechanism
from pate_fed.mechanisms.discrete_sampling import (
    discrete_variation_bound,
    largest_draw,
    sample_discrete_gaussian,
)
from pate_fed.mechanisms.first_phase import FirstPhase
from pate_fed.mechanisms.gaussian_max import ConfidentGaussianMax, GaussianMax
from pate_fed.mechanisms.immutable_max import NOBODY_IS_PROTECTED, ImmutableMax
from pate_fed.mechanisms.interactive_max import CONFIDENCE, InteractiveGaussianMax
from pate_fed.mechanisms.laplace_max import LaplaceMax
from pate_fed.mechanisms.mechanism import Mechanism, Options, Size, Spec
from pate_fed.mechanisms.noise import NoisePlan
from pate_fed.mechanisms.noise_shares import ROW_SUM_FALSE_ALARM, DistributedNoise
from pate_fed.mechanisms.pass_chances import (
    FLAT_CHANCE,
    flat_row,
    pass_chances,
    preview_two_phases,
    row_of_top,
    usual_vote_threshold,
    vote_threshold_for,
)
from pate_fed.mechanisms.registry import (
    DEPLOYED,
    SPECS,
    TALLIES,
    USUAL_AT_PARTIES,
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

__all__ = [
    "CONFIDENCE",
    "DEPLOYED",
    "FLAT_CHANCE",
    "NOBODY_IS_PROTECTED",
    "ROW_SUM_FALSE_ALARM",
    "SPECS",
    "TALLIES",
    "USUAL_AT_PARTIES",
    "AlwaysAnsweringMechanism",
    "ConfidentGaussianMax",
    "DistributedNoise",
    "FirstPhase",
    "GaussianMax",
    "ImmutableMax",
    "InteractiveGaussianMax",
    "LaplaceMax",
    "Mechanism",
    "NoisePlan",
    "Options",
    "RandomBytes",
    "Size",
    "Spec",
    "StableGaussianMax",
    "StableLaplaceMax",
    "StableMax",
    "Tallies",
    "discrete_variation_bound",
    "flat_row",
    "keyed_stream",
    "largest_draw",
    "make_mechanism",
    "pass_chances",
    "preview_two_phases",
    "row_of_top",
    "sample_discrete_gaussian",
    "sample_gaussian",
    "sample_laplace",
    "spec_of",
    "specs_with",
    "usual_vote_threshold",
    "vote_threshold_for",
]
