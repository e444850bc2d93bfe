"""A tally's book over its true port: what it answers, refuses, charges and remembers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import func, select

from coordinator.certificates import KeyedCertificate, make_pinned_certificate
from coordinator.database.check_rows import steps_in
from coordinator.errors import (
    CoordinatorError,
    OpenedRowError,
    ServiceError,
    TallyRefusedError,
    TallyUnreachableError,
)
from coordinator.tally.book import TallyBook
from coordinator.tally.book_rows import noted_batch, read_charges, run_standings
from coordinator.tally.calls import MOST_PACKET_BYTES
from coordinator.tally.heads import HeadMemory, newest_head
from coordinator.tally.tally_client import TallyClient
from coordinator.tally.tally_schema import (
    TallyHeadRow,
    TallyOpenedRow,
    TallyRow,
    TallyRunRow,
    TallyStepRow,
)
from coordinator.tally.tally_server import TallyServer
from pate_fed.accounting import EntryState, Outcomes
from pate_fed.errors import PateFedError
from pate_fed.votes import TeacherWeights
from protocols import wire
from protocols.errors import ProtocolError
from protocols.identity import PublicIdentity, SigningIdentity
from protocols.messages import KeyStatement, Plan
from protocols.values import encode_value
from protocols.verified import CheckState, CheckStopped, Exchanged
from protocols.vote_messages import Acceptance, ReportList, SumShare, VoteAnswers
from tests.support.tallied import (
    NOW,
    SIGMA,
    TalliedBatch,
    TalliedRun,
    make_tally,
    served,
)


class Tally:
    """A tally on loopback, its coordinator's keys, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.coordinator, self.key = make_tally(folder)
        self.now = float(NOW)
        self.heads = HeadMemory.volatile()
        self.start()

    def start(self) -> None:
        """Begin its process, or begin it again."""
        self.database = self.folder.database()
        self.book = TallyBook(
            self.database,
            identity=self.folder.identity,
            coordinator=self.coordinator.public,
            clock=lambda: self.now,
        )
        self.server = TallyServer(
            self.book, key=self.folder.key, client=self.key.certificate, host="127.0.0.1", port=0
        )
        self.server.start()
        self.card = replace(self.folder.card, address=f"127.0.0.1:{self.server.port}")
        self.client = TallyClient(self.card, self.key, heads=self.heads)

    def stop(self) -> None:
        self.server.stop()
        self.database.close()

    def run(self, **named: Any) -> TalliedRun:
        return TalliedRun(
            self.coordinator,
            lambda offer: self.client.state(offer),  # noqa: PLW0108 - of the process that runs
            lambda packet: self.client.check(packet),  # noqa: PLW0108
            **named,
        )

    def charges(self, run: TalliedRun) -> Outcomes:
        with self.database.transaction() as connection:
            ledger = read_charges(connection, served(run)).outcomes
        return Outcomes(ledger.asks, ledger.answers)

    def content(self) -> list[Any]:
        """All rows of its database; of its heads the newest: a call may forget older ones."""
        with self.database.transaction() as connection:
            tables = set(TallyRow.metadata.sorted_tables) - {TallyHeadRow.__table__}
            rows = {one.name: connection.execute(select(one)).all() for one in tables}
            return [rows, newest_head(connection)]


@pytest.fixture
def tally(tmp_path: Path) -> Iterator[Tally]:
    made = Tally(tmp_path / "tally")
    yield made
    made.stop()


def refused(call: Callable[[], object]) -> str:
    """The code with which a call is refused."""
    with pytest.raises(TallyRefusedError) as caught:
        call()
    return caught.value.reason


