"""The audit of one aggregator: an honest one passes, each lie is found, no sum is seen."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from protocols import wire
from protocols.errors import (
    BadSignatureError,
    MalformedMessageError,
    ProtocolError,
    UnexpectedMessageError,
    WrongShareError,
)
from protocols.verified import SideFindings, SideMaterial, SideSecrets, VoteSide, audit_side
from protocols.verified.prime_field import PrimeField
from protocols.verified.vote_side import NoiseLaw, report_taken
from protocols.vote_messages import Acceptance, SumShare, VoteAnswers
from tests.support.checking import COLUMNS, QUERIES, Check, Rows, gaussian

FIELD = PrimeField()
SIDES = pytest.mark.parametrize("place", range(2), ids=["coordinator", "tally"])
FIRST = ("ReportList", "ListReceipt")


class Audited:
    """An honest batch of four with a liar, and what its auditors get."""

    def __init__(self) -> None:
        self.check = Check(3, 25, 40, 3)
        honest = [self.check.report(place) for place in (0, 1, 3)]
        self.reports = (*honest, self.check.lying_report(2))
        self.told = self.check.run(*self.reports)

    def side(self, place: int) -> VoteSide:
        return self.check.machine(place)._side

    def audit(self, place: int, told: list[bytes] | None = None, **changed: Any) -> SideFindings:
        draw_noise: NoiseLaw = changed.pop("draw_noise", gaussian)
        coordinator, tally = (identity.public for identity in self.check.identities)
        return audit_side(
            self.check.batch,
            replace(self.material(place), **changed),
            self.told if told is None else told,
            is_tally=bool(place),
            ends=(coordinator, tally),
            hospitals=self.check.pinned,
            least_parties=3,
            draw_noise=draw_noise,
        )

    def material(self, place: int) -> SideMaterial:
        """What an end hands over."""
        return SideMaterial.of(
            self.check.batch,
            self.side(place).secrets,
            self.check.machine(place)._history.listed,
            key=self.check.keys[place],
            is_tally=bool(place),
        )

    def number(self, place: int, kind: type[Any]) -> int:
        """Where an end's message of a kind stands."""
        me = self.check.identities[place].fingerprint
        return next(
            number
            for number, frame in enumerate(self.told)
            if isinstance(message := wire.decode(frame).message, kind) and message.sender == me
        )

    def lied(self, place: int, kind: type[Any], **changed: Any) -> list[bytes]:
        """What both told, but for one message of a deviating end."""
        number, told = self.number(place, kind), list(self.told)
        message = replace(wire.decode(told[number]).message, **changed)  # type: ignore[type-var]
        told[number] = self.check.signed(place, message)
        return told


@pytest.fixture(scope="module")
def audited() -> Audited:
    return Audited()


@SIDES
class TestHonest:
    def test_an_honest_end_passes(self, audited: Audited, place: int) -> None:
        assert audited.audit(place) == SideFindings(())
        assert audited.audit(place, audited.told[::-1]) == SideFindings(())

    def test_so_it_does_as_far_as_a_batch_came(self, audited: Audited, place: int) -> None:
        for length in range(1, len(audited.told)):
            assert audited.audit(place, audited.told[:length]) == SideFindings(())

    def test_an_auditor_of_one_side_sees_no_sum(self, audited: Audited, place: int) -> None:
        """It can take this end's noise off: the other end's is still there, in full."""
        check = audited.check
        draws: list[Rows] = []

        def kept(shape: tuple[int, int], random_bytes: Callable[[int], bytes]) -> Rows:
            draws.append(gaussian(shape, random_bytes))
            return draws[-1]

        for one in (place, 1 - place):
            audited.audit(one, draw_noise=kept)
        opened = check.tally.opened
        assert opened is not None
        assert (opened - draws[0] == check.sum_of(0, 1, 3) + draws[1]).all()
        assert np.count_nonzero(draws[1]) > QUERIES * COLUMNS / 2


