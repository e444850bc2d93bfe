"""A run that is taken up with what is not its own; hospitals whose journals were put back."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.errors import RunDamagedError, SetupError
from protocols.errors import RestoredJournalError
from tests.support.federation import Federation, kinds, ready_federation
from tests.support.killing import MortalFederation
from tests.support.stores import journal_in_memory


class TestTerms:
    """Results and steps of one run, and no other's: nobody may go on from that."""

    @pytest.fixture
    def federation(self, tmp_path: Path) -> MortalFederation:
        federation = MortalFederation(tmp_path, kind="noise at the coordinator", form="additive")
        federation.run.set_up()
        return federation

    def test_other_terms_are_refused(self, federation: MortalFederation) -> None:
        federation.bury()
        federation.terms["sigma2"] = 21.0
        with pytest.raises(RunDamagedError):
            federation.resume()

    def test_results_of_another_run_are_refused(self, federation: MortalFederation) -> None:
        federation.store.save_run_id(bytes(32))
        federation.bury()
        with pytest.raises(RunDamagedError):
            federation.resume()


class TestStatements:
    """Rule R4, the coordinator's half: it keeps what a party signed, and shows it."""

    @pytest.fixture
    def federation(self) -> Federation:
        federation = ready_federation()
        federation.ask(0)
        federation.run.close()
        return federation

    def test_every_party_sees_its_own_before_it_judges_the_run(
        self, federation: Federation
    ) -> None:
        assert set(federation.store.statements.frames()) == set(federation.pins)
        before = len(federation.transport.packets)
        federation.another_run().set_up()
        shown = [kinds(packet) for packet in federation.transport.packets[before:]]
        assert shown.count(["Ready", "RunRecord"]) == len(federation.nodes)

    def test_a_restored_journal_is_stopped_for_good(self, federation: Federation) -> None:
        true, restored = federation.nodes[0]._journal, journal_in_memory()
        federation.nodes[0]._journal = federation.nodes[0]._round.journal = restored
        assert restored.counter < true.counter
        with pytest.raises(SetupError, match="PF-229"):
            federation.another_run().set_up()
        with pytest.raises(RestoredJournalError) as caught:
            restored.begin(run_id=bytes(32), epoch=1, plan_digest=bytes(32))
        assert 0 < caught.value.shown <= true.counter
        for node in federation.nodes[1:]:
            node._journal.require_whole()
