"""The tally of a run whose votes are verified."""

from __future__ import annotations

from functools import partial

from coordinator.database import RunAttempt, check_journal_of, sealing_key_of
from coordinator.errors import RunDamagedError
from coordinator.federation.home import FederationHome
from coordinator.runs.labeling import Aggregation
from coordinator.tally.tally_client import TallyClient
from protocols.forms import Form


def fingerprint_of(home: FederationHome | None, form: Form) -> bytes:
    """Return the fingerprint of the tally that checks a run's votes; empty where none does.

    Raises `RunDamagedError` where the federation has none any more.
    """
    return _client(home).identity.fingerprint if form.adds_noise else b""


def aggregation_of(
    home: FederationHome | None, attempt: RunAttempt, *, form: Form, suite: str
) -> Aggregation | None:
    """Return the way to the tally, and what this end keeps of a run; None where none checks it.

    Raises as `fingerprint_of` does.
    """
    if not form.adds_noise:
        return None
    journal = partial(check_journal_of, attempt)
    return Aggregation(_client(home), journal, partial(sealing_key_of, attempt, suite))


def _client(home: FederationHome | None) -> TallyClient:
    card = None if home is None else home.tally
    if home is None or card is None:
        raise RunDamagedError("a run whose votes are verified must have its tally")
    return TallyClient(card, home.tally_key)
