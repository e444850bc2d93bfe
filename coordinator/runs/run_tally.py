"""The tally of a run whose votes are verified."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

from coordinator.certificates import KeyedCertificate
from coordinator.database import RunAttempt, check_journal_of, sealing_key_of
from coordinator.errors import RunDamagedError
from coordinator.federation.home import FederationHome
from coordinator.runs.labeling import Aggregation
from coordinator.runs.tally_presence import TallyPresence
from coordinator.tally.cards import TallyCard
from coordinator.tally.tally_client import TallyClient
from protocols.forms import Form


def fingerprint_of(home: FederationHome | None, form: Form) -> bytes:
    """Return the fingerprint of the tally that checks a run's votes; empty where none does.

    Raises `RunDamagedError` where the federation has none any more.
    """
    return _pinned(home)[0].identity.fingerprint if form.adds_noise else b""


def aggregation_of(
    home: FederationHome | None,
    attempt: RunAttempt,
    *,
    form: Form,
    suite: str,
    clock: Callable[[], float],
) -> Aggregation | None:
    """Return the way to the tally, and what this end keeps of a run; None where none checks it.

    Whether the tally answers is noted. Raises as `fingerprint_of` does.
    """
    if not form.adds_noise:
        return None
    journal, presence = partial(check_journal_of, attempt), TallyPresence(attempt.database)

    card, key = _pinned(home)
    tally = card.identity.fingerprint

    def note(code: str) -> None:
        presence.note(tally, code=code, now=datetime.fromtimestamp(clock(), UTC))

    client = TallyClient(card, key, note=note, heads=presence.heads(tally))
    return Aggregation(client, journal, partial(sealing_key_of, attempt, suite))


def _pinned(home: FederationHome | None) -> tuple[TallyCard, KeyedCertificate]:
    card = None if home is None else home.tally
    if home is None or card is None:
        raise RunDamagedError("a run whose votes are verified must have its tally")
    return card, home.tally_key