@SIDES
class TestLies:
    def test_a_dishonest_sum_is_found(self, audited: Audited, place: int) -> None:
        body = wire.decode(audited.told[audited.number(place, SumShare)]).message.body  # type: ignore[attr-defined]
        share = FIELD.from_bytes(body, QUERIES * COLUMNS, MalformedMessageError)
        share[7] = (int(share[7]) + 1) % FIELD.prime
        told = audited.lied(place, SumShare, body=FIELD.to_bytes(share))
        assert audited.audit(place, told).wrong == ("SumShare",)
        assert audited.audit(1 - place, told) == SideFindings(())

    @pytest.mark.parametrize(
        "draw",
        [
            pytest.param(lambda shape, _: np.zeros(shape, dtype=np.int64), id="none"),
            pytest.param(lambda shape, _: gaussian(shape, os.urandom), id="of no seed"),
            pytest.param(lambda shape, stream: gaussian(shape, stream) // 2, id="half of it"),
        ],
    )
    def test_wrong_noise_is_found(self, audited: Audited, place: int, draw: NoiseLaw) -> None:
        side = replace(audited.side(place), draw_noise=draw)
        machine = audited.check.machine(place)
        assert machine.decision is not None
        wrong = side.sum_share(machine._history.listed, machine.decision, machine._coin)
        told = audited.lied(place, SumShare, body=wrong.body)
        assert audited.audit(place, told).wrong == ("SumShare",)

    def test_a_seed_of_another_noise_is_not_the_committed_one(
        self, audited: Audited, place: int
    ) -> None:
        """An end that draws again until it likes its noise has to show that seed."""
        secrets = SideSecrets(audited.side(place).secrets.nonce, os.urandom(32))
        side = replace(audited.side(place), secrets=secrets)
        machine = audited.check.machine(place)
        assert machine.decision is not None
        liked = side.sum_share(machine._history.listed, machine.decision, machine._coin)
        told = audited.lied(place, SumShare, body=liked.body)
        assert audited.audit(place, told).wrong == ("SumShare",)
        assert audited.audit(place, told, secrets=secrets).wrong == (FIRST[place],)

    def test_who_excludes_a_hospital_by_a_wrong_answer_is_found(
        self, audited: Audited, place: int
    ) -> None:
        number = audited.number(place, VoteAnswers)
        answers = list(wire.decode(audited.told[number]).message.answers)  # type: ignore[attr-defined]
        victim = audited.check.hospitals[1].fingerprint
        for wrong in (b"", bytes([answers[1][0] ^ 1]) + answers[1][1:]):
            told = audited.lied(
                place, VoteAnswers, answers=(answers[0], wrong, *answers[2:])
            )[: max(number, 3) + 1]  # fmt: skip
            assert audited.audit(place, told) == SideFindings(("VoteAnswers",), (victim,))

    def test_who_shows_no_part_of_a_report_that_it_left_out_is_no_liar_and_is_named(
        self, audited: Audited, place: int
    ) -> None:
        """Its hospital may have sealed none: nobody but the two can tell."""
        number = audited.number(place, VoteAnswers)
        answers = list(wire.decode(audited.told[number]).message.answers)  # type: ignore[attr-defined]
        victim = audited.check.hospitals[1].fingerprint
        parts = dict(audited.material(place).parts)
        del parts[victim]
        told = audited.lied(place, VoteAnswers, answers=(answers[0], b"", *answers[2:]))
        told = told[: max(number, 3) + 1]
        assert audited.audit(place, told, parts=parts) == SideFindings((), (), (victim,))
        # An answer about a part that it does not show is wrong.
        told = audited.told[: max(number, 3) + 1]
        found = SideFindings(("VoteAnswers",), (victim,), (victim,))
        assert audited.audit(place, told, parts=parts) == found

    def test_another_decision_is_found(self, audited: Audited, place: int) -> None:
        told = audited.lied(place, Acceptance, accepted=bytes(32))
        assert audited.audit(place, told).wrong == ("Acceptance",)

    def test_a_second_story_is_found(self, audited: Audited, place: int) -> None:
        for kind, changed in (
            (VoteAnswers, {"nonce": bytes(32)}), (SumShare, {"body": bytes(4 * QUERIES * COLUMNS)}),
        ):  # fmt: skip
            other = audited.lied(place, kind, **changed)[audited.number(place, kind)]
            assert audited.audit(place, [*audited.told, other]).wrong == (kind.__name__,)

    def test_a_sum_of_fewer_than_the_plan_wants_is_found(
        self, audited: Audited, place: int
    ) -> None:
        coordinator, tally = (identity.public for identity in audited.check.identities)
        found = audit_side(
            audited.check.batch,
            audited.material(place),
            audited.told,
            is_tally=bool(place),
            ends=(coordinator, tally),
            hospitals=audited.check.pinned,
            least_parties=4,
            draw_noise=gaussian,
        )
        assert found.wrong == ("SumShare",)


class TestCoordinator:
    def test_a_report_that_it_left_out_is_found(self, audited: Audited) -> None:
        """Whom it excluded shows the auditor its report."""
        check = audited.check
        with_one_less = Check.__new__(Check)
        with_one_less.__dict__.update(check.__dict__)
        with_one_less.journals = type(check.journals[0])(), type(check.journals[0])()
        with_one_less.start(0)
        with_one_less.start(1)
        told = with_one_less.run(*audited.reports[:3])
        secrets = with_one_less.coordinator._side.secrets
        given: dict[str, Any] = {
            "is_tally": False,
            "ends": tuple(identity.public for identity in check.identities),
            "hospitals": check.pinned,
            "least_parties": 3,
            "draw_noise": gaussian,
        }
        for reports, wrong in ((3, ()), (4, ("ReportList",)), (2, ("ReportList",))):
            came = [report_taken(frame) for frame in audited.reports[:reports]]
            shown = SideMaterial.of(check.batch, secrets, came, key=check.keys[0], is_tally=False)
            assert audit_side(check.batch, shown, told, **given).wrong == wrong

    def test_a_part_that_it_handed_on_changed_is_found(self, audited: Audited) -> None:
        told = list(audited.told)
        listed: Any = wire.decode(told[0]).message
        envelopes = (listed.envelopes[1], *listed.envelopes[1:])
        told[0] = audited.check.signed(0, replace(listed, envelopes=envelopes))
        assert audited.audit(0, told[:1]).wrong == ("ReportList",)
        # Not by the tally, which signed a receipt of the true list.
        assert audited.audit(1, told).wrong == ("ListReceipt",)


class TestTally:
    def test_an_answer_to_a_second_coin_is_found(self, audited: Audited) -> None:
        told = audited.lied(0, VoteAnswers, nonce=os.urandom(32))
        assert "VoteAnswers" in audited.audit(1, told).wrong

    def test_a_receipt_of_what_is_no_list_is_found(self, audited: Audited) -> None:
        told = list(audited.told)
        listed: Any = wire.decode(told[0]).message
        told[0] = audited.check.signed(0, replace(listed, headers=listed.headers[::-1]))
        assert audited.audit(1, told).wrong == ("ListReceipt",)


class TestMaterial:
    @SIDES
    def test_parts_are_those_that_hospitals_signed(self, audited: Audited, place: int) -> None:
        """Each byte of them: of the coordinator's part its binding leaves the quotients out."""
        parts = audited.material(place).parts
        hospital, part = next(iter(parts.items()))
        for at in (0, len(part) // 2, len(part) - 40, len(part) - 1):
            changed = part[:at] + bytes([part[at] ^ 1]) + part[at + 1 :]
            with pytest.raises(WrongShareError):
                audited.audit(place, parts={**parts, hospital: changed})
        with pytest.raises(ProtocolError):
            audited.audit(place, parts=dict(audited.material(1 - place).parts))

    @SIDES
    def test_frames_are_of_both_ends_and_this_batch(self, audited: Audited, place: int) -> None:
        forged = list(audited.told)
        forged[6] = audited.check.signed(1, wire.decode(forged[6]).message)
        with pytest.raises(BadSignatureError):
            audited.audit(place, forged)
        with pytest.raises(UnexpectedMessageError):
            audited.audit(place, audited.lied(place, SumShare, plan_digest=bytes(32)))
        with pytest.raises(UnexpectedMessageError):
            audited.audit(place, audited.told[1:])

    def test_it_shows_no_secret(self, audited: Audited) -> None:
        material = SideMaterial(
            audited.side(0).secrets, {b"hospital": b"a part of votes"}, (b"a header",)
        )
        assert "votes" not in repr(material)
        assert repr(audited.side(0).secrets.noise_seed)[2:-1] not in repr(material)
