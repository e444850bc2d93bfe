"""Before a run is offered: what each of its hospitals says of it, all asked at the same time.

A hospital whose node is there is asked even while others are away, so its people can decide.
Nothing changes: the offer that follows, once all agree, is judged afresh.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from itertools import chain
from typing import Final

from coordinator.errors import PartyRefusedError
from coordinator.runs.labeling import LabelingRun, Member, in_seat_order, tolerated
from coordinator.runs.labeling.messenger import UP_TO_PEOPLE, code_of
from coordinator.runs.open_run import OpenRun
from coordinator.runs.queue import RunQueue, RunState
from coordinator.runs.run_hospitals import HospitalAnswer
from coordinator.runs.run_tally import fingerprint_of
from coordinator.runs.transport import Silence, Transport
from coordinator.runs.waits import RunWaits
from protocols import wire
from protocols.errors import ProtocolError, UnexpectedMessageError
from protocols.messages import RunInquiry, RunReadiness
from protocols.rounds import read_run_answer
from protocols.run_scope import RunScope
from protocols.values import encode_value

_MOST_BYTES: Final = 64 * 1024
_OF_HOSPITALS: Final = "PF-3"
"""Begin of the codes of hospitals' own refusals; others pass, such as a peer not heard of yet."""


class Agreement:
    """What the hospitals of a run say of it, asked and noted."""

    def __init__(self, queue: RunQueue, waits: RunWaits) -> None:
        self._queue = queue
        self._waits = waits

    def hear(self, run: OpenRun, transport: Transport) -> dict[bytes, HospitalAnswer]:
        """Ask every hospital of a run whose node is there whether it takes part; one exchange.

        The transport is not the run's own, whose traffic is counted. Returns the answers by
        fingerprint, without the hospitals that gave none.
        """
        known = [one for one in run.members if run.simulated or one.node is not None]
        own = {one.node: [one] for one in known}
        asked = {
            node: known if run.simulated else own[node]  # a simulation does not know whose it is
            for node in transport.nodes_now()
            if run.simulated or node in own
        }
        signed = wire.sign(_inquiry_of(run), run.identity)
        packets = dict.fromkeys(asked, wire.pack([signed.frame]))
        heard = transport.exchange(packets) if packets else {}
        now = run.world.clock()
        answers = dict(
            found
            for node, members in asked.items()
            if (found := _read(heard[node], signed.frame, members, now=now)) is not None
        )
        said = {party: answer for party, answer in answers.items() if answer.is_signed}
        self._queue.hospitals.note_answers(run.request.name, said)
        away = [one for one in known if one.identity.fingerprint not in answers]
        self._waits.note_presence(known, away=away)
        return answers

    def missing(
        self, run: OpenRun, answers: Mapping[bytes, HospitalAnswer], *, there: Collection[int]
    ) -> str:
        """Say of which hospitals a run misses what; "" if all take part."""
        fault = self._waits.suspended(run.members)
        suspended = self._waits.suspended_among(run.members)
        away: list[str] = []
        silent: list[str] = []
        people: list[str] = []
        others: list[str] = []
        for one in run.members:
            answer = answers.get(one.identity.fingerprint)
            if one.identity.fingerprint in suspended:
                continue
            if answer is None:
                (silent if one.node in there else away).append(one.name)
            elif answer.is_signed and answer.code in UP_TO_PEOPLE:
                people.append(f"{one.name} [{answer.code}]")
            elif answer.code:
                what = "a refusal" if answer.is_signed else "no answer that can be read"
                others.append(f"{one.name}: {what} [{answer.code}]")
        said = [f"{fault.code}: {fault}"] if fault is not None else []
        said += [f"not connected: {', '.join(away)}"] if away else []
        said += [f"waits for {', '.join(silent)}"] if silent else []
        if people:
            said.append(f"waits for the people of {', '.join(people)}")
            others.append(f"the run's id there: {id_at_hospitals(run)}")
        return "; ".join(said + others)

    def note_unready(self, run: OpenRun, unready: Mapping[str, str], transport: Transport) -> None:
        """Note who is not ready for a batch; a refusal is asked about: when, and in which words.

        `unready` has codes of refusals by name, "" for a silent hospital.
        """
        if any(unready.values()):
            self.hear(run, transport)
        silent = [one for one in run.members if unready.get(one.name) == ""]
        self._waits.note_presence(run.members, away=silent)

    def note_lost(self, run: OpenRun, labeling: LabelingRun) -> None:
        """Note who was there at the end of a batch, who was lost, and whose votes were none."""
        lost = labeling.lost[-1] if labeling.lost else ()
        away = [one for one in run.members if one.name in lost]
        self._waits.note_presence(run.members, away=away)
        counts = Counter(chain(*labeling.rejected))
        self._queue.hospitals.note_no_votes(
            run.request.name,
            {one.identity.fingerprint: counts[one.name] for one in run.members if counts[one.name]},
        )
        if labeling.last_note:
            self._waits.enter(run.request.name, RunState.RUNNING, labeling.last_note)


