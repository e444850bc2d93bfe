"""The report: self-contained, escaped, complete, and the same each time."""

from __future__ import annotations

import copy
import itertools
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest

from pate_fed.accounting.costs import COMPOSED_METHOD, NO_BOUND_METHOD
from pate_fed.record import Settings
from pate_fed.record.manifest import PartitionProof, TeacherProof
from pate_fed.report import FinishedRun, plots, render_report
from pate_fed.report.editions import public_record
from pate_fed.report.plots import MAX_CLASSES
from pate_fed.run_folder import SEALED
from pate_fed.wording import chance_text, delta_text, epsilon_text, odds_factor, size_text
from tests.support.markers import sampled
from tests.support.sample_run import (
    sample_metrics,
    sample_parties,
    sample_privacy,
    sample_settings,
    write_sample,
)

EVIL = "<script>alert(1)</script>"


class _Page(HTMLParser):
    """Tags, attributes and text of a page, as a browser would read them."""

    VOID = frozenset({"meta", "link", "br"})

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if tag in ("td", "th"):
            self.text += " "

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data

    def words(self) -> str:
        return " ".join(self.text.split())


DRAWN: dict[str, str] = {}
"""Plots of the page, by what was drawn: most tests read what stands beside the same one."""


@pytest.fixture(autouse=True)
def each_plot_is_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = plots.classes_plot

    def drawn(*what: Any, **named: Any) -> str:
        key = repr((what, named))
        if key not in DRAWN:
            DRAWN[key] = draw(*what, **named)
        return DRAWN[key]

    monkeypatch.setattr(plots, "classes_plot", drawn)


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., FinishedRun]:
    def make(**changed: Any) -> FinishedRun:
        return write_sample(tmp_path / f"run{len(list(tmp_path.iterdir()))}", **changed)

    return make


def test_the_page_asks_nobody_for_anything(make_run: Callable[..., FinishedRun]) -> None:
    page = render_report(make_run())
    tags = _Page(page).tags
    assert not {"script", "img", "iframe", "object", "embed", "base", "form"} & {
        tag for tag, _ in tags
    }
    for _, attributes in tags:
        for name in ("src", "href", "xlink:href", "srcset", "action", "data"):
            assert re.match(r"#|data:,$", attributes.get(name) or "#"), attributes
        assert not any(name.startswith("on") for name in attributes)
    assert "http:" not in page
    assert "https:" not in page
    assert "@import" not in page
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", page))
    policy = [a for tag, a in tags if tag == "meta" and "content-security" in str(a).lower()]
    assert "default-src 'none'" in str(policy[0]["content"])


def test_the_page_is_well_formed_and_says_its_language(
    make_run: Callable[..., FinishedRun],
) -> None:
    page = _Page(render_report(make_run()))
    assert page.open == []
    assert ("html", {"lang": "en"}) in page.tags
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in page.tags:
        for target in (attributes.get("aria-labelledby") or "").split():
            assert target in ids
        link = attributes.get("href") or attributes.get("clip-path") or ""
        for target in re.findall(r"#([\w-]+)", link):
            assert target in ids
    headings = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert headings.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(headings))


def test_the_first_page_has_day_purpose_and_target_and_the_page_a_line_for_a_name(
    make_run: Callable[..., FinishedRun],
) -> None:
    settings = {"label": "disease", "classes": ["no", "yes"]}
    metrics = {**sample_metrics(), "per_class": {}}
    for purpose in ("", "Sepsis, early"):
        stated = {**settings, **({"purpose": purpose} if purpose else {})}
        page = render_report(make_run(metrics=metrics, settings=stated))
        first = _Page(page[: page.index('<dl class="words">')]).words()
        for said in ("2026-03-09 (UTC)", f"Purpose {purpose}", " disease ", "no, yes"):
            assert said in first
        assert page.count('<p class="sign">') == 1


def may_be_published(page: str) -> dict[str, str]:
    """The last cell of each row of the table of files."""
    table = page[page.index('id="publish"') :]
    table = table[: table.index("</table>")]
    rows = re.findall(r"<code>([^<]+)</code></th><td[^>]*>[^<]*</td><td[^>]*>([^<]*)</td>", table)
    assert len(rows) == table.count("<tr>") - 1
    return dict(rows)


