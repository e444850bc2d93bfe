"""The public edition of a run: allowed fields alone, in every file that is exported."""

from __future__ import annotations

import copy
import itertools
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pate_fed.accounting.costs import COMPOSED_METHOD, NO_BOUND_METHOD
from pate_fed.errors import RunDirectoryError
from pate_fed.record import TABLES, RecordTable, about
from pate_fed.record import __main__ as schema
from pate_fed.report import FinishedRun, public_record, read_run, write_public_edition
from pate_fed.report.publication_words import has_own_data
from tests.support.markers import sampled
from tests.support.record_tables import fields_of
from tests.support.sample_run import sample_metrics, sample_privacy, write_sample

YARDSTICKS = ("average_hospital", "best_hospital", "pooled", "private_baseline")

PRIVATE = {
    # Accuracies of models of private records, without noise; the votes; counts of records.
    *(f"metrics.json scores.{model}" for model in YARDSTICKS),
    *("privacy.json per_instance", "metrics.json data", "metrics.json scores.student.subgroups"),
    *(f"manifest.json {name}" for name in ("partition", "split", "seed", "earlier_setups")),
    # Times and sizes of messages, and texts that name hospitals, runs or a machine's files.
    *(f"metrics.json {name}" for name in ("exchanges", "seconds", "bytes", "warnings")),
    *(f"manifest.json {name}" for name in ("python", "versions", "heads_compared", "not_heard")),
    *("manifest.json federation", "manifest.json evaluated", "metrics.json earlier_runs"),
    *(f"run.toml {name}" for name in ("file", "patient_id", "hospital", "ignore", "positive")),
    *(f"run.toml {name}" for name in ("missing", "map", "drop_unlabeled")),
    "run.toml records_per_teacher",
    *(f"run.toml {name}" for name in ("separator", "decimal", "teachers", "weights", "partition")),
    *(f"run.toml {name}" for name in ("patients", "engine", "seed", "party_epsilons", "teacher")),
    *(f"run.toml {name}" for name in ("device", "class_balance", "earlier")),
}
"""Fields that no public edition has, and no other: with those below them."""

WITH_POOL = {
    *("metrics.json label_accuracy", "metrics.json per_class"),
    *("metrics.json scores.student", "metrics.json evaluation.no_answer"),
    *("metrics.json queries.pool", "manifest.json pool_sha256", "run.toml data"),
}
"""Fields that follow from public inputs, too: not where those are patients."""


def lists_with(file: str, public: str) -> set[str]:
    """The fields of a file that are public so, but for those below such a field."""
    found = [one.path for one in fields_of(TABLES[file]) if one.public == public]
    return {f"{file} {path}" for path in found if not any(is_below(path, one) for one in found)}


def is_below(path: str, other: str) -> bool:
    return path.startswith((f"{other}.", f"{other}["))


def test_what_is_public_is_what_was_decided() -> None:
    """A field of another kind fails here: put it into a list, and give the reason in a review."""
    for public, decided in (("no", PRIVATE), ("pool", WITH_POOL)):
        found = set().union(*(lists_with(file, public) for file in TABLES))
        assert found == decided


@pytest.mark.parametrize("file", TABLES)
def test_a_schema_says_meaning_and_openness(
    file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["record", file])
    schema.main()
    said = json.loads(capsys.readouterr().out)["properties"]
    meant = {name: about(field) for name, field in TABLES[file].model_fields.items()}
    assert {name: (one["description"], one["x-public"]) for name, one in said.items()} == {
        name: (one.text, one.public) for name, one in meant.items()
    }


def marked(table: RecordTable, public: str = "yes") -> tuple[RecordTable, list[str]]:
    """The table with a marker in every text and number that is not public; and the markers."""
    fields, markers = {}, []

    def mark(value: Any, seen: str) -> Any:
        if isinstance(value, RecordTable):
            inner, found = marked(value, seen)
            markers.extend(found)
            return inner
        if isinstance(value, tuple):
            return tuple(mark(one, seen) for one in value)
        if isinstance(value, dict):
            return {name: mark(one, seen) for name, one in value.items()}
        if seen == "yes" or isinstance(value, bool) or value is None:
            return value
        number = next(COUNTER)
        if isinstance(value, str):
            marker: object = f"marker-{number}-x"
        else:
            marker = number / 10**11 if isinstance(value, float) else number
        markers.append(str(marker))
        return marker

    for name, field in type(table).model_fields.items():
        value, seen = getattr(table, name), min(public, about(field).public, key=ORDER.index)
        fields[name] = mark(value, seen)
    # Unchecked: not every text may be a marker.
    return type(table).model_construct(**fields), markers


