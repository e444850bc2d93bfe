"""The parties of a run, in seat order."""

from __future__ import annotations

from coordinator.runs.labeling.roster import Member, Roster, in_seat_order
from protocols.identity import SigningIdentity


def test_a_roster_knows_the_statements_of_its_own_parties_alone() -> None:
    identities = [SigningIdentity.generate() for _ in range(4)]
    stranger, seats = identities[3].fingerprint, sorted(one.fingerprint for one in identities[:3])
    known = [Member(one.fingerprint.hex(), one.public) for one in identities]
    members = in_seat_order(known[:3])
    roster = Roster(members, {stranger: b"another's", seats[1]: b"said"})
    assert [member.identity.fingerprint for member in members] == seats
    assert roster.statements == {seats[1]: b"said"}
    assert [roster.said_by(seat) for seat in seats] == [[], [b"said"], []]
    assert roster.names(seats[:0:-1]) == (seats[1].hex(), seats[2].hex())