def test_every_file_of_a_run_is_told_whether_it_may_be_published(
    make_run: Callable[..., FinishedRun],
) -> None:
    run = make_run()
    told = may_be_published(render_report(run))
    assert set(told) == {
        "student/" if name.startswith("student/") else name for name in run.digests
    } | {"report.html", "annexes.html"}
    assert set(SEALED) - set(run.digests) >= {"earlier-setups.jsonl"}  # not there, not told


@pytest.mark.parametrize("seed", [7, None])
@pytest.mark.parametrize("data", ["digits", "csv", "images"])
def test_of_a_simulation_no_file_that_depends_on_private_records_may_be_published(
    make_run: Callable[..., FinishedRun], seed: int | None, data: str
) -> None:
    run = make_run(settings={**sample_settings(), "seed": seed, "data": data})
    page = render_report(replace(run, manifest=run.manifest.changed(seed=seed)))
    told = may_be_published(page)
    for name in ("metrics.json", "manifest.json", "privacy.json", "run.toml", "report.html"):
        assert told[name].startswith("no: ")
    for name in ("labels.csv", "student/"):
        assert told[name].startswith("yes, " if seed is None else "no: ")
        assert ("your file" in told[name]) is (seed is None and data != "digits")
    assert told["transcript.jsonl"].startswith("no: ")
    edition, banner = (
        page[page.index(f'<div class="{kind}') :].partition("</div>")[0]
        for kind in ("edition", "simulated")
    )
    assert ("--seed" in edition) is bool(seed)
    assert ("no ε" in banner) is (data != "digits")


def test_labels_without_a_bound_may_not_be_published(make_run: Callable[..., FinishedRun]) -> None:
    told = may_be_published(render_report(make_run(privacy=sample_privacy(NO_BOUND_METHOD))))
    assert told["labels.csv"] == told["student/"]
    assert told["labels.csv"].startswith("no: ")


def test_of_a_deployment_labels_and_student_alone_may_be_published_as_they_are(
    make_run: Callable[..., FinishedRun],
) -> None:
    metrics, privacy = sample_metrics(), sample_privacy()
    metrics["simulated"] = privacy["simulated"] = False
    privacy["per_instance"].update(epsilon=None, order=None)
    settings = {**sample_settings(), "seed": None}
    page = render_report(make_run(metrics=metrics, privacy=privacy, settings=settings))
    told = may_be_published(page)
    assert told.pop("labels.csv").startswith("yes, ")
    assert told.pop("student/").startswith("yes, ")
    assert all(said.startswith("no") for said in told.values()), told


def test_sets_of_classes_are_stated_with_how_often_they_hold_the_true_class(
    make_run: Callable[..., FinishedRun],
) -> None:
    metrics = sample_metrics()
    assert not re.search(r"\d+ held-out", _Page(render_report(make_run(metrics=metrics))).words())
    metrics["student"]["sets"] = {
        "coverage": 0.9,
        "labels": 24,
        "labels_needed": 9,
        "interval": [0.7881, 0.9821],
        "least_chance": 0.125,
    }
    scores = metrics["scores"]["student"]
    scores |= {"covered": 0.8642, "set_size": 1.518}
    for place, row in enumerate(scores["per_class"].values()):
        row["covered"] = None if place == 0 else 0.5 + 0.04 * place
    said = _Page(render_report(make_run(metrics=metrics))).words()
    assert re.search(r"\b90 % [^.;]*\b24 held-out", said)
    assert re.search(r"86\.4 % [^.]*[^.]*\b1\.52 classes", said)
    assert "78.8 to 98.2 %" in said
    assert "(last column" in said
    assert " no case " in said
    assert " 86.0 % (7" in said  # of class 9


def test_each_plot_says_in_words_what_it_shows(make_run: Callable[..., FinishedRun]) -> None:
    page = render_report(make_run())
    pictures = [a for tag, a in _Page(page).tags if tag == "svg"]
    assert len(pictures) == 1
    assert all(picture["role"] == "img" for picture in pictures)
    says = re.findall(r"<desc [^>]*>(.*?)</desc>", page)
    assert "eight: 1 and 2" in says[0]


