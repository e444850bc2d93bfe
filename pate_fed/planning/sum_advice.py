"""Planning's view of a secure sum: which one fits, and from whom it hides votes.

The forms themselves are in `protocols`, which this library does not know: they arrive as an
argument, `protocols.forms.FORMS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Protocol, TypedDict

from pate_fed.errors import InvalidSettingError
from pate_fed.rule import Rule
from pate_fed.wording import plural

VERIFIED: Final = "verified"
"""Name of the form whose aggregators add the noise."""


class SumForm(Protocol):
    """A form of the secure sum, as planning sees it."""

    @property
    def name(self) -> str:
        """Its name in plans and on command lines."""

    @property
    def smallest(self) -> int:
        """Fewest parties."""

    @property
    def hides_vectors(self) -> bool:
        """Whether it hides each party's votes."""

    @property
    def survives_dropouts(self) -> bool:
        """Whether a batch goes on without some parties."""

    @property
    def exchanges(self) -> int:
        """Exchanges of a batch."""

    @property
    def adds_noise(self) -> bool:
        """Whether the two who open the sum add noise each: that of the rule is at them."""

    @property
    def most_votes(self) -> int | None:
        """Most votes of a party on a query; None for any."""

    def threshold(self, parties: int) -> int:
        """Return how many of this many parties must be there when the sum opens."""

    def most_colluders(self, parties: int) -> int:
        """Return how many of this many parties may work with the coordinator."""

    def require_enough(self, parties: int) -> None:
        """Refuse fewer parties than `smallest`."""


Sums = Mapping[str, SumForm]
"""Forms by name."""


def require_enough(parties: int, *, form: str, sums: Sums) -> None:
    """Refuse a federation that is too small for its sum, or for every sum that hides votes."""
    sums[form].require_enough(parties)
    hiding = [each for each in sums.values() if each.hides_vectors]
    min(hiding, key=lambda each: each.smallest).require_enough(parties)


def require_place(rule: Rule, form: SumForm) -> None:
    """Refuse noise of aggregators without the sum that has them, and that sum without it."""
    if form.adds_noise and not rule.at_aggregators:
        raise InvalidSettingError(
            f"--sum {form.name} must have --noise aggregators: its sums open noisy",
            rule.noise_place,
        )
    if rule.at_aggregators and not form.adds_noise:
        raise InvalidSettingError(f"--noise aggregators must have --sum {VERIFIED}", form.name)


def divided(rule: Rule, parties: int, form: SumForm) -> Rule:
    """Return a rule with all that divides the noise among the parties, if they add it.

    As many may be lost as the sum can do without, more than expected: it does not ask first.
    """
    if not rule.at_parties:
        return rule
    dropouts = parties - form.threshold(parties)
    whole = replace(rule, colluders=rule.colluders or 1, dropouts=dropouts)
    if (whole.shares(parties) or 0) < 1:
        raise InvalidSettingError(
            f"--colluders must leave one of {parties} hospitals that is honest and present",
            whole.colluders,
        )
    return whole


class SumAdvice(TypedDict):
    """A secure sum that fits.

    Attributes:
        hides_from: Hospitals that may collude with the coordinator without seeing others' votes.
        survives: Hospitals that a batch can do without.
    """

    form: str | None
    hides_from: int
    survives: int
    exchanges: int
    why: str


def advised_sum(parties: int, *, dropouts: int, sums: Sums, form: str | None = None) -> SumAdvice:
    """Return the secure sum that fits this many hospitals and lost ones."""
    offered = [each for each in sums.values() if each.hides_vectors and form in (None, each.name)]
    survived = {
        each.name: parties - each.threshold(parties) for each in offered if parties >= each.smallest
    }
    for each in offered:
        if dropouts <= survived.get(each.name, -1):
            return _table(each, sums, parties=parties, survives=survived[each.name])
    survives = max(survived.values(), default=0)
    why = _why_none_fits(
        parties,
        dropouts,
        survives=survives,
        smallest=min(each.smallest for each in offered),
        kind="secure sum" if form is None else f"{form} sum",
    )
    return {"form": None, "hides_from": 0, "survives": survives, "exchanges": 0, "why": why}


def _table(form: SumForm, sums: Sums, *, parties: int, survives: int) -> SumAdvice:
    colluders = form.most_colluders(parties)
    reader = "the coordinator or the tally" if form.adds_noise else "the coordinator"
    hides = f"hides votes from {reader} with up to {colluders} of"
    hiding = [each for each in sums.values() if each.hides_vectors]
    best = max(hiding, key=lambda each: each.most_colluders(parties))
    most = best.most_colluders(parties)
    but = f", not {most} as {best.name}" if most > colluders else ""
    if form.survives_dropouts:
        why = (
            f"a batch goes on without {survives} of {parties} hospitals, in "
            f"{plural(form.exchanges, 'exchange')}; {hides} them{but}"
        )
    else:
        why = (
            "every hospital answers every batch, and a lost one voids it; "
            f"{hides} {parties} hospitals"
        )
    return {
        "form": form.name,
        "hides_from": colluders,
        "survives": survives,
        "exchanges": form.exchanges,
        "why": why,
    }


def _why_none_fits(parties: int, dropouts: int, *, survives: int, smallest: int, kind: str) -> str:
    if parties < smallest:
        return f"{parties} hospitals are too few for any {kind}: {smallest} are needed"
    return (
        f"no {kind} of {parties} hospitals goes on without {dropouts} of them: at most {survives} "
        "may be lost"
    )