class TestState:
    def test_it_states_a_key_of_its_own_for_the_offer(self, tally: Tally) -> None:
        run = tally.run()
        signed = wire.decode(run.statement)
        told = wire.expect(signed, KeyStatement)
        signed.verify(tally.client.identity)
        assert PublicIdentity(told.identity_key) == tally.folder.identity.public
        assert (told.offer_digest, told.role) == (run.offer_digest, "tally")
        assert (told.expires_at, told.journal_counter) == (NOW + 1000, 0)

    def test_the_same_offer_has_the_same_bytes_for_ever_and_another_one_another_key(
        self, tally: Tally
    ) -> None:
        run = tally.run()
        first = run.statement
        tally.stop()
        tally.now += 5000
        tally.start()
        assert tally.client.state(run.offer) == first
        tally.now -= 5000
        run.set_up()
        keys = {wire.expect(wire.decode(one), KeyStatement) for one in (first, run.statement)}
        assert len({one.sealing_key for one in keys}) == len({one.nonce for one in keys}) == 2

    @pytest.mark.parametrize(
        ("changed", "code"),
        [
            pytest.param({"form": "masked"}, "PF-453", id="another form"),
            pytest.param({"simulated": True}, "PF-453", id="simulated"),
            pytest.param({"expires_at": NOW}, "PF-225", id="expired"),
            pytest.param({"expires_at": NOW + 30 * 86400 + 1}, "PF-453", id="of a month"),
            pytest.param({"suite": "none"}, "PF-235", id="an unknown suite"),
            pytest.param({"coordinator_key": bytes(32)}, "PF-228", id="another's key"),
        ],
    )
    def test_an_offer_that_it_does_not_serve_is_refused(
        self, tally: Tally, changed: dict[str, Any], code: str
    ) -> None:
        before = tally.content()
        assert refused(lambda: tally.run(offer_changed=changed)) == code
        assert tally.content() == before

    def test_another_coordinators_offer_is_refused(self, tally: Tally) -> None:
        tally.coordinator = SigningIdentity.generate()
        assert refused(tally.run) == "PF-222"
        assert refused(lambda: tally.client.state(b"no frame")) == "PF-221"


class TestHonest:
    def test_both_ends_open_the_noisy_sum_and_the_tally_charges_it(self, tally: Tally) -> None:
        run = tally.run()
        batch = TalliedBatch(run, 4, 0, 7)
        batch.open()
        assert batch.machine.state is CheckState.OPENED
        assert batch.machine.opened is not None
        assert abs(batch.machine.opened - batch.exact).max() < 20 * SIGMA
        assert tally.charges(run) == Outcomes(3, 3)
        with tally.database.transaction() as connection:
            [entry] = read_charges(connection, served(run)).outcomes.entries
            places = set(connection.scalars(select(TallyOpenedRow.place)))
        assert (entry.entry_id, entry.state) == (batch.digest.hex(), EntryState.COMMITTED)
        assert places == {0, 4, 7}

    @pytest.mark.parametrize("mechanism", ["threshold", "interactive-threshold"])
    def test_answers_are_counted_as_the_opened_sum_has_them(
        self, tally: Tally, mechanism: str
    ) -> None:
        run = tally.run(mechanism=mechanism)
        batch = TalliedBatch(run, 0, 1, 2)
        batch.open()
        assert batch.machine.opened is not None
        answered = int((batch.machine.opened.max(axis=1) >= 30.0).sum())
        assert tally.charges(run) == Outcomes(3, answered)

    def test_a_report_without_votes_is_left_out_and_its_hospital_is_noted(
        self, tally: Tally
    ) -> None:
        run = tally.run(quotas=(3, 25, 40, 7))
        batch = TalliedBatch(run, 0, 1)
        frames = [batch.report(place) for place in range(4)]
        spoiled = wire.decode(frames[2]).message
        sealed = spoiled.tally_envelope  # type: ignore[attr-defined]
        changed = sealed[:-1] + bytes([sealed[-1] ^ 1])
        bad = replace(spoiled, tally_envelope=changed)  # type: ignore[type-var]
        batch.open(*frames[:2], wire.contain(bad), frames[3])
        TalliedBatch(run, 2).collect()
        waits = TalliedBatch(run, 3)
        waits.until(Acceptance)
        with tally.database.transaction() as connection:
            [standing] = run_standings(connection, coordinator=tally.coordinator.public)
        assert standing.rejected == {run.hospitals[2].fingerprint.hex(): 1}
        assert standing.plans == {batch.digest: True, waits.digest: False}
        assert (standing.name, standing.hospitals) == ("lung", 4)
        assert (standing.charged, standing.caps) == (Outcomes(2, 2), Outcomes(12, 12))

    def test_each_answer_comes_again_with_the_same_bytes_also_after_a_restart_and_in_time(
        self, tally: Tally
    ) -> None:
        run = tally.run()
        batch = TalliedBatch(run, 0, 1)
        told = batch.open()
        before = tally.content()
        for _ in range(2):
            for request, answer in zip(told[::2], told[1::2], strict=True):
                assert batch.ask(request) == answer
            tally.stop()
            tally.now = NOW + 5000.0
            tally.start()
        assert tally.content() == before

    def test_a_run_that_is_set_up_anew_goes_on_with_its_charges_and_its_rows(
        self, tally: Tally
    ) -> None:
        run = tally.run()
        TalliedBatch(run, 0, 1).open()
        run.set_up()
        TalliedBatch(run, 2, 3).open()
        assert tally.charges(run) == Outcomes(4, 4)
        again = TalliedBatch(run, 3, 4)
        assert refused(lambda: again.ask(again.collect())) == "PF-455"