def test_the_first_page_has_every_accuracy_and_a_constants_as_a_bar(
    make_run: Callable[..., FinishedRun],
) -> None:
    run = make_run()
    [bars] = re.findall(r'<ul class="bars".*?</ul>', render_report(run), re.DOTALL)
    widths = [float(one) for one in re.findall(r"width: ([0-9.]+)%", bars)]
    scores = run.metrics.scores
    assert scores.student is not None
    expected = [scores.student.accuracy, run.metrics.label_accuracy, scores.student.majority]
    assert [widths[0], widths[1], widths[-1]] == [round(100 * (one or 0), 1) for one in expected]
    assert len(widths) == 7


def test_a_curve_is_drawn_and_the_confusion_and_calibration_are_counted(
    make_run: Callable[..., FinishedRun],
) -> None:
    metrics = sample_metrics()
    metrics["scores"]["student"]["roc"] = [[0.0, 0.0], [0.25, 0.75], [1.0, 1.0]]
    page = render_report(make_run(metrics=metrics))
    assert 'd="M0.0 100.0L25.0 25.0L100.0 0.0"' in page
    section = page.split('<section aria-labelledby="student-details"')[1].partition("</section>")[0]
    details = _Page(f"<section {section}</section>").words().replace("\N{NO-BREAK SPACE}", " ")
    assert " 0 45 " in details
    assert details.count(" 38 ") == 9
    assert "75.0 % 66.0 % 150" in details


def test_the_same_run_gives_the_same_bytes(make_run: Callable[..., FinishedRun]) -> None:
    page = render_report(make_run())
    DRAWN.clear()
    assert render_report(make_run()) == page
    assert len(DRAWN) == 1


def test_a_users_plot_style_changes_nothing(make_run: Callable[..., FinishedRun]) -> None:
    run = make_run()
    page = render_report(run)
    with mpl.rc_context({"axes.facecolor": "black", "font.size": 30, "svg.hashsalt": "other"}):
        DRAWN.clear()
        assert render_report(run) == page


@sampled()
@pytest.mark.parametrize("name", [EVIL, '"><img src=x onerror=alert(1)>', "]]>-->", "&lt;b&gt;"])
def test_a_name_from_data_stays_text_wherever_it_stands(
    make_run: Callable[..., FinishedRun], name: str
) -> None:
    metrics, privacy = sample_metrics(), sample_privacy()
    metrics["per_class"] = {name: {"answered": 3, "refused": 1}}
    metrics["warnings"] = [f"class {name} is rare"]
    privacy["unprotected"] = privacy["unprotected"] + [name]
    privacy["threat_model"] = privacy["neighboring_definition"] = privacy["noise"]["source"] = name
    privacy["ledger"][0]["state"] = name
    settings = {"label": name, "purpose": name, "data": name}
    page = render_report(make_run(metrics=metrics, privacy=privacy, settings=settings))
    read = _Page(page)
    assert {tag for tag, _ in read.tags} & {"script", "img", "b1"} == set()
    assert read.open == []
    assert read.text.count(name) >= 8


@sampled()
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("$\\frac{1}$ $x^{", id="a formula"),
        pytest.param("心臓 ❤ \N{GRINNING FACE}", id="letters that a font lacks"),
        pytest.param("a\x00b\x1bc\nd\te", id="control characters"),
        pytest.param("", id="empty"),
        pytest.param("_hidden", id="a name that a legend would hide"),
        pytest.param("x" * 500, id="long"),
        pytest.param("שלום", id="right to left"),
    ],
)
def test_any_name_can_be_drawn(make_run: Callable[..., FinishedRun], name: str) -> None:
    metrics = sample_metrics()
    metrics["per_class"] = {name: {"answered": 3, "refused": 1}, "b": {"answered": 0, "refused": 0}}
    page = _Page(render_report(make_run(metrics=metrics)))
    assert page.open == []
    assert name.replace("\x00", "") in page.text.replace("\x00", "").replace("\ufffd", "")


