"""The public edition of a run: allowed fields alone, in every file that is exported."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from pate_fed.accounting.statement import COMPOSED_METHOD, NO_BOUND_METHOD
from pate_fed.data import DataSource
from pate_fed.errors import RunDirectoryError
from pate_fed.planning import RunSettings
from pate_fed.report import RunRecord, public_record, read_run, shapes, write_public_edition
from pate_fed.report.editions import PRIVATE, PUBLIC, PUBLIC_WITH_POOL, is_listed, leaves
from pate_fed.report.publication_words import has_own_data
from tests.support.markers import sampled
from tests.support.sample_run import sample_metrics, sample_privacy, write_sample

LISTS = {"public": PUBLIC, "public with the pool": PUBLIC_WITH_POOL, "private": PRIVATE}
SUITE = "mlkem768-x25519-hkdf-sha256-aes-256-gcm"


def fields_of(shape: type[BaseModel], place: str) -> set[str]:
    """The path of each field of a shape; "*" for a name that is free."""
    found: set[str] = set()
    for name, field in shape.model_fields.items():
        found |= _fields_under(field.annotation, f"{place}.{field.alias or name}")
    return found


def _fields_under(kind: Any, place: str) -> set[str]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return fields_of(kind, place)
    parts = [part for part in get_args(kind) if part is not type(None)]
    origin = getattr(kind, "__origin__", None)
    if origin is dict:
        return _fields_under(parts[1], f"{place}.*")
    found = [_fields_under(part, place) for part in parts if _fields_under(part, place) != {place}]
    return set().union(*found) if found else {place}


def lists_with(path: str) -> list[str]:
    return [name for name, rules in LISTS.items() if is_listed(path, rules)]


def test_each_field_of_a_run_is_in_one_list() -> None:
    """A field that nobody classified fails here: put it into a list of `editions`."""
    paths = fields_of(shapes.Metrics, "metrics") | fields_of(shapes.Privacy, "privacy")
    assert {"privacy.views.public.formal.epsilon", "metrics.per_class.*.answered"} <= paths
    for free in (
        leaves(RunSettings(DataSource("digits"), SUITE).as_table(), "run"),
        leaves(sample_metrics(), "metrics"),
        leaves(sample_privacy(), "privacy"),
    ):
        paths |= set(free)
    paths -= {"metrics.evaluation", "privacy.evaluation"}  # null in a sample: tables with fields
    assert {path: lists_with(path) for path in paths if len(lists_with(path)) != 1} == {}
    assert lists_with("metrics.accuracy.of_a_new_kind") == []
    assert lists_with("privacy.mechanism.new.number") == []


class Planted:
    """A run with a marker in every field that is not public."""

    def __init__(self, run: RunRecord) -> None:
        self.markers: list[str] = []
        self.run = replace(
            run,
            settings=self._marked(run.settings, "run"),
            manifest=self._marked(run.manifest, "manifest"),
            metrics=self._marked(run.metrics, "metrics"),
            privacy=self._marked(run.privacy, "privacy"),
        )

    def _marked(self, table: Mapping[str, Any], place: str) -> dict[str, Any]:
        found = {name: self._value(one, f"{place}.{name}") for name, one in table.items()}
        if place not in {"metrics.scores.student", "metrics.accuracy"}:  # names are free, or new
            found[self._text()] = self._text()
        return found

    def _value(self, value: Any, place: str) -> Any:
        if isinstance(value, Mapping):
            return self._marked(value, place)
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            return [self._marked(row, place) for row in value]
        if is_listed(place, PUBLIC | PUBLIC_WITH_POOL) or place.endswith(
            ("schema_version", ".seed")
        ):
            return value
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return [self._text()] if isinstance(value, list) else self._text()
        self.markers.append(f"{83_100_000_000 + len(self.markers)}")
        return int(self.markers[-1])

    def _text(self) -> str:
        self.markers.append(f"marker-{len(self.markers):04}-x")
        return self.markers[-1]


def unseeded(run: RunRecord, **settings: object) -> RunRecord:
    return replace(
        run,
        settings={
            **{name: one for name, one in run.settings.items() if name != "seed"}, **settings
        },
        manifest={**run.manifest, "seed": None},
    )  # fmt: skip


@sampled(1)
@pytest.mark.parametrize("data", ["digits", "csv"])
def test_no_exported_file_holds_a_private_field(tmp_path: Path, data: str) -> None:
    run = unseeded(write_sample(tmp_path / "run"), data=data)
    planted = Planted(run)
    for party in planted.run.privacy["parties"]:
        party["party"] = f"marker-of-{party['party']}"
    public = public_record(planted.run)
    written = json.dumps([public.settings, public.manifest, public.metrics, public.privacy])
    assert len(planted.markers) > 100
    assert [one for one in planted.markers if one in written] == []
    assert "marker-of-" not in written
    assert '"party": "Hospital 50"' in written
    assert public.privacy["views"] == run.privacy["views"]
    assert (public.metrics["accuracy"]["student"] is None) is (data == "csv")
    assert has_own_data(public) is (data == "csv")  # so that the page says why accuracy is missing
    assert public.sent == ()


@pytest.mark.slow
def test_the_folder_of_a_public_edition_holds_no_private_number(tmp_path: Path) -> None:
    metrics, privacy = sample_metrics(), copy.deepcopy(sample_privacy())
    secrets = [0.5318264, 0.6731946, 0.9662837]
    for key, one in zip(("teacher_mean", "best_single_party", "pooled"), secrets, strict=True):
        metrics["accuracy"][key] = metrics["scores"][key]["accuracy"] = one
    privacy["per_instance"]["epsilon"] = 2.1347291
    metrics["warnings"] = ["party-07 was lost"]
    settings = {"data": "digits", "source": {"file": "st-mary.csv"}}
    write_sample(tmp_path / "run", metrics=metrics, privacy=privacy, settings=settings)
    manifest = json.loads((tmp_path / "run/manifest.json").read_text("utf-8"))
    (tmp_path / "run/manifest.json").write_text(json.dumps({**manifest, "seed": None}), "utf-8")
    write_public_edition(tmp_path / "run", tmp_path / "public", agreed=["party-03"])
    files = [one for one in (tmp_path / "public").rglob("*") if one.is_file()]
    assert {one.name for one in files} == {
        *("run.toml", "manifest.json", "metrics.json", "privacy.json", "labels.csv"),
        *("report.html", "model_card.md"),
    }
    text = "\n".join(one.read_text("utf-8") for one in files)
    for secret in ("53.2 %", "67.3 %", "96.6 %", "2.135", "st-mary", "party-07", "c0c0c0"):
        assert secret not in text, secret
    for secret in (*secrets, 2.1347291):
        assert str(secret) not in text
    assert "party-03" in text
    assert "PUBLIC EDITION" in text
    assert "DO NOT PUBLISH" not in text
    again = read_run(tmp_path / "public")
    assert public_record(again, agreed=["party-03"]).privacy["parties"][2]["party"] == "party-03"


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
    run = replace(run, settings={**run.settings, **({} if seed is None else {"seed": seed})})
    with pytest.raises(RunDirectoryError, match=said):
        public_record(run, agreed=agreed)