class TestRefusals:
    """A refused call changes nothing."""

    def refused_first(self, tally: Tally, batch: TalliedBatch, packet: bytes | None = None) -> str:
        asked = batch.packet(batch.collect()) if packet is None else packet
        before = tally.content()
        code = refused(lambda: tally.client.check(asked))
        assert tally.content() == before
        return code

    @pytest.mark.parametrize(
        ("changed", "code"),
        [
            pytest.param({"simulated": True}, "PF-453", id="simulated"),
            pytest.param({"form": "masked"}, "PF-453", id="another form"),
            pytest.param({"coordinator": bytes(32)}, "PF-225", id="another coordinator named"),
            pytest.param({"offer_digest": bytes(32)}, "PF-225", id="another offer"),
            pytest.param({"expires_at": NOW + 999}, "PF-225", id="another end"),
            pytest.param({"threshold": 2}, "PF-453", id="a lower threshold"),
            pytest.param({"colluders": 1}, "PF-453", id="fewer colluders"),
            pytest.param({"dropouts": 1}, "PF-453", id="fewer drop-outs"),
            pytest.param({"ring_bits": 32}, "PF-453", id="another ring"),
            pytest.param({"sealing_key": bytes(33)}, "PF-235", id="no key of its suite"),
            pytest.param({"terms": encode_value({})}, "PF-104", id="no terms"),
            pytest.param({"terms": b"\xff"}, "PF-221", id="no CBOR"),
        ],
    )
    def test_a_record_that_it_does_not_serve(
        self, tally: Tally, changed: dict[str, Any], code: str
    ) -> None:
        run = tally.run()
        good = TalliedBatch(run, 0, 1)
        request = good.collect()
        run.record = run.record_of(**changed)
        packet = wire.pack([run.record, run.plan(0, 1), request])
        with suppress(ProtocolError):  # most records no honest coordinator's machine takes
            batch = TalliedBatch(run, 0, 1)
            packet = batch.packet(batch.collect())
        assert self.refused_first(tally, good, packet) == code

    def test_a_record_of_an_offer_that_it_made_no_key_for(self, tally: Tally) -> None:
        run = tally.run()
        other = tally.run()
        run.statement, known = other.statement, run.statement
        run.record = run.record_of()
        batch = TalliedBatch(run, 0, 1)
        assert self.refused_first(tally, batch) == "PF-454"
        run.statement = known
        run.record = run.record_of()
        TalliedBatch(run, 0, 1).open()

    def test_an_offer_leads_to_one_record(self, tally: Tally) -> None:
        run = tally.run()
        first = run.record
        TalliedBatch(run, 0, 1).open()
        run.record = run.record_of()  # hospitals stated other keys
        assert run.record != first
        assert self.refused_first(tally, TalliedBatch(run, 2)) == "PF-454"

    def test_a_record_signed_by_another_coordinator(self, tally: Tally) -> None:
        run = tally.run()
        batch = TalliedBatch(run, 0, 1)
        record = run.record_of(by=SigningIdentity.generate())
        packet = wire.pack([record, run.plan(0, 1, record=record), batch.collect()])
        assert self.refused_first(tally, batch, packet) == "PF-222"

    @pytest.mark.parametrize(
        ("changed", "code"),
        [
            pytest.param({"role": "tally"}, "PF-225", id="another role"),
            pytest.param({"offer_digest": bytes(32)}, "PF-225", id="another offer"),
            pytest.param({"expires_at": NOW + 1}, "PF-225", id="another end"),
            pytest.param({"identity_key": ...}, "PF-222", id="forged"),
        ],
    )
    def test_a_hospitals_keys_that_it_did_not_state(
        self, tally: Tally, changed: dict[str, Any], code: str
    ) -> None:
        run = tally.run()
        if ... in changed.values():
            changed = {"identity_key": SigningIdentity.generate().public.key}
        frames = [run.statement_of(one) for one in run.hospitals]
        frames[1] = run.statement_of(run.hospitals[1], **changed)
        run.record = run.record_of(statements=tuple(frames))
        assert self.refused_first(tally, TalliedBatch(run, 0, 1)) == code

    def test_another_end_than_the_offers_though_all_hospitals_agree(self, tally: Tally) -> None:
        run = tally.run()
        later = NOW + 1001
        frames = tuple(run.statement_of(one, expires_at=later) for one in run.hospitals)
        run.record = run.record_of(statements=frames, expires_at=later)
        assert self.refused_first(tally, TalliedBatch(run, 0, 1)) == "PF-225"

    @pytest.mark.parametrize(
        ("places", "code"),
        [
            pytest.param((1, 0, 2), "PF-225", id="not ascending"),
            pytest.param((0, 1, 1), "PF-225", id="one twice"),
            pytest.param((0, 1), "PF-453", id="two hospitals"),
        ],
    )
    def test_hospitals_that_make_no_run(
        self, tally: Tally, places: tuple[int, ...], code: str
    ) -> None:
        run = tally.run()
        frames = tuple(run.statement_of(run.hospitals[place]) for place in places)
        run.record = run.record_of(statements=frames)
        assert self.refused_first(tally, TalliedBatch(run, 0, 1)) == code

    @pytest.mark.parametrize(
        ("present", "absent", "code"),
        [
            pytest.param((0, 1, 2), (2, 3), "PF-225", id="one that is there"),
            pytest.param((0, 1), (2, 3), "PF-453", id="all but two"),
            pytest.param((0, 1, 2), (), "PF-453", id="one fewer than quotas"),
            pytest.param((0, 1, 2), (2, 2), "PF-225", id="one that is there, twice"),
        ],
    )
    def test_absent_hospitals_that_make_no_run(
        self, tally: Tally, present: tuple[int, ...], absent: tuple[int, ...], code: str
    ) -> None:
        run = tally.run(quotas=(3, 25, 40, 7))
        good = TalliedBatch(run, 4)
        request = good.collect()
        frames = tuple(run.statement_of(run.hospitals[place]) for place in present)
        seats = tuple(run.hospitals[place].fingerprint for place in absent)
        record = run.record_of(statements=frames, absent=seats)
        packet = wire.pack([record, run.plan(0, 1, record=record), request])
        assert self.refused_first(tally, good, packet) == code

    def test_half_of_a_runs_hospitals_make_none(self, tally: Tally) -> None:
        """Two setups of halves would be two sets with nobody in both."""
        run = tally.run(quotas=(3, 25, 40, 7, 3, 3))
        statements = tuple(map(run.statement_of, run.hospitals[:3]))
        away = tuple(one.fingerprint for one in run.hospitals[3:])
        run.record = run.record_of(statements=statements, absent=away)
        assert self.refused_first(tally, TalliedBatch(run, 0, 1)) == "PF-453"

    def test_reports_of_another_set_open_in_no_sum_of_this_one(self, tally: Tally) -> None:
        run = tally.run(quotas=(3, 25, 40, 7))
        others = TalliedBatch(run, 0, 1)
        reports = [others.report(place) for place in (0, 1, 2)]
        frames = tuple(map(run.statement_of, run.hospitals[:3]))
        run.record = run.record_of(statements=frames, absent=(run.hospitals[3].fingerprint,))
        batch = TalliedBatch(run, 0, 1)
        with pytest.raises(ProtocolError):
            batch.collect(*reports)
        asked = others.packet(others.collect(*reports))
        packet = wire.pack([run.record, batch.plan, *wire.unpack(asked, max_bytes=2**30)[2:]])
        assert self.refused_first(tally, batch, packet) == "PF-225"

    def test_a_setup_without_one_is_of_the_same_run_and_its_rows_open_once(
        self, tally: Tally
    ) -> None:
        """A coordinator that sets a run up without a hospital gets no row of it twice."""
        run = tally.run(quotas=(3, 25, 40, 7))
        TalliedBatch(run, 0, 1).open()
        run.set_up()
        away = run.hospitals[2].fingerprint
        statements = tuple(
            run.statement_of(one) for one in run.hospitals if one.fingerprint != away
        )
        run.record = run.record_of(statements=statements, absent=(away,))
        again = TalliedBatch(run, 1, 2)
        asked = again.packet(again.collect(*(again.report(place) for place in (0, 1, 3))))
        assert self.refused_first(tally, again, asked) == "PF-455"
        batch = TalliedBatch(run, 2, 3)
        batch.open(*(batch.report(place) for place in (0, 1, 3)))
        assert batch.machine.opened is not None
        # One that is absent has no keys there: its report is of nobody.
        assert self.refused_first(tally, TalliedBatch(run, 5)) == "PF-228"

    @pytest.mark.parametrize(
        ("changed", "code"),
        [
            pytest.param({"run_id": bytes(32)}, "PF-225", id="another run"),
            pytest.param({"words": 9}, "PF-453", id="other words"),
            pytest.param({"expires_at": NOW}, "PF-225", id="expired"),
            pytest.param({"expires_at": NOW + 1001}, "PF-453", id="after its run"),
            pytest.param({"terms": b"\xa0"}, "PF-104", id="no terms"),
        ],
    )
    def test_a_plan_that_it_does_not_serve(
        self, tally: Tally, changed: dict[str, Any], code: str
    ) -> None:
        run = tally.run()
        batch = TalliedBatch(run, 0, 1, plan=run.plan(0, 1, **changed))
        assert self.refused_first(tally, batch) == code

    def test_a_plan_of_other_terms_or_of_another_signer(self, tally: Tally) -> None:
        run, other = tally.run(), tally.run(caps=(5, 5, 5))
        terms = wire.expect(wire.decode(other.plan(0, 1)), Plan).terms
        batch = TalliedBatch(run, 0, 1, plan=run.plan(0, 1, terms=terms))
        assert self.refused_first(tally, batch) == "PF-453"
        batch = TalliedBatch(run, 0, 1, plan=run.plan(0, 1, by=SigningIdentity.generate()))
        assert self.refused_first(tally, batch) == "PF-222"

    def test_another_plan_of_the_batch_whose_reports_are_of_the_first(self, tally: Tally) -> None:
        run = tally.run()
        batch, other = TalliedBatch(run, 0, 1), TalliedBatch(run, 0, 1)
        packet = wire.pack([run.record, other.plan, batch.collect()])
        assert self.refused_first(tally, batch, packet) == "PF-225"

    @pytest.mark.parametrize(
        "terms",
        [
            pytest.param({"rule": {"noise_place": "coordinator"}}, id="the coordinator's noise"),
            pytest.param(
                {"rule": {"noise_place": "parties", "colluders": 1, "dropouts": 0}},
                id="the hospitals' noise",
            ),
            pytest.param({}, id="a quota too many"),
        ],
    )
    def test_terms_that_do_not_fit_the_form(self, tally: Tally, terms: dict[str, Any]) -> None:
        run = tally.run()
        good = TalliedBatch(run, 0, 1)
        request = good.collect()
        changed = (
            {"rule": replace(run.terms.rule, **terms["rule"])}
            if "rule" in terms
            else {"weights": run.terms.weights * 2, "budgets": run.terms.budgets * 2}
        )
        run.terms = replace(run.terms, **changed)
        record = run.record_of()
        packet = wire.pack([record, run.plan(0, 1, record=record), request])
        assert self.refused_first(tally, good, packet) == "PF-453"

    def test_a_row_that_was_opened(self, tally: Tally) -> None:
        run = tally.run()
        TalliedBatch(run, 0, 1).open()
        assert self.refused_first(tally, TalliedBatch(run, 2, 1)) == "PF-455"

    def test_but_a_row_of_another_run_is_another_row(self, tally: Tally) -> None:
        for budget in (1e6, 1e5):
            run = tally.run(terms_changed={"budgets": (budget,) * 3})
            TalliedBatch(run, 0, 1).open()
            assert tally.charges(run) == Outcomes(2, 2)

    def test_a_row_that_another_plan_opened_meanwhile(self, tally: Tally) -> None:
        run = tally.run()
        one, other = TalliedBatch(run, 0, 1), TalliedBatch(run, 1, 2)
        request = one.until(SumShare)
        other.open()
        assert self.refused_first(tally, one, one.packet(request)) == "PF-455"
        assert tally.charges(run) == Outcomes(2, 2)

    def test_a_batch_beyond_the_caps_before_its_share_leaves(self, tally: Tally) -> None:
        run = tally.run(caps=(5, 5, 5))
        waits = TalliedBatch(run, 3, 4)
        request = waits.until(SumShare)
        TalliedBatch(run, 0, 1).open()
        TalliedBatch(run, 2).open()
        waits.go_on(request)
        assert tally.charges(run) == Outcomes(5, 5)
        assert self.refused_first(tally, TalliedBatch(run, 5)) == "PF-133"

    def test_one_that_no_longer_fits_when_it_is_to_open(self, tally: Tally) -> None:
        run = tally.run(caps=(5, 5, 5))
        waits = TalliedBatch(run, 3, 4)
        request = waits.until(SumShare)
        TalliedBatch(run, 0, 1, 2, 5).open()
        assert self.refused_first(tally, waits, waits.packet(request)) == "PF-133"
        assert tally.charges(run) == Outcomes(4, 4)

    def test_a_step_of_a_plan_that_expired_meanwhile(self, tally: Tally) -> None:
        run = tally.run()
        batch = TalliedBatch(run, 0, 1)
        request = batch.until(Acceptance)
        tally.now = NOW + 500.0
        assert self.refused_first(tally, batch, batch.packet(request)) == "PF-225"

    def test_a_hospital_of_more_votes_than_the_form_takes(self, tally: Tally) -> None:
        run = tally.run()
        good = TalliedBatch(run, 0, 1)
        request = good.collect()
        weights = (TeacherWeights.equal(1001), *run.terms.weights[1:])
        run.terms = replace(run.terms, weights=weights)
        record = run.record_of()
        packet = wire.pack([record, run.plan(0, 1, record=record), request])
        assert self.refused_first(tally, good, packet) == "PF-453"

    @pytest.mark.parametrize("kind", [VoteAnswers, Acceptance, SumShare])
    def test_a_request_out_of_its_order(self, tally: Tally, kind: type[Any]) -> None:
        run = tally.run()
        batch, other = TalliedBatch(run, 0, 1), TalliedBatch(run, 2, 3)
        request = batch.until(kind)
        said = replace(wire.decode(request).message, plan_digest=other.digest)  # type: ignore[type-var]
        assert self.refused_first(tally, other, other.packet(other.signed(said))) == "PF-225"

    def test_a_request_of_another_signer(self, tally: Tally) -> None:
        run = tally.run()
        batch = TalliedBatch(run, 0, 1)
        forged = wire.sign(wire.decode(batch.collect()).message, SigningIdentity.generate()).frame
        assert self.refused_first(tally, batch, batch.packet(forged)) == "PF-222"

    @pytest.mark.parametrize("frames", [0, 2, 4])
    def test_a_packet_of_another_number_of_frames(self, tally: Tally, frames: int) -> None:
        run = tally.run()
        batch = TalliedBatch(run, 0, 1)
        packet = wire.pack([run.record, batch.plan, batch.collect(), b""][:frames])
        assert self.refused_first(tally, batch, packet) == "PF-221"

    def test_too_few_reports(self, tally: Tally) -> None:
        run = tally.run()
        batch = TalliedBatch(run, 0, 1)
        signed = wire.decode(batch.collect())
        told = wire.expect(signed, ReportList)
        few = replace(told, headers=told.headers[:2], envelopes=told.envelopes[:2])
        assert self.refused_first(tally, batch, batch.packet(batch.signed(few))) == "PF-240"

    @pytest.mark.parametrize("seed", range(8))
    def test_whatever_bytes_come_the_refusal_has_a_code(self, tally: Tally, seed: int) -> None:
        run = tally.run()
        batch = TalliedBatch(run, 0, 1)
        packet = batch.packet(batch.collect())
        before = tally.content()
        rng = np.random.default_rng(seed)
        for call, good in ((tally.book.check, packet), (tally.book.state, run.offer)):
            for _ in range(40):
                bad = bytearray(good)
                place, size = (int(rng.integers(0, len(good))) for _ in range(2))
                kind = rng.integers(0, 4)
                if kind == 0:
                    bad[place] ^= 1 << int(rng.integers(0, 8))
                elif kind == 1:
                    del bad[place:]
                elif kind == 2:
                    del bad[place : place + size % 9 + 1]
                else:
                    bad[place:place] = rng.bytes(size % 9 + 1)
                with pytest.raises((ProtocolError, PateFedError, CoordinatorError)):
                    call(bytes(bad))
        assert tally.content() == before