def test_fingerprints_and_sizes_stand_in_the_page(make_run: Callable[..., FinishedRun]) -> None:
    """What the stored rendering leaves out."""
    run = make_run()
    text = _Page(render_report(run)).words().replace("\N{NO-BREAK SPACE}", " ")
    for name, digest in run.digests.items():
        assert f"{name} {digest}" in text
    for said in ("transcript_head " + "a7" * 32, "run_id " + "c0" * 32, "1,182,340 (1.182 MB)"):
        assert said in text


def test_the_exact_epsilon_stands_beside_the_rounded_one(
    make_run: Callable[..., FinishedRun],
) -> None:
    privacy = sample_privacy()
    page = _Page(render_report(make_run(privacy=privacy)))
    values = {attributes["value"] for tag, attributes in page.tags if tag == "data"}
    assert str(privacy["views"]["public"]["epsilon"]) in values
    assert str(privacy["per_instance"]["epsilon"]) in values


def test_every_epsilon_has_its_facts_near_it(make_run: Callable[..., FinishedRun]) -> None:
    """Within 1000 letters of each epsilon stand delta, unit, neighbors, view, method, source."""
    privacy = sample_privacy()
    privacy["views"]["coordinator"] = {"epsilon": 7.5, "method": "rdp"}
    text = (
        _Page(render_report(make_run(privacy=privacy))).words().replace("\N{NO-BREAK SPACE}", " ")
    )
    places = [found.end() for found in re.finditer("ε = ", text)]
    assert len(places) >= 7
    for place in places:
        near = text[max(0, place - 300) : place + 1000].lower()
        for fact in (
            "1e-5",
            "whole hospital",
            "neighbors",
            "view",
            "method",
            "source",
        ):
            assert fact.lower() in near, (fact, near)


def test_caps_on_everything_are_told(make_run: Callable[..., FinishedRun]) -> None:
    privacy = sample_privacy()
    privacy["mechanism"].update(max_asks=1029, max_answers=25)
    text = _Page(render_report(make_run(privacy=privacy))).words()
    assert re.search("1,029; .* 25 ", text)


@pytest.mark.parametrize("hospitals", [3, 8, 9, 40])
def test_hospitals_that_differ_are_listed_and_many_of_them_folded(
    make_run: Callable[..., FinishedRun], hospitals: int
) -> None:
    privacy = sample_privacy()
    privacy["parties"] = sample_parties(hospitals, alike=False)
    page = render_report(make_run(privacy=privacy))
    text = _Page(page).words().replace("\N{NO-BREAK SPACE}", " ")
    for party in privacy["parties"]:
        epsilons = " ".join(epsilon_text(party[key], padded=True) for key in ("epsilon", "budget"))
        cells = f"1 {party['votes']} {party['unit_votes']} {COMPOSED_METHOD}"
        assert f"{party['party']} {epsilons} {cells}" in text
    assert (f"<summary>{hospitals} hospitals, one by one</summary>" in page) is (hospitals > 8)
    smallest = epsilon_text(privacy["parties"][0]["epsilon"])
    assert f"Highest cost: ε = {smallest} to 4.987. Budgets: ε =" in text
    assert "largest" in text


@pytest.mark.parametrize("larger", [True, False])
def test_a_per_instance_number_above_the_formal_one_is_explained(
    make_run: Callable[..., FinishedRun], *, larger: bool
) -> None:
    privacy = sample_privacy()
    formal = privacy["views"]["public"]["epsilon"]
    privacy["per_instance"]["epsilon"] = formal * (1.01 if larger else 1.0)
    text = _Page(render_report(make_run(privacy=privacy))).words()
    assert ("rougher" in text) is larger


def test_the_name_of_a_hospital_stays_text(make_run: Callable[..., FinishedRun]) -> None:
    privacy = sample_privacy()
    privacy["parties"] = sample_parties(4, alike=False)
    privacy["parties"][1]["party"] = EVIL
    read = _Page(render_report(make_run(privacy=privacy)))
    assert "script" not in {tag for tag, _ in read.tags}
    assert EVIL in read.text


