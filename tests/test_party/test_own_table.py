"""The hospital's own table: shown without small counts, registered, held to its hash."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from party.errors import DataChangedError, DataError, PartyError, SiteError
from party.site.own_table import DatasetSummary, add, examine, read_registered
from party.site.site import Site
from pate_fed.data.reading import Reading
from pate_fed.errors import (
    InvalidCellError,
    InvalidParameterError,
    MissingColumnError,
    PateFedError,
    UnreadableFileError,
)
from tests.support.hospital_site import LABEL, PATIENT, make_site, write_own_table


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_own_table(tmp_path / "own.csv")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return make_site(tmp_path / "site")


def look(path: Path, *, patient_id: str | None = PATIENT, floor: int = 10) -> DatasetSummary:
    return examine(path, label=LABEL, patient_id=patient_id, floor=floor)


def with_counts(path: Path, **counts: int) -> Path:
    rows = [f"{name}-{row},{row},{name}" for name, count in counts.items() for row in range(count)]
    path.write_text("\n".join([f"{PATIENT},age,{LABEL}", *rows]) + "\n", encoding="utf-8")
    return path


class TestWhatIsShown:
    def test_schema_sizes_and_hash(self, table: Path) -> None:
        summary = look(table)
        assert (summary.rows, summary.patients) == (80, 40)
        assert [(one.name, one.role) for one in summary.columns] == [
            (PATIENT, "patient"),
            ("age", "number"),
            ("sex", "text"),
            (LABEL, "label"),
        ]
        assert summary.classes == (("no", 20), ("yes", 20))  # patients, of two rows each
        assert summary.sha256 == hashlib.sha256(table.read_bytes()).hexdigest()
        assert all("almost alone" in one for one in summary.notes)

    @pytest.mark.parametrize(
        ("counts", "shown"),
        [
            pytest.param({"a": 10, "b": 30}, {"a": 10, "b": 30}, id="at the floor"),
            pytest.param({"a": 9, "b": 30}, {"a": None, "b": None}, id="the total would tell"),
            pytest.param(
                {"a": 9, "b": 30, "c": 20}, {"a": None, "b": 30, "c": None}, id="one of three"
            ),
            pytest.param(
                {"a": 9, "b": 3, "c": 20}, {"a": None, "b": None, "c": 20}, id="two of three"
            ),
        ],
    )
    def test_small_counts_are_not(
        self, tmp_path: Path, counts: dict[str, int], shown: dict[str, int | None]
    ) -> None:
        assert dict(look(with_counts(tmp_path / "t.csv", **counts)).classes) == shown

    def test_one_patient_under_two_names_is_pointed_out(self, tmp_path: Path) -> None:
        path = tmp_path / "t.csv"
        path.write_text("patient,age,sick\na,40,no\nb,40,no\nc,50,yes\n", encoding="utf-8")
        assert "two ids" in "".join(look(path).notes)

    def test_a_record_that_was_entered_twice_is_pointed_out(self, tmp_path: Path) -> None:
        path = tmp_path / "t.csv"
        path.write_text("patient,age,sick\nSECRET,1,no\nb,2,yes\nSECRET,1,no\n", encoding="utf-8")
        summary = look(path)
        assert (summary.rows, summary.patients) == (3, 2)
        assert "line 4" in "".join(summary.notes)
        assert "SECRET" not in "".join(summary.notes)

    def test_a_column_says_why_no_teacher_may_learn_from_it(self, tmp_path: Path) -> None:
        path = tmp_path / "t.csv"
        rows = [f"p{row},{row % 7},x,note {row},,{'ny'[row % 2]}" for row in range(30)]
        path.write_text(
            "\n".join([f"{PATIENT},age,unit,text,none,{LABEL}", *rows]), encoding="utf-8"
        )
        found = {one.name: one.doubt.split()[0] for one in look(path).columns if one.doubt}
        assert found == {"unit": "one", "text": "an", "none": "empty"}

    def test_rows_without_a_patient_are_pointed_out(self, table: Path) -> None:
        summary = look(table, patient_id=None)
        assert summary.patients == summary.rows
        assert "patient" in "".join(summary.notes)


@pytest.mark.parametrize(
    ("content", "error", "named"),
    [
        pytest.param("", UnreadableFileError, "empty", id="an empty file"),
        pytest.param("patient,age,sick\n", DataError, "patients", id="a header only"),
        pytest.param(
            "patient;age;sick\na;1;no\n", UnreadableFileError, "separator", id="semicolons"
        ),
        pytest.param("patient,age,ill\na,1,no\n", MissingColumnError, "'sick'", id="no label"),
        pytest.param("id,age,sick\na,1,no\n", MissingColumnError, "'patient'", id="no patient"),
        pytest.param("patient,sick\na,no\nb,yes\n", DataError, "learn", id="no feature"),
        pytest.param(
            "patient,age,sick\na,1,no\n,2,yes\n", InvalidCellError, "line 3", id="no patient"
        ),
        pytest.param(
            "patient,age,sick\na,1,no\nb,2,\n", InvalidCellError, "line 3", id="a missing label"
        ),
        pytest.param("PK\3\4\0\0\0", UnreadableFileError, "Excel", id="a spreadsheet"),
        pytest.param("patient,age,sick\na,1\n", UnreadableFileError, "line 2", id="a short row"),
    ],
)
def test_what_cannot_be_used_is_one_coded_line_without_a_cell(
    tmp_path: Path, site: Site, content: str, error: type[PateFedError | PartyError], named: str
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(error, match=named) as caught:
        add(site, path, label=LABEL, patient_id=PATIENT)
    assert caught.value.code.startswith("PF-")
    assert "SECRET" not in str(caught.value)
    assert Site.open(site.folder).settings.data.file == ""


def test_a_file_that_is_not_there_is_said_to_be_absent(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFileError, match="file"):
        look(tmp_path / "none.csv")


def test_one_column_has_one_role(table: Path) -> None:
    with pytest.raises(InvalidParameterError):
        look(table, patient_id=LABEL)


class TestRegistered:
    def test_it_is_read_again(self, site: Site, table: Path) -> None:
        site, summary = add(site, table, label=LABEL, patient_id=PATIENT)
        opened = Site.open(site.folder)
        assert opened.settings.data.digest == summary.sha256
        assert len(read_registered(opened).lines) == 80

    def test_a_changed_table_is_refused(self, site: Site, table: Path) -> None:
        site, _ = add(site, table, label=LABEL, patient_id=PATIENT)
        table.write_text(table.read_text("utf-8") + "p99,50,male,yes\n", encoding="utf-8")
        with pytest.raises(DataChangedError, match=r"own\.csv"):
            read_registered(site)

    def test_the_environment_may_say_where_it_is_but_not_what_it_is(
        self, site: Site, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        added, _ = add(site, table, label=LABEL, patient_id=PATIENT)
        content = read_registered(added)
        moved = table.rename(tmp_path / "moved.csv")
        monkeypatch.setenv("PATE_PARTY_DATA_FILE", str(moved))
        found = read_registered(added)
        assert (found.file_name, found.columns) == ("moved.csv", content.columns)
        moved.write_text(moved.read_text() + "\n")
        with pytest.raises(DataChangedError):
            read_registered(added)

    def test_nothing_is_read_before(self, site: Site) -> None:
        with pytest.raises(DataError, match="pate-party"):
            read_registered(site)

    def test_the_sites_own_floor_holds(self, site: Site, tmp_path: Path) -> None:
        path = with_counts(tmp_path / "t.csv", a=12, b=30)
        text = (site.folder / "party.toml").read_text("utf-8").replace("floor = 10", "floor = 20")
        (site.folder / "party.toml").write_text(text, encoding="utf-8")
        site, summary = add(Site.open(site.folder), path, label=LABEL, patient_id=PATIENT)
        assert dict(summary.classes) == {"a": None, "b": None}
        assert site.settings.data.floor == 20


class TestNamedDataSets:
    def test_each_keeps_its_own_file_and_reading(
        self, site: Site, table: Path, tmp_path: Path
    ) -> None:
        site, _ = add(site, table, label=LABEL, patient_id=PATIENT)
        other = tmp_path / "eyes.csv"
        other.write_text("id;blind;acuity\na;no;0,5\nb;yes;1,5\nc;no;0,7\n", encoding="utf-8")
        reading = Reading(separator=";", decimal=",")
        add(site.using("eyes"), other, label="blind", patient_id="id", reading=reading)
        opened = Site.open(site.folder)
        assert read_registered(opened.using("eyes")).column("acuity") == ("0.5", "1.5", "0.7")
        assert len(read_registered(opened).lines) == 80
        assert [one.data_set for one in opened.data_sets] == ["", "eyes"]
        assert opened.using("eyes").using("") == opened

    def test_its_digest_is_of_the_reading_too(self, site: Site, table: Path) -> None:
        site, _ = add(site, table, label=LABEL, patient_id=PATIENT)
        data = site.settings.data
        other = replace(data, reading=replace(data.reading, missing=("7",)))
        with pytest.raises(DataChangedError):
            read_registered(site.save(replace(site.settings, data=other)))

    @pytest.mark.parametrize("name", ["Eyes", "a b", "../x", "-"])
    def test_a_name_is_of_small_letters(self, site: Site, name: str) -> None:
        with pytest.raises(SiteError):
            site.using(name)

    def test_the_environment_moves_the_unnamed_one_alone(
        self, site: Site, table: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        site, _ = add(site.using("eyes"), table, label=LABEL, patient_id=PATIENT)
        monkeypatch.setenv("PATE_PARTY_DATA_FILE", "/mnt/other.csv")
        assert Site.open(site.folder).using("eyes").data.file == str(table)


def test_a_table_of_one_class_and_three_patients_is_taken_and_said(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("patient,age,sick\na,40,no\nb,41,no\nc,50,no\n", encoding="utf-8")
    summary = look(path)
    assert (summary.patients, summary.classes) == (3, (("no", None),))
    assert "one class" in "".join(summary.notes)


def test_two_thousand_columns_of_sixty_patients_are_said_to_be_too_many(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    head = [PATIENT, LABEL, *(f"gene {number}" for number in range(2000))]
    rows = [
        [f"p{row}", "ny"[row % 2], *(str(row * one % 97) for one in range(2000))]
        for row in range(60)
    ]
    path.write_text("\n".join(",".join(one) for one in [head, *rows]), encoding="utf-8")
    assert any("2000 columns for 60 patients" in one for one in look(path).notes)