class TestStops:
    def test_other_bytes_in_the_place_of_a_message_stop_the_batch(self, tally: Tally) -> None:
        run = tally.run()
        batch = TalliedBatch(run, 0, 1)
        request = batch.until(Acceptance)
        told = next(
            step.received
            for step in self.steps(tally, batch)
            if isinstance(step, Exchanged)
            and isinstance(wire.decode(step.received).message, VoteAnswers)
        )
        other = replace(wire.decode(told).message, answers=(b"", b"", b""))  # type: ignore[type-var]
        assert refused(lambda: batch.ask(batch.signed(other))) == "PF-223"
        assert refused(lambda: batch.ask(request)) == "PF-225"
        assert isinstance(self.steps(tally, batch)[-1], CheckStopped)
        assert tally.charges(run) == Outcomes(0, 0)

    def test_another_set_of_accepted_reports_stops_the_batch(self, tally: Tally) -> None:
        run = tally.run()
        batch = TalliedBatch(run, 0, 1)
        said = wire.expect(wire.decode(batch.until(Acceptance)), Acceptance)
        other = batch.signed(replace(said, accepted=bytes(32)))
        assert refused(lambda: batch.ask(other)).startswith("PF-2")
        assert isinstance(self.steps(tally, batch)[-1], CheckStopped)

    @staticmethod
    def steps(tally: Tally, batch: TalliedBatch) -> tuple[Any, ...]:
        with tally.database.transaction() as connection:
            return steps_in(connection, TallyStepRow, batch.digest)


