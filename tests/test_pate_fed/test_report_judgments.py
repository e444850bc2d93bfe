"""The three judgments of a report's first page, and how much there is to read before the annex."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pate_fed.report import render_report
from pate_fed.report.judgments import judgments_of
from tests.support.sample_run import (
    metrics_of,
    privacy_of,
    sample_metrics,
    sample_privacy,
    write_sample,
)
from tests.test_renderings import kinds_of_runs

MOST_WORDS = 2_500


def judged(**changed: Any) -> tuple[list[str], list[str]]:
    """The words and tones of a run's judgments; `a__b=value` changes a field of its tables."""
    tables = {"metrics": sample_metrics(), "privacy": sample_privacy()}
    for path, value in changed.items():
        *above, name = path.split("__")
        table: Any = tables
        for step in above:
            table = table[step]
        table[name] = value
    found = judgments_of(metrics_of(tables["metrics"]), privacy_of(tables["privacy"]))
    return [one.word for one in found], [one.tone for one in found]


@pytest.mark.parametrize(
    ("changed", "place", "tone"),
    [
        ({"privacy__views__public__epsilon": 1.0}, 0, "good"),
        ({"privacy__views__public__epsilon": 1.001}, 0, "care"),
        ({"privacy__views__public__epsilon": 10.001}, 0, "bad"),
        ({"privacy__views__public__epsilon": None}, 0, "bad"),
        ({}, 1, "care"),
        ({"privacy__sum": "plain"}, 1, "bad"),
        (
            {
                "privacy__views__coordinator": {"epsilon": 4.0, "method": "rdp"},
                "privacy__noise__place": "parties",
            },
            1,
            "good",
        ),
        ({}, 2, "good"),
        ({"metrics__scores__student__accuracy": 0.1}, 2, "bad"),
        ({"metrics__scores__student__accuracy": 0.6}, 2, "bad"),
        ({"metrics__scores__student__accuracy": 0.7}, 2, "care"),
        ({"metrics__scores__student": None}, 2, "care"),
        ({"metrics__scores__best_hospital": None}, 2, "care"),
        ({"metrics__student": None, "metrics__scores__student": None}, 2, "bad"),
    ],
)
def test_a_judgment_follows_from_the_record(changed: dict[str, Any], place: int, tone: str) -> None:
    assert judged(**changed)[1][place] == tone


def test_a_judgment_is_told_without_color(tmp_path: Path) -> None:
    page = render_report(write_sample(tmp_path / "run"))
    [strip] = re.findall(r'<ul class="judgments".*?</ul>', page, re.DOTALL)
    assert len(re.findall(r"<strong><span[^>]*>[✓!✕]</span> \w+", strip)) == 3


def words_before_the_annex(page: str) -> int:
    """What a person reads: neither style nor drawings."""
    main = page[page.index("<body>") : page.index('<h2 id="annex">')]
    for unread in ("svg", "script", "style"):
        main = re.sub(rf"<{unread}\b.*?</{unread}>", " ", main, flags=re.DOTALL)
    return len(re.sub(r"<[^>]+>", " ", main).split())


@pytest.mark.parametrize("kind", kinds_of_runs())
def test_a_report_is_short_before_its_annex(tmp_path: Path, kind: str) -> None:
    page = render_report(write_sample(tmp_path / "run", **kinds_of_runs()[kind]))
    assert 800 < words_before_the_annex(page) <= MOST_WORDS


def use_of(page: str) -> str:
    """What a clinician is told that the run is good for."""
    [box] = re.findall(r'<div class="box" id="use">(.*?)</div>', page, re.DOTALL)
    return box


def test_a_clinician_is_warned_of_what_this_run_invites(tmp_path: Path) -> None:
    """A student that is sure for no reason, a missing answer; no student where there is none."""

    def told(name: str, *, error: float, refused: int, student: bool = True) -> str:
        metrics = sample_metrics()
        metrics["scores"]["student"]["calibration_error"] = error
        metrics["queries"]["refused"] = refused
        if not student:
            metrics["student"] = metrics["scores"]["student"] = None
        return use_of(render_report(write_sample(tmp_path / name, metrics=metrics)))

    usual = told("usual", error=0.05, refused=0)
    assert "risk" not in usual
    assert "No answer" not in usual
    assert "student" in usual
    assert "risk" in told("sure", error=0.11, refused=0)
    assert "No answer" in told("refusing", error=0.05, refused=1)
    assert "student" not in told("labels", error=0.3, refused=1, student=False)
