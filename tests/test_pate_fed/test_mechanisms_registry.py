"""Mechanisms by name: every one can be made, none without what it needs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pate_fed.errors import InvalidParameterError
from pate_fed.lab.mechanisms.confident_max import ConfidentGaussianMax
from pate_fed.lab.mechanisms.interactive_max import InteractiveGaussianMax
from pate_fed.mechanisms.gaussian_max import GaussianMax
from pate_fed.mechanisms.laplace_max import LaplaceMax
from pate_fed.mechanisms.mechanism import Mechanism
from pate_fed.mechanisms.registry import DEPLOYED_MECHANISMS, SPECS, make_mechanism, specs_with
from pate_fed.mechanisms.stable_max import StableGaussianMax, StableLaplaceMax
from pate_fed.mechanisms.threshold_max import InteractiveThresholdMax, ThresholdMax
from pate_fed.rule import Rule


def test_mechanisms_are_made_by_name() -> None:
    rule = Rule("confident", vote_threshold=4.0, sigma1=1.5, sigma2=2.0, confidence=0.7)

    def made(name: str) -> Mechanism:
        return make_mechanism(replace(rule, mechanism=name))

    assert made("threshold") == ThresholdMax(2.0, vote_threshold=4.0)
    assert made("interactive-threshold") == InteractiveThresholdMax(
        2.0, vote_threshold=4.0, confidence=0.7
    )
    assert made("gnmax") == GaussianMax(2.0)
    assert made("confident") == ConfidentGaussianMax(rule)
    assert made("interactive") == InteractiveGaussianMax(
        replace(rule, mechanism="interactive"), confidence=0.7
    )
    lnmax = made("lnmax")
    assert isinstance(lnmax, LaplaceMax)
    assert lnmax.gamma == pytest.approx(2**-0.5, rel=1e-15)
    stable = make_mechanism(Rule("stable-gaussian", sigma1=1.5, test_delta=1e-6), unit_votes=3)
    assert stable == StableGaussianMax(1e-6, 1.5, unit_votes=3)
    stable = make_mechanism(Rule("stable-laplace", sigma1=2.0, test_delta=1e-6))
    assert isinstance(stable, StableLaplaceMax)
    assert stable.noise_sigma == pytest.approx(2.0, rel=1e-15)


@pytest.mark.parametrize("name", SPECS)
def test_what_a_mechanism_needs_must_be_given(name: str) -> None:
    with pytest.raises(InvalidParameterError, match="given"):
        make_mechanism(Rule(name), simulated=True)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(InvalidParameterError, match="threshold"):
        make_mechanism(Rule("nothing", sigma2=1.0))


def test_the_papers_two_noises_are_for_simulations_and_never_at_the_parties() -> None:
    assert next(iter(SPECS)) == DEPLOYED_MECHANISMS[0] == "threshold"
    assert {"confident", "interactive", "counts", "immutable"}.isdisjoint(DEPLOYED_MECHANISMS)
    assert set(specs_with("parties")) == {"threshold", "gnmax", "interactive-threshold"}


def test_a_sigma_of_0_is_refused_for_every_noise() -> None:
    for name in ("gnmax", "lnmax"):
        with pytest.raises(InvalidParameterError):
            make_mechanism(Rule(name, sigma2=0.0))