class TestManyCalls:
    def test_one_plan_has_one_coin_however_many_ask_at_once(self, tally: Tally) -> None:
        run = tally.run()
        batch = TalliedBatch(run, 0, 1)
        request = batch.collect()
        while request:
            with ThreadPoolExecutor(4) as threads:
                answers = set(threads.map(tally.book.check, [batch.packet(request)] * 8))
            assert len(answers) == 1
            request = batch.machine.receive(answers.pop())
        assert tally.charges(run) == Outcomes(2, 2)

    def test_of_plans_with_a_common_row_one_opens(self, tally: Tally) -> None:
        run = tally.run()
        batches = [TalliedBatch(run, 0, place) for place in range(1, 5)]
        requests = [batch.until(SumShare) for batch in batches]

        def code_of(place: int) -> str:
            try:
                tally.book.check(batches[place].packet(requests[place]))
            except OpenedRowError as error:
                return error.code
            return ""

        with ThreadPoolExecutor(4) as threads:
            assert sorted(threads.map(code_of, range(4))) == ["", *["PF-455"] * 3]
        assert tally.charges(run) == Outcomes(2, 2)

    def test_an_offer_has_one_key_however_many_ask_at_once(self, tally: Tally) -> None:
        run = tally.run()
        run.set_up()
        with ThreadPoolExecutor(4) as threads:
            assert set(threads.map(tally.book.state, [run.offer] * 8)) == {run.statement}


