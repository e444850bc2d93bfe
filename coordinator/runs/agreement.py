"""Before a run is offered: what each of its hospitals says of it, all asked at the same time.

A hospital whose node is there is asked even while others are away, so its people can decide. It
changes nothing: the offer that follows, once all agree, is judged afresh.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from coordinator.runs.hospitals import HospitalAnswer
from coordinator.runs.labeling import Member
from coordinator.runs.labeling.messenger import code_of
from coordinator.runs.open_run import OpenRun
from coordinator.runs.transport import Silence, Transport
from protocols import wire
from protocols.errors import ProtocolError, UnexpectedMessageError
from protocols.messages import RunReadiness
from protocols.rounds import run_inquiry
from protocols.run_scope import RunScope

_MOST_BYTES: Final = 64 * 1024


def ask_all(run: OpenRun, transport: Transport) -> dict[bytes, HospitalAnswer]:
    """Ask every hospital of a run whose node is there whether it takes part; one exchange.

    Args:
        run: The run.
        transport: The way to its hospitals' nodes.

    Returns:
        The answers by fingerprint; without the hospitals that gave none.
    """
    there = transport.nodes_now()
    asked = {one.node: one for one in run.members if one.node is not None and one.node in there}
    if not asked:
        return {}
    signed = wire.sign(run.inquiry, run.identity)
    packet = wire.pack([signed.frame])
    heard = transport.exchange(dict.fromkeys(asked, packet))
    answers = {}
    for node, member in asked.items():
        answer = _read(heard[node], signed.frame, member, now=run.world.clock())
        if answer is not None:
            answers[member.identity.fingerprint] = answer
    return answers


def id_at_hospitals(run: OpenRun) -> str:
    """Return the first digits of a run's id, as its hospitals' people see it."""
    return RunScope.of(run.inquiry, seats=run.inquiry.seats).digest.hex()[:16]


def _read(
    packet: bytes | Silence, inquiry: bytes, member: Member, *, now: float
) -> HospitalAnswer | None:
    """Read one hospital's answer; None if there is none."""
    if isinstance(packet, Silence):
        code = code_of(packet.code)  # where its node is there, and cannot answer
        return HospitalAnswer(code, is_signed=False) if code else None
    only = {member.identity.fingerprint: member.identity}
    try:
        frames = wire.unpack(packet, max_bytes=_MOST_BYTES)
        if not frames:
            return None
        message = run_inquiry.read(frames[-1], inquiry=inquiry, parties=only)
    except ProtocolError as error:
        return HospitalAnswer(error.code, is_signed=False)
    if isinstance(message, RunReadiness):
        # Nobody decided in the future: a clock that is ahead, or a lie.
        at = datetime.fromtimestamp(min(message.at, now), UTC) if message.at else None
        return HospitalAnswer(_public(message.reason), at, message.words)
    return HospitalAnswer(_public(message.reason))


def _public(reason: str) -> str:
    """Return a reason that is a code, or is none; for any other text a code of ours."""
    return code_of(reason) or (UnexpectedMessageError.code if reason else "")
