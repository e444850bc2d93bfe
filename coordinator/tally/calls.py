"""The two calls between coordinator and tally: their names, and the most bytes of a packet."""

from __future__ import annotations

from typing import Final

from protocols.fields import KIB
from protocols.messages import Plan, RunRecord
from protocols.vote_messages import Acceptance, ReportList, SumShare, VoteAnswers

TALLY_SERVICE: Final = "pate_fed.Tally"
STATE, CHECK = "State", "Check"
MOST_PACKET_BYTES: Final = (
    RunRecord.MAX_BYTES
    + Plan.MAX_BYTES
    + max(kind.MAX_BYTES for kind in (ReportList, VoteAnswers, Acceptance, SumShare))
    + KIB
)
CHANNEL_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MOST_PACKET_BYTES),
    ("grpc.max_send_message_length", MOST_PACKET_BYTES),
)