class TestErasing:
    def test_after_the_audit_window_keys_and_steps_are_gone_and_charges_stay(
        self, tally: Tally
    ) -> None:
        run = tally.run()
        batch = TalliedBatch(run, 0, 1)
        told = batch.open()
        key = self.key(tally)
        assert key is not None
        assert self.holds(tally, key)
        tally.now = NOW + 1000 + 10 * 86400.0
        assert tally.book.erase_ended(days=10) == 0
        tally.now += 1
        assert tally.book.erase_ended(days=10) == 1
        assert tally.book.erase_ended(days=10) == 0
        assert self.key(tally) is None
        assert not self.holds(tally, key)
        with tally.database.transaction() as connection:
            assert connection.scalar(select(func.count()).select_from(TallyStepRow)) == 0
            noted = noted_batch(connection, batch.digest)
        assert noted is not None
        assert (noted.key, noted.steps) == (None, ())
        assert tally.charges(run) == Outcomes(2, 2)
        # It never answers about that run again.
        assert refused(lambda: batch.ask(told[0])) == "PF-454"
        assert tally.client.state(run.offer) == run.statement

    @staticmethod
    def key(tally: Tally) -> bytes | None:
        with tally.database.transaction() as connection:
            return connection.scalar(select(TallyRunRow.key))

    @staticmethod
    def holds(tally: Tally, secret: bytes) -> bool:
        files = tally.folder.folder.glob("tally.db*")
        return any(secret in path.read_bytes() for path in files)