ORDER = ("no", "pool", "yes")
COUNTER = itertools.count(83_100_000_000)


def unseeded(run: FinishedRun, **settings: object) -> FinishedRun:
    return replace(
        run,
        settings=run.settings.changed(seed=None, **settings),
        manifest=run.manifest.changed(seed=None),
    )


def planted(run: FinishedRun) -> tuple[FinishedRun, list[str]]:
    tables = {name: marked(getattr(run, name)) for name in ("metrics", "privacy", "manifest")}
    settings, markers = marked(run.settings.changed(data="digits"))
    changed: dict[str, Any] = {name: table for name, (table, _) in tables.items()}
    changed["settings"] = settings.changed(seed=None, data=run.settings.data)
    changed["manifest"] = changed["manifest"].changed(seed=None)
    return replace(run, **changed), markers + [one for _, found in tables.values() for one in found]


@sampled()
@pytest.mark.parametrize("data", ["digits", "csv"])
def test_no_exported_file_holds_a_private_field(tmp_path: Path, data: str) -> None:
    run = unseeded(write_sample(tmp_path / "run"), data=data)
    parties = tuple(one.changed(party=f"marker-of-{one.party}") for one in run.privacy.parties)
    run = replace(run, privacy=run.privacy.changed(parties=parties))
    whole, markers = planted(run)
    public = public_record(whole)
    written = json.dumps([
        one.as_json() for one in (public.settings, public.manifest, public.metrics, public.privacy)
    ])  # fmt: skip
    assert len(markers) > 80
    found = [one for one in markers if one in written]
    assert (found == []) is (data == "csv")  # the pool's are public where the pool is
    assert "marker-of-" not in written
    assert '"party": "Hospital 50"' in written
    assert public.privacy.views == run.privacy.views
    assert (public.metrics.scores.student is None) is (data == "csv")
    assert has_own_data(public) is (data == "csv")  # so that the page says why accuracy is missing
    assert public.sent == ()


@pytest.mark.slow
def test_the_folder_of_a_public_edition_holds_no_private_number(tmp_path: Path) -> None:
    metrics, privacy = sample_metrics(), copy.deepcopy(sample_privacy())
    secrets = [0.5318264, 0.6731946, 0.9662837, 0.7412683]
    for key, one in zip(YARDSTICKS, secrets, strict=True):
        metrics["scores"][key]["accuracy"] = one
    privacy["per_instance"]["epsilon"] = 2.1347291
    metrics["warnings"] = ["party-07 was lost"]
    settings = {"data": "digits", "file": "st-mary.csv"}
    write_sample(tmp_path / "run", metrics=metrics, privacy=privacy, settings=settings)
    manifest = json.loads((tmp_path / "run/manifest.json").read_text("utf-8"))
    manifest |= {"seed": None, "heads_compared": ["c1" * 32]}
    (tmp_path / "run/manifest.json").write_text(json.dumps(manifest), "utf-8")
    write_public_edition(tmp_path / "run", tmp_path / "public", agreed=["party-03"])
    files = [one for one in (tmp_path / "public").rglob("*") if one.is_file()]
    assert {one.name for one in files} == {
        *("run.toml", "manifest.json", "metrics.json", "privacy.json", "labels.csv"),
        *("report.html", "model_card.md"),
    }
    text = "\n".join(one.read_text("utf-8") for one in files)
    for secret in ("53.2 %", "67.3 %", "96.6 %", "2.135", "st-mary", "party-07", "c1c1c1"):
        assert secret not in text, secret
    for secret in (*secrets, 2.1347291):
        assert str(secret) not in text
    assert "party-03" in text
    assert "PUBLIC EDITION" in text
    assert "DO NOT PUBLISH" not in text
    again = read_run(tmp_path / "public")
    assert public_record(again, agreed=["party-03"]).privacy.parties[2].party == "party-03"


@pytest.mark.parametrize(
    ("seed", "method", "agreed", "said"),
    [
        pytest.param(7, COMPOSED_METHOD, (), "without --seed", id="a seed"),
        pytest.param(None, NO_BOUND_METHOD, (), "bounds", id="no epsilon"),
        pytest.param(None, COMPOSED_METHOD, ("St. Mary",), "'St. Mary'", id="a stranger"),
    ],
)
def test_no_edition_is_made_of_a_run_that_protects_nobody(
    tmp_path: Path, seed: int | None, method: str, agreed: tuple[str, ...], said: str
) -> None:
    run = unseeded(write_sample(tmp_path / "run", privacy=sample_privacy(method)))
    run = replace(run, settings=run.settings.changed(seed=seed))
    with pytest.raises(RunDirectoryError, match=said):
        public_record(run, agreed=agreed)