MECHANISMS: dict[str, dict[str, Any]] = {
    "threshold": {},
    "confident": {"sigma1": 14.25},
    "gnmax": {"vote_threshold": None},
    "lnmax": {"vote_threshold": None, "gamma": 0.2},
    "interactive": {"confidence": 0.9, "sigma1": 14.25},
    "interactive-threshold": {"confidence": 0.9},
    "stable-gaussian": {
        **{"vote_threshold": None, "sigma1": 14.25, "sigma2": None},
        **{"test_delta": 1e-8, "unit_votes": 1},
    },
    "stable-laplace": {
        **{"vote_threshold": None, "sigma1": 14.25, "sigma2": None},
        **{"test_delta": 1e-8, "unit_votes": 12},
    },
    "counts": {"vote_threshold": None},
    "immutable": {"vote_threshold": None, "gamma": 0.2, "constant": 1_000_000.0},
}


def test_a_mechanism_that_protects_nobody_is_not_said_to_bound_anything(
    make_run: Callable[..., FinishedRun],
) -> None:
    privacy = sample_privacy(NO_BOUND_METHOD)
    privacy["per_instance"]["epsilon"] = privacy["per_instance"]["order"] = None
    page = render_report(make_run(privacy=privacy))
    text = _Page(page).words()
    assert "ε =" not in text.replace("\N{NO-BREAK SPACE}", " ")
    assert "is bounded," not in text
    assert "Charged nothing" in text
    assert page.count("protects nobody") >= 2


def test_each_section_with_an_epsilon_says_the_neighbors_in_full_once(
    make_run: Callable[..., FinishedRun],
) -> None:
    privacy = sample_privacy()
    privacy["views"]["coordinator"] = {"epsilon": 7.5, "method": "rdp"}
    for public in (privacy["views"]["public"]["epsilon"], None):
        privacy["views"]["public"]["epsilon"] = public
        page = render_report(make_run(privacy=privacy))
        for section in page.split("<section ")[1:]:
            text = _Page(f"<section {section.partition('</section>')[0]}</section>").words()
            stated = "ε&nbsp;=" in section.partition("<svg")[0] and "<data" in section
            assert text.count(privacy["neighboring_definition"].rstrip(".")) == (
                stated or "facts" in section
            )
            if "records replaced" in text:
                assert text.index(privacy["neighboring_definition"][:40]) < text.index(
                    "records replaced"
                )


def test_a_list_of_the_manifest_is_a_table_that_opens(make_run: Callable[..., FinishedRun]) -> None:
    teachers = tuple(
        TeacherProof(party=party, teacher=0, units=9, records=20, digest=f"{party:x}" * 8)
        for party in (3, 4)
    )
    proof = PartitionProof(
        schema_version=1,
        hash="HMAC",
        units=18,
        records=40,
        repeated_contents=0,
        root="c1" * 32,
        teachers=teachers,
    )
    run = make_run()
    page = render_report(replace(run, manifest=run.manifest.changed(partition=proof)))
    text = _Page(page).words()
    assert re.search("partition.teachers: 2 entries .*digest", text)
    assert "3 20 0 9 33333333 4 20 0 9 44444444" in text
    assert "{'" not in text
    assert "&#39;party" not in page


@pytest.mark.parametrize(("hospitals", "folded"), [(3, False), (50, True)])
def test_many_heads_are_folded_beside_their_explanation(
    make_run: Callable[..., FinishedRun], hospitals: int, folded: bool
) -> None:
    heads = tuple(f"{number:02}" * 32 for number in range(hospitals))
    run = make_run()
    page = render_report(replace(run, manifest=run.manifest.changed(heads_compared=heads)))
    assert (f"<summary>{hospitals} entries</summary>" in page) is folded
    text = _Page(page).words()
    assert ", ".join(heads) in text
    explained = text.index("transcript_head is")
    assert 0 < text.index(heads[0]) - explained < 1000


def test_bytes_that_nobody_counted_have_no_average(make_run: Callable[..., FinishedRun]) -> None:
    metrics = sample_metrics()
    metrics["bytes"]["from_parties"] = 0
    page = render_report(make_run(metrics=metrics))
    assert "on average: " not in page


def test_the_per_instance_number_is_boxed_as_not_for_publication(
    make_run: Callable[..., FinishedRun],
) -> None:
    page = render_report(make_run())
    box = page[page.index('<div class="box alarm">') :]
    box = box[: box.index("</div>")]
    assert "<code>privacy.json</code>" in box
    assert epsilon_text(sample_privacy()["per_instance"]["epsilon"]) in box
    assert page.count(epsilon_text(sample_privacy()["per_instance"]["epsilon"])) == box.count(
        epsilon_text(sample_privacy()["per_instance"]["epsilon"])
    )


