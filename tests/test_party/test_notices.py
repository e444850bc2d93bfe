"""What a hospital's people are told by message: a run waits, and nothing of their patients."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from party.people_news import tell_people
from party.site.people_decisions import ApprovalState
from pate_fed.nodes.notices import Notify
from tests.support.hospital_services import Hospitals, make_hospitals, records_of
from tests.support.page_hospital import asked
from tests.support.receivers import Mails, mail_server

PURPOSE = "to predict strokes. " * 6 + "Bcc: m@x"


def told_in(hospitals: Hospitals, monkeypatch: pytest.MonkeyPatch, *, mails: int) -> list[str]:
    """What the first hospital's people are told, until so many mails are there."""
    monkeypatch.setattr("pate_fed.nodes.notices._LOOK_S", 0.01)
    stopped = threading.Event()
    with mail_server(Mails()) as server:
        notify = Notify(
            f"smtp://127.0.0.1:{server.port}", "a@b", ("c@d",), page="https://page.example/"
        )
        site = hospitals.sites[0]
        site = site.save(replace(site.settings, notify=notify))
        teller = threading.Thread(target=tell_people, args=(site, stopped))
        teller.start()
        while len(server.mails) < mails:
            server.came.clear()
            assert len(server.mails) >= mails or server.came.wait(60)
        stopped.set()
        teller.join()
        return [f"{mail['Subject']}\n{mail.get_content()}" for mail in server.mails]


def test_a_run_that_waits_is_told_with_purpose_and_price_and_no_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hospitals = make_hospitals(tmp_path, approval="each run")
    members = tuple(sorted(hospitals.members, key=lambda one: one.identity.fingerprint))
    digest = asked(hospitals, name="one", terms=replace(hospitals.terms(members), purpose=PURPOSE))
    [text] = told_in(hospitals, monkeypatch, mails=1)
    site = hospitals.sites[0]
    assert text.startswith(f"{site.settings.party}: run one waits")
    assert PURPOSE in text
    assert re.search(r"epsilon \d+\.\d+ .*patient", text)
    assert "https://page.example/" in text
    assert digest[:16] in text
    records = Path(site.data.file).read_text("utf-8").splitlines()
    cells = {cell for row in records[1:] for cell in row.split(",") if len(cell) > 4}
    assert cells
    assert not [cell for cell in cells if cell in text]
    private = {str(site.data.rows), str(site.data.patients), str(site.settings.teachers)}
    assert not private & set(text.replace(",", " ").split())


def test_a_decided_run_is_told_to_nobody_and_a_pool_where_pools_are_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hospitals = make_hospitals(tmp_path)  # its people decide on pools
    digest = asked(hospitals, name="one")
    site = hospitals.sites[0]
    [text] = told_in(hospitals, monkeypatch, mails=1)
    assert "pool" in text
    assert digest[:16] not in text
    with records_of(site) as records:
        for one in records.approvals(ApprovalState.PENDING):
            records.reject(one.subject, one.digest, coordinator=one.coordinator, by="M. Curie")
    (site.folder / "notices.json").unlink()
    asked(hospitals, name="two")
    assert told_in(hospitals, monkeypatch, mails=0) == []
