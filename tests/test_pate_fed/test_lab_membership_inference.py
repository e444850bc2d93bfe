"""Membership inference: finds members of models that remember, and of others none."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binomtest, norm

from pate_fed.data import DataSource, load_dataset
from pate_fed.errors import InvalidAnswersError, InvalidParameterError
from pate_fed.lab.experiments.membership_inference import shadow_models
from pate_fed.lab.membership_inference import (
    ShadowModels,
    area_under_curve,
    likelihood_scores,
    membership_audit,
)
from pate_fed.lab.sacro_report import sacro_report
from pate_fed.mechanisms import GaussianMax
from tests.support.command import Command, pate_fed
from tests.support.markers import sampled

__all__ = ["pate_fed"]  # a fixture

DELTA = 1e-5


def shadows(lift: float, *, models: int = 40, records: int = 400, seed: int = 1) -> ShadowModels:
    """Models whose confidence in a member's class is higher by `lift` deviations of chance."""
    rng = np.random.default_rng(seed)
    lots = rng.random((models, records))
    members = lots.argsort(axis=0).argsort(axis=0) < models // 2
    logits = rng.normal(size=(1, records)) + rng.normal(size=members.shape) + lift * members
    return ShadowModels(1 / (1 + np.exp(-logits)), members)


def test_the_area_is_that_of_two_normal_laws() -> None:
    found = membership_audit(shadows(2.0), delta=DELTA)
    # Four standard errors; the attack knows means of 20 models each, and so loses a little.
    assert found.area == pytest.approx(norm.cdf(2 / np.sqrt(2)), abs=0.012)
    assert found.epsilon > 2
    for point in found.points:
        exact = binomtest(point.found, point.members).proportion_ci(0.95, method="exact")
        assert point.interval() == pytest.approx((exact.low, exact.high))


def test_models_that_remember_nothing_give_nothing() -> None:
    found = membership_audit(shadows(0.0), delta=DELTA)
    assert abs(found.area - 0.5) < 0.02
    assert found.epsilon < 0.5
    for point in found.points:
        assert point.most_found(0.0, 0.0) >= point.interval()[0]


def test_a_claim_limits_what_may_be_found() -> None:
    point = membership_audit(shadows(2.0), delta=DELTA).points[1]
    assert point.most_found(0.5, DELTA) < point.interval()[0]
    assert point.most_found(1000.0, DELTA) == 1.0


def test_the_attacked_models_own_value_is_left_out() -> None:
    """Otherwise each model pulls the mean of its side, and nothing seems to be something."""
    given = shadows(0.0, models=8, records=2000)
    scores = likelihood_scores(given)
    assert abs(area_under_curve(scores[given.members], scores[~given.members]) - 0.5) < 0.02


def test_equal_scores_tell_nothing() -> None:
    assert area_under_curve(np.zeros(3), np.zeros(4)) == 0.5
    assert area_under_curve(np.ones(3), np.zeros(4)) == 1.0


GOOD = shadows(1.0, models=20, records=5)


@pytest.mark.parametrize(
    ("confidences", "members"),
    [
        pytest.param(GOOD.confidences + 1, GOOD.members, id="confidences above 1"),
        pytest.param(GOOD.confidences * np.nan, GOOD.members, id="no numbers"),
        pytest.param(GOOD.confidences, GOOD.members.astype(np.int64), id="members as numbers"),
        pytest.param(GOOD.confidences, GOOD.members[:, :-1], id="another shape"),
        pytest.param(GOOD.confidences[:7], GOOD.members[:7], id="too few models"),
        pytest.param(GOOD.confidences, GOOD.members | True, id="a record in every model"),
        pytest.param(GOOD.confidences[:, :0], GOOD.members[:, :0], id="no records"),
    ],
)
def test_bad_shadow_models_are_a_coded_error(
    confidences: NDArray[np.float64], members: NDArray[np.bool_]
) -> None:
    with pytest.raises(InvalidAnswersError):
        ShadowModels(confidences, members)