class TestPort:
    def test_a_client_with_another_certificate_is_not_let_in(self, tally: Tally) -> None:
        other = make_pinned_certificate("coordinator", now=datetime.now(UTC))
        client = TallyClient(tally.card, other, timeout_s=10)
        with pytest.raises(TallyUnreachableError):
            client.state(tally.run().offer)

    def test_a_server_with_another_certificate_is_not_asked(
        self, tally: Tally, tmp_path: Path
    ) -> None:
        other, _, _ = make_tally(tmp_path / "other")
        card = replace(tally.card, certificate=other.card.certificate)
        with pytest.raises(TallyUnreachableError):
            TallyClient(card, tally.key, timeout_s=10).state(b"")

    def test_a_key_that_is_not_its_certificates_is_none(self, tally: Tally) -> None:
        made = make_pinned_certificate("x", now=datetime.now(UTC))
        stolen = KeyedCertificate(tally.key.certificate, made.private_key)
        with pytest.raises(TallyUnreachableError):
            TallyClient(tally.card, stolen, timeout_s=10).state(b"")

    def test_a_tally_that_is_away_is_worth_another_try(self, tally: Tally) -> None:
        run = tally.run()
        tally.server.stop()
        with pytest.raises(TallyUnreachableError):
            tally.client.state(run.offer)

    def test_a_tally_that_cannot_store_is_worth_another_try(self, tally: Tally) -> None:
        run = tally.run()
        tally.database.close()
        path = tally.folder.path("tally.db")
        path.rename(path.with_name("away.db"))
        (tally.folder.folder / "tally.db").mkdir()
        with pytest.raises(TallyUnreachableError) as caught:
            tally.client.check(TalliedBatch(run, 0).packet(TalliedBatch(run, 0).collect()))
        assert caught.value.got == "PF-440"

    def test_a_fault_of_the_tally_shows_nothing_but_its_code(
        self, tally: Tally, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> None:
            raise ValueError("a secret")

        run = tally.run()
        batch = TalliedBatch(run, 0)
        request = batch.collect()
        monkeypatch.setattr(TallyBook, "_read", fail)
        with pytest.raises(TallyUnreachableError) as caught:  # a mended tally may go on
            batch.ask(request)
        assert caught.value.got == "PF-490"

    def test_a_packet_that_is_too_large_is_refused_before_it_is_read(self, tally: Tally) -> None:
        assert refused(lambda: tally.client.check(bytes(MOST_PACKET_BYTES + 1))) == "PF-221"

    def test_a_port_that_is_taken_is_said(self, tally: Tally) -> None:
        with pytest.raises(ServiceError):
            TallyServer(
                tally.book,
                key=tally.folder.key,
                client=tally.key.certificate,
                host="127.0.0.1",
                port=tally.server.port,
            )