@pytest.mark.parametrize("stamped", ["metrics", "privacy", "both"])
def test_a_simulation_is_stamped(make_run: Callable[..., FinishedRun], stamped: str) -> None:
    metrics, privacy = sample_metrics(), sample_privacy()
    metrics["simulated"] = stamped != "privacy"
    privacy["simulated"] = stamped != "metrics"
    page = render_report(make_run(metrics=metrics, privacy=privacy))
    assert "SIMULATED" in page
    assert "(simulated)</title>" in page


def test_a_real_run_is_not_stamped(make_run: Callable[..., FinishedRun]) -> None:
    metrics, privacy = sample_metrics(), sample_privacy()
    metrics["simulated"] = privacy["simulated"] = False
    privacy["noise"]["source"] = "operating system"
    text = _Page(render_report(make_run(metrics=metrics, privacy=privacy))).text
    assert "simulat" not in text.lower()
    assert "DEPLOYED" in text


def test_a_deployment_shows_what_its_coordinator_knows_and_no_empty_yardstick(
    make_run: Callable[..., FinishedRun],
) -> None:
    metrics, privacy = sample_metrics(), sample_privacy()
    metrics["simulated"] = privacy["simulated"] = False
    metrics["label_accuracy"], metrics["scores"] = None, dict.fromkeys(metrics["scores"])
    metrics["per_class"] = {}
    run = make_run(metrics=metrics, privacy=privacy)
    text = _Page(render_report(run)).words()
    for party in privacy["parties"]:
        assert party["party"] in text
    assert "Nobody measured" in text
    assert "comparison" not in text.lower()
    released = Counter(label for _, label in run.labels if label)
    assert len(released) > 1
    for name, labels in released.items():
        assert f" {name} {labels} " in text


@sampled()
@pytest.mark.parametrize(
    ("student", "best", "worse"),
    [
        pytest.param(0.6, 0.7, True, id="worse"),
        pytest.param(0.7, 0.7, False, id="equal"),
        pytest.param(0.8, 0.7, False, id="better"),
        pytest.param(None, 0.7, False, id="student unknown"),
        pytest.param(0.6, None, False, id="hospital unknown"),
    ],
)
def test_a_student_worse_than_a_hospital_is_said_plainly(
    make_run: Callable[..., FinishedRun], student: float | None, best: float | None, worse: bool
) -> None:
    metrics = sample_metrics()
    for model, share in (("student", student), ("best_hospital", best)):
        known = {**metrics["scores"][model], "accuracy": share}
        metrics["scores"][model] = None if share is None else known
    page = render_report(make_run(metrics=metrics))
    in_short, results = page[: page.index('id="cost"')], page[page.index('id="learned"') :]
    for section in (in_short, results):  # first of all, and beside the numbers compared
        assert ("better alone" in section) is worse
        assert ("not worth" in section) is worse


def test_the_first_page_names_the_coordinator_that_was_trusted(
    make_run: Callable[..., FinishedRun],
) -> None:
    run = make_run()
    manifest = run.manifest.changed(seed=None, federation="<b>heart</b>")
    named = replace(run, manifest=manifest, settings=Settings())
    page = render_report(named)
    assert "coordinator of &lt;b&gt;heart&lt;/b&gt; " in page
    assert "the coordinator of" not in render_report(run)
    assert "heart" not in render_report(public_record(named))


@sampled()
@pytest.mark.parametrize("classes", [1, 2, 35, 100, MAX_CLASSES, MAX_CLASSES + 80])
def test_many_classes_are_drawn_and_listed(
    make_run: Callable[..., FinishedRun], classes: int
) -> None:
    metrics = sample_metrics()
    metrics["per_class"] = {
        f"class {number}": {"answered": number % 4, "refused": number % 3}
        for number in range(classes)
    }
    page = render_report(make_run(metrics=metrics))
    drawing = page[page.index('id="classes-title"') :]
    drawing = drawing[drawing.index("</desc>") : drawing.index("</svg>")]
    drawn = len(re.findall(r">class \d+<", drawing))
    assert drawn == min(classes, MAX_CLASSES)
    listed = re.findall(r'<th scope="row" class="free">class (\d+)</th>', page)
    assert sorted(map(int, listed)) == list(range(classes))
    assert ("asked most" in page) is (classes > MAX_CLASSES)