def test_the_report_has_the_fields_of_sacro_ml() -> None:
    found = membership_audit(shadows(1.0), delta=DELTA)
    report = sacro_report(
        found,
        log_id="one",
        log_time="01/02/2026 03:04:05",
        made_by="pate_fed",
        models=40,
        target_model="kernel-ridge",
        parameters={"teachers": 20},
        claim=float("inf"),
        delta=DELTA,
    )
    [(name, output)] = json.loads(json.dumps(report, allow_nan=False)).items()
    assert name == "LiRA Attack_one"
    required = {"sacroml_version", "attack_name", "attack_params", "global_metrics"}
    assert required <= set(output["metadata"])
    measured = output["attack_experiment_logger"]["attack_instance_logger"]["instance_0"]
    # Kinds that SACRO-ML's schema allows.
    assert {type(one) for one in measured.values()} <= {int, float, list}
    assert measured["AUC"] == pytest.approx(found.area)
    assert measured["TPR"] + measured["FNR"] == pytest.approx(1)
    assert measured["fpr"][0] == 0
    assert measured["tpr"][-1] == 1
    # With half of all records members: accuracy, precision and rates agree.
    positives, negatives = measured["n_pos_test_examples"], measured["n_neg_test_examples"]
    right = measured["TPR"] * positives + measured["TNR"] * negatives
    assert measured["ACC"] == pytest.approx(right / (positives + negatives))
    assert 0 < measured["TPR@0.001"] < measured["TPR@0.01"] < measured["TPR@0.1"]


@pytest.mark.slow
def test_the_attack_finds_members_of_a_model_without_privacy_and_not_of_a_student() -> None:
    data = load_dataset(DataSource("digits"), rng=np.random.default_rng(0))
    plain, student = (
        membership_audit(shadow_models(data, rule, models=16, seed=1), delta=DELTA)
        for rule in (None, GaussianMax(5.0))
    )
    assert plain.points[0].interval()[0] > 0.5
    assert plain.epsilon > 4
    assert student.area < 0.55
    assert student.points[0].interval()[1] < 0.02


@pytest.mark.slow
def test_a_report_is_written(pate_fed: Command, tmp_path: Path) -> None:
    out = tmp_path / "audit"
    recipe = ("--mechanism", "gnmax", "--sigma2", 3, "--teachers", 3, "--answers", 20)
    ended = pate_fed("audit", "--membership", 16, *recipe, "--out", out, "--format", "json")
    assert ended.code == 0, ended.err
    assert [one["aimed"] for one in ended.json["points"]] == [0.001, 0.01, 0.1]
    [output] = json.loads((out / "report.json").read_text("utf-8")).values()
    assert output["metadata"]["target_model_params"]["mechanism"]["sigma2"] == 3
    assert output["metadata"]["global_metrics"]["pate_fed_epsilon_claimed"] == ended.json["claim"]


@sampled()
@pytest.mark.parametrize(
    ("given", "code"),
    [
        pytest.param((15,), "PF-402", id="too few models"),
        pytest.param((10**6,), "PF-402", id="too many models"),
        pytest.param((16, "--canary", 1000), "PF-402", id="two audits"),
        pytest.param((16, "--teachers", 0), "PF-101", id="no teachers"),
        pytest.param((16, "--answers", 10**6), "PF-101", id="more queries than the pool has"),
        pytest.param((16, "--delta", 0), "PF-101", id="delta 0"),
    ],
)
def test_a_membership_audit_out_of_range_is_a_coded_error(
    pate_fed: Command, given: tuple[object, ...], code: str
) -> None:
    recipe = ("--mechanism", "gnmax", "--sigma2", 3)
    assert pate_fed("audit", "--membership", *given, *recipe).error_code == code


def test_more_teachers_than_records_are_refused() -> None:
    data = load_dataset(DataSource("digits"), rng=np.random.default_rng(0))
    with pytest.raises(InvalidParameterError):
        shadow_models(data, None, models=8, seed=0, teachers=len(data.private))
