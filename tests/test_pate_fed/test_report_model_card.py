"""The model card: complete, escaped, and silent about private numbers."""

from __future__ import annotations

from typing import Any

import pytest

from pate_fed.accounting.costs import NO_BOUND_METHOD
from pate_fed.report import render_model_card
from tests.support.sample_run import (
    metrics_of,
    privacy_of,
    sample_metrics,
    sample_privacy,
    sample_settings,
    settings_of,
)


def card_of(metrics: dict[str, Any], privacy: dict[str, Any], settings: dict[str, Any]) -> str:
    return render_model_card(metrics_of(metrics), privacy_of(privacy), settings_of(settings))


def _card() -> str:
    return card_of(sample_metrics(), sample_privacy(), sample_settings())


def test_the_card_holds_no_number_that_depends_on_private_data() -> None:
    """A student may be published with its card: neither per-instance cost nor yardsticks."""
    card = _card()
    for private in ("2.13", "67.3", "53.1", "96.6", "best single"):
        assert private not in card


@pytest.mark.parametrize(
    ("settings", "is_said"),
    [
        pytest.param({}, False, id="images"),
        pytest.param({"label": "ill", "class_balance": "natural"}, False, id="as predicted"),
        pytest.param({"label": "ill", "class_balance": "auto"}, True, id="shared out"),
        pytest.param({"label": "ill"}, True, id="deployed"),
    ],
)
def test_the_card_of_a_table_says_what_a_label_means(
    settings: dict[str, Any], is_said: bool
) -> None:
    metrics = sample_metrics()
    metrics["per_class"] = {name: {"answered": 1, "refused": 0} for name in ("yes", "no")}
    card = card_of(metrics, sample_privacy(), {"mechanism": "gnmax", **settings})
    assert ("`labels.csv`" in card) == ("median" in card) == is_said


def test_the_card_of_a_student_without_protection_says_so_first() -> None:
    privacy = sample_privacy(NO_BOUND_METHOD)
    privacy["mechanism"].update(name="immutable", vote_threshold=None)
    card = card_of(sample_metrics(), privacy, sample_settings())
    assert card.index("protects nobody") < card.index("## Accuracy")
    assert "| epsilon | no bound |" in card
    assert "3.457" not in card
    assert "None" not in card


def test_the_card_tells_no_paths_of_the_machine() -> None:
    settings = {**sample_settings(), "file": "/home/me/b"}
    card = card_of(sample_metrics(), sample_privacy(), settings)
    assert "/home/me" not in card


def test_the_card_leaves_out_settings_that_do_not_apply() -> None:
    settings = {"mechanism": "gnmax", "sigma1": None}
    card = card_of(sample_metrics(), sample_privacy(), settings)
    assert "| mechanism | gnmax |" in card
    assert "sigma1" not in card


def test_a_real_student_is_not_called_simulated() -> None:
    metrics, privacy = sample_metrics(), sample_privacy()
    metrics["simulated"] = privacy["simulated"] = False
    privacy["noise"]["source"] = "operating system"
    assert "imulated" not in card_of(metrics, privacy, sample_settings())


@pytest.mark.parametrize(
    ("name", "escaped"),
    [
        pytest.param(
            "<script>alert(1)</script>", "&lt;script&gt;alert(1)&lt;/script&gt;", id="tag"
        ),
        pytest.param("a|b", "a\\|b", id="new cell"),
        pytest.param("a\n# b", "a \\# b", id="new line"),
        pytest.param("[x](y) `z` *w*", "\\[x\\](y) \\`z\\` \\*w\\*", id="markup"),
    ],
)
def test_a_name_from_data_stays_text(name: str, escaped: str) -> None:
    metrics, privacy = sample_metrics(), sample_privacy()
    metrics["per_class"] = {name: {"answered": 1, "refused": 0}}
    privacy["threat_model"] = name
    card = card_of(metrics, privacy, {"purpose": name})
    assert card.count(escaped) == 4
    assert name not in card


def test_the_same_run_gives_the_same_card() -> None:
    assert _card() == _card()
