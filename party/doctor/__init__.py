"""The faults in the way of a hospital's node, found before it starts: a list of checks."""

from party.doctor.examination import LOCAL_NAMES, examine, examine_standing
from party.doctor.network import check_network
from party.doctor.probes import PartyProbes
from pate_fed.nodes import FAIL, OK, WARN, Check, exit_code

__all__ = [
    "FAIL",
    "LOCAL_NAMES",
    "OK",
    "WARN",
    "Check",
    "PartyProbes",
    "check_network",
    "examine",
    "examine_standing",
    "exit_code",
]
