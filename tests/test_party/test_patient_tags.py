"""Tags of a hospital's patients: keyed, complete, and refused where nobody knows whose they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from party.errors import TeachersError
from party.site.patient_tags import patient_tags
from party.site.site import Site
from party.site.training import SHARES_FILE, json_bytes, with_manifest, write_folder
from pate_fed.audit.disjointness import require_disjoint
from pate_fed.errors import DisjointnessError, InvalidParameterError
from tests.support.hospital_site import make_site
from tests.test_party.test_cli import PateParty, error_code, pate_party

__all__ = ["pate_party"]  # a fixture

KEY = bytes(range(32))
TASK = "ab" * 32


def keep(site: Site, shares: list[list[str]], *, listed: bool = True) -> None:
    files = {"teacher-0.skops": b"a teacher"}
    if listed:
        files[SHARES_FILE] = json_bytes(shares)
    write_folder(site.path("teachers", TASK), with_manifest(files, {}))


def test_two_hospitals_with_one_patient_are_named(tmp_path: Path) -> None:
    documents = {}
    for name, shares in (("North", [["P-1"], ["P-2"]]), ("South", [["P-2"], ["P-3"]])):
        site = make_site(tmp_path / name)
        keep(site, shares)
        documents[name] = json.loads(json.dumps(patient_tags(site, name=name, key=KEY)))
        assert "P-2" not in json.dumps(documents[name])
    with pytest.raises(DisjointnessError, match=r"2 of North .* 1 of South"):
        require_disjoint(documents)


def test_without_teachers_or_their_patients_there_are_no_tags(tmp_path: Path) -> None:
    site = make_site(tmp_path / "site")
    with pytest.raises(TeachersError, match="train"):
        patient_tags(site, name="North", key=KEY)
    keep(site, [], listed=False)
    with pytest.raises(TeachersError, match="patient"):
        patient_tags(site, name="North", key=KEY)


def test_a_changed_list_of_patients_is_refused(tmp_path: Path) -> None:
    site = make_site(tmp_path / "site")
    keep(site, [["P-1"], ["P-2"]])
    site.path("teachers", TASK, SHARES_FILE).write_bytes(json_bytes([["P-1"], []]))
    with pytest.raises(TeachersError, match=SHARES_FILE):
        patient_tags(site, name="North", key=KEY)


def test_a_short_key_is_refused(tmp_path: Path) -> None:
    site = make_site(tmp_path / "site")
    keep(site, [["P-1"]])
    with pytest.raises(InvalidParameterError):
        patient_tags(site, name="North", key=KEY[:8])


def test_the_command_writes_a_new_file(pate_party: PateParty, tmp_path: Path) -> None:
    site = make_site(tmp_path / "site")
    keep(site, [["P-1"], ["P-2"]])
    key, out = tmp_path / "key", tmp_path / "tags.json"
    key.write_text(KEY.hex() + "\n", "ascii")
    asked = ("data", "tags", "--site", site.folder, "--name", "North", "--out", out)
    ended = pate_party(*asked, "--key-file", key, "--format", "json")
    assert ended.code == 0, ended.err
    assert ended.json == {"file": str(out), "tasks": 1, "teachers": 2}
    assert require_disjoint({"North": json.loads(out.read_text("utf-8"))})["patients"] == 2
    assert error_code(pate_party(*asked, "--key-file", key)) == "PF-101"
    out.unlink()
    key.write_text("a secret in words", "ascii")
    assert error_code(pate_party(*asked, "--key-file", key)) == "PF-101"
