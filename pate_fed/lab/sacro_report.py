"""A membership audit in the form of SACRO-ML's reports, which output checkers read.

The names and definitions of all measures are those of SACRO-ML's "LiRA Attack" (`sacroml.metrics`,
its schema; release 2.0.1 names TPR@ rates in percent). Measures of ours begin with
``pate_fed_``. As there the attack's decision is the likelier of the two densities, and PDIF is
minus the natural logarithm of a p-value. All measured models stand together in one instance.

Source:
    SACRO-ML. https://github.com/AI-SDC/SACRO-ML
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import scipy
from numpy.typing import NDArray

from pate_fed.lab.membership_inference import MembershipAudit

ATTACK: Final = "LiRA Attack"
_P_THRESHOLD: Final = 0.05
_ALARM_RATES: Final = (0.5, 0.2, 0.1, 0.01, 0.001, 0.00001)
_EXTREMES: Final = {"01": 0.1, "02": 0.2, "001": 0.01}
"""Shares of records with the highest and the lowest scores that are compared."""

_CURVE: Final = 200
"""Most points of the curve that are written."""

_LEAST_P: Final = 1e-50
_MOST_LOG_P: Final = 115.13


def sacro_report(
    audit: MembershipAudit,
    *,
    log_id: str,
    log_time: str,
    made_by: str,
    models: int,
    target_model: str,
    parameters: Mapping[str, Any],
    claim: float,
    delta: float,
) -> dict[str, object]:
    """Return a report as SACRO-ML writes it, for `json.dumps`.

    The time reads ``dd/mm/yyyy HH:MM:SS``; `made_by`, name and version of this program, stands
    where SACRO-ML names its own. A claim of infinity claims nothing.
    """
    measured = _instance(audit)
    spread = _null_spread(measured["n_pos_test_examples"], measured["n_neg_test_examples"])
    output = {
        "log_id": log_id,
        "log_time": log_time,
        "metadata": {
            "sacroml_version": made_by,
            "attack_name": ATTACK,
            "attack_params": {
                "output_dir": ".",
                "write_report": True,
                "n_shadow_models": models,
                "p_thresh": _P_THRESHOLD,
                "mode": "online-carlini",
                "fix_variance": True,
                "report_individual": False,
            },
            "global_metrics": {
                "PDIF_sig": _significance(float(np.exp(-measured["PDIF01"]))),
                "AUC_sig": _significance(measured["P_HIGHER_AUC"]),
                "null_auc_3sd_range": f"{0.5 - 3 * spread} -> {0.5 + 3 * spread}",
                "pate_fed_epsilon_claimed": claim if np.isfinite(claim) else None,
                "pate_fed_epsilon_lower_bound": audit.epsilon,
                "pate_fed_delta": delta,
            },
            "target_model": target_model,
            "target_model_params": dict(parameters),
            "target_train_params": {},
        },
        "attack_experiment_logger": {"attack_instance_logger": {"instance_0": measured}},
    }
    return {f"{ATTACK}_{log_id}": output}


def _instance(audit: MembershipAudit) -> dict[str, Any]:
    """Return all measures of the measured models."""
    scores, members = audit.scores, audit.members
    inside, outside = int(members.sum()), int((~members).sum())
    said = scores > 0
    found, alarms = int((said & members).sum()), int((said & ~members).sum())
    alarm_curve, found_curve, limits = _curve(scores, members)
    precision, recall = _share(found, found + alarms), _share(found, inside)
    false = _share(alarms, outside)
    measured: dict[str, Any] = {
        "TPR": recall,
        "FPR": false,
        "FAR": _share(alarms, found + alarms),
        "TNR": 1 - false,
        "PPV": precision,
        "NPV": _share(outside - alarms, len(scores) - found - alarms),
        "FNR": 1 - recall,
        "ACC": (found + outside - alarms) / len(scores),
        "F1score": 2 * precision * recall / max(precision + recall, 1e-300),
        "Advantage": abs(recall - false),
        "AUC": audit.area,
        "P_HIGHER_AUC": _tail((audit.area - 0.5) / _null_spread(inside, outside)),
        "pred_prob_var": float(scores.var()),
        "n_pos_test_examples": inside,
        "n_neg_test_examples": outside,
    }
    for name, share in _EXTREMES.items():
        measured |= _extremes(scores, members, name, share)
    for rate in _ALARM_RATES:
        measured[f"TPR@{rate}"] = float(np.interp(rate, alarm_curve, found_curve))
    for point in audit.points:
        low, high = point.interval()
        measured |= {
            f"pate_fed_TPR@{point.aimed}": point.found / point.members,
            f"pate_fed_TPR@{point.aimed}_low": low,
            f"pate_fed_TPR@{point.aimed}_high": high,
            f"pate_fed_FPR@{point.aimed}": point.alarms / point.others,
        }
    kept = np.unique(np.linspace(0, len(limits) - 1, _CURVE).round().astype(np.int64))
    curve = {"fpr": alarm_curve, "tpr": found_curve, "roc_thresh": limits}
    return measured | {name: values[kept].tolist() for name, values in curve.items()}


def _curve(
    scores: NDArray[np.float64], members: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return shares of false alarms and of members found, by falling thresholds, from (0, 0)."""
    order = np.argsort(-scores, kind="stable")
    ordered, inside = scores[order], np.cumsum(members[order])
    last = np.flatnonzero(np.append(np.diff(ordered) != 0, True))
    found, alarms = inside[last], last + 1 - inside[last]
    return (
        np.append(0.0, alarms / alarms[-1]),
        np.append(0.0, found / found[-1]),
        np.append(ordered[0] + 1, ordered[last]),
    )


def _extremes(
    scores: NDArray[np.float64], members: NDArray[np.bool_], name: str, share: float
) -> dict[str, float]:
    """Compare how many are members among the highest and among the lowest scores."""
    count, order = int(np.ceil(len(scores) * share)), np.argsort(scores, kind="stable")
    most, least = float(members[order[-count:]].mean()), float(members[order[:count]].mean())
    mean = float(members.mean())
    chance = _tail((most - least) / np.sqrt(2 * mean * (1 - mean) / count))
    surprise = _MOST_LOG_P if chance < _LEAST_P else -float(np.log(chance))
    return {
        f"FMAX{name}": most,
        f"FMIN{name}": least,
        f"FDIF{name}": most - least,
        f"PDIF{name}": surprise,
    }


def _null_spread(inside: int, outside: int) -> float:
    """Return the standard deviation of the area under the curve of guesses."""
    return float(np.sqrt((0.25 + (inside + outside - 2) / 12) / (inside * outside)))


def _significance(chance: float) -> str:
    said = "Significant" if chance <= _P_THRESHOLD else "Not significant"
    return f"{said} at p={_P_THRESHOLD}"


def _tail(score: float) -> float:
    return float(scipy.special.ndtr(-score))


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