def test_classes_stand_in_counting_order(make_run: Callable[..., FinishedRun]) -> None:
    metrics = sample_metrics()
    metrics["per_class"] = {
        str(number): {"answered": 1, "refused": 0} for number in (10, 9, 2, 1, 11)
    }
    page = render_report(make_run(metrics=metrics))
    listed = re.findall(r'<th scope="row" class="free">(\d+)</th>', page)
    assert listed == ["1", "2", "9", "10", "11"]


def test_rendering_changes_nothing_in_the_run(make_run: Callable[..., FinishedRun]) -> None:
    run = make_run()
    before = copy.deepcopy((run.metrics, run.privacy, run.settings, run.manifest))
    render_report(run)
    assert (run.metrics, run.privacy, run.settings, run.manifest) == before


@pytest.mark.parametrize(
    ("epsilon", "text"),
    [
        pytest.param(5.0, "5", id="whole"),
        pytest.param(4.9990001, "5", id="up, never to nearest"),
        pytest.param(4.871234, "4.872", id="three decimals"),
        pytest.param(1e-9, "0.001", id="tiny is not nothing"),
        pytest.param(0.0, "0", id="nothing"),
        pytest.param(120.0, "120", id="zeros in front stay"),
        pytest.param(10.0, "10", id="ten keeps its zero"),
        pytest.param(None, "no number", id="unknown"),
    ],
)
def test_an_epsilon_is_rounded_up(epsilon: float | None, text: str) -> None:
    assert epsilon_text(epsilon) == text


@pytest.mark.parametrize(
    ("epsilon", "text"),
    [(0.0, "0.000"), (1e-9, "0.001"), (2.41, "2.410"), (4.9990001, "5.000")],
)
def test_an_epsilon_in_a_column_has_three_decimals(epsilon: float, text: str) -> None:
    assert epsilon_text(epsilon, padded=True) == text


@pytest.mark.parametrize(
    ("delta", "text", "chance"),
    [(1e-5, "1e-5", "1 in 100,000"), (2.5e-6, "2.5e-6", "1 in 400,000"), (0.0, "0", "none")],
)
def test_a_delta_is_said_as_people_do(delta: float, text: str, chance: str) -> None:
    assert (delta_text(delta), chance_text(delta)) == (text, chance)


def test_factors_of_odds_are_rounded_up_and_huge_ones_are_words() -> None:
    assert [odds_factor(epsilon) for epsilon in (0.0, 1.0, 5.0, 800.0)] == [
        "1",
        "2.8",
        "149",
        "more than 100 million",
    ]


def test_sizes_are_said_in_four_digits() -> None:
    assert [size_text(size) for size in (0, 999, 1500, 1_182_340, 5e9, 7e12)] == [
        "0 bytes",
        "999 bytes",
        "1.5 kB",
        "1.182 MB",
        "5 GB",
        "7,000 GB",
    ]


def test_noise_at_the_parties_is_charged_and_shown_in_the_coordinators_view(
    make_run: Callable[..., FinishedRun],
) -> None:
    privacy = sample_privacy()
    privacy["noise"]["place"] = "parties"
    privacy["mechanism"]["shares"] = 37
    privacy["views"]["coordinator"] = {
        "epsilon": 4.4375,
        "method": "RDP of every opened row",
        "holds_for": "the coordinator & more",
    }
    page = render_report(make_run(privacy=privacy))
    assert 'value="4.4375"' in page
    assert "<b>view</b> coordinator: the coordinator &amp; more" in page
    assert "any 37 parts" in page
    assert "noisy row" in page
    privacy["parties"] = sample_parties(4, alike=False)
    page = render_report(make_run(privacy=privacy))
    hospitals = page.partition("Hospital by hospital")[2].partition("</table>")[0]
    assert "<b>view</b> coordinator · <b>method</b>" in hospitals
