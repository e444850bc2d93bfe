"""Hospitals that may be asked nothing more in a run, and why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from coordinator.runs.labeling import Member
from protocols.secure_sum import SecureSum


class LeftOut:
    """The hospitals of a run that spoiled a batch of it, or lost it too often."""

    def __init__(self, members: Sequence[Member]) -> None:
        self._fingerprints = {one.name: one.identity.fingerprint for one in members}
        self._reasons: dict[str, str] = {}

    def note(self, reason: str, names: Iterable[str]) -> None:
        """Leave hospitals out, and keep the reason."""
        self._reasons.update(dict.fromkeys(names, reason))

    def fingerprint_of(self, name: str) -> bytes:
        """Return a hospital's fingerprint; empty if none of the run has this name."""
        return self._fingerprints.get(name, b"")

    def ends(self, form: SecureSum) -> bool:
        """Tell whether the run's sums need a hospital that is left out."""
        return bool(self._reasons) and not form.survives_dropouts

    @property
    def words(self) -> list[str]:
        """Say in a line each who is left out; empty if nobody is.

        Hospitals approved a run with exactly its members: without one of them it is another run.
        """
        return [
            f"{name} (fingerprint {self.fingerprint_of(name).hex()[:16]}) {reason}: ask for a new "
            "run without it"
            for name, reason in self._reasons.items()
        ]