def refusal_in(run: OpenRun, answers: Mapping[bytes, HospitalAnswer]) -> PartyRefusedError | None:
    """Return a refusal that no waiting changes, if there is one: by a hospital's own rules."""
    for one in run.members:
        answer = answers.get(one.identity.fingerprint)
        if answer is None or not answer.is_signed or answer.code in UP_TO_PEOPLE:
            continue
        if answer.code.startswith(_OF_HOSPITALS):
            return refused(one.name, answer.code)
    return None


def refused(name: str, code: str) -> PartyRefusedError:
    """Return the fault of a hospital that will not take part."""
    must = "every hospital must agree to a run and to each batch"
    return PartyRefusedError(must, "a refusal", party=name, cause=code)


def id_at_hospitals(run: OpenRun) -> str:
    """Return the first digits of a run's id, as its hospitals' people see it."""
    inquiry = _inquiry_of(run)
    return RunScope.of(inquiry, seats=inquiry.seats).digest.hex()[:16]


def _inquiry_of(run: OpenRun) -> RunInquiry:
    """Return the question to a run's hospitals: always the same."""
    seats = tuple(one.identity.fingerprint for one in in_seat_order(run.members))
    terms, form = run.request.terms_by(list(seats)), run.form
    agreed = tolerated(terms, form, parties=len(seats))
    return RunInquiry(
        coordinator=run.identity.fingerprint,
        seats=seats,
        form=form.name,
        ring_bits=form.ring_bits,
        suite=run.request.settings.suite,
        threshold=len(seats) - agreed["dropouts"],
        simulated=run.simulated,
        tally=fingerprint_of(run.home, form),
        terms=encode_value(terms.as_record()),
        **agreed,
    )


def _read(
    packet: bytes | Silence, inquiry: bytes, members: list[Member], *, now: float
) -> tuple[bytes, HospitalAnswer] | None:
    """Read the answer of one of some hospitals, and tell of which; None if there is none."""
    only = {one.identity.fingerprint: one.identity for one in members}
    first = next(iter(only))
    if isinstance(packet, Silence):
        code = code_of(packet.code)  # where its node is there, and cannot answer
        return (first, HospitalAnswer(code, is_signed=False)) if code else None
    try:
        frames = wire.unpack(packet, max_bytes=_MOST_BYTES)
        if not frames:
            return None
        message = read_run_answer(frames[-1], inquiry=inquiry, parties=only)
    except ProtocolError as error:
        return first, HospitalAnswer(error.code, is_signed=False)
    if isinstance(message, RunReadiness):
        # Nobody decided in the future: a clock that is ahead, or a lie.
        at = datetime.fromtimestamp(min(message.at, now), UTC) if message.at else None
        return message.sender, HospitalAnswer(_public(message.reason), at, message.words)
    return message.sender, HospitalAnswer(_public(message.reason))


def _public(reason: str) -> str:
    """Return a reason that is a code, or is none; for any other text a code of ours."""
    return code_of(reason) or (UnexpectedMessageError.code if reason else "")
