"""The seven mechanisms in plain words: what they are called, and how a query became a label."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pate_fed.report.wording import chance_text, count, percent

MECHANISM_NAMES: Mapping[str, str] = {
    "confident": "Confident-GNMax",
    "gnmax": "GNMax",
    "lnmax": "LNMax",
    "interactive": "Interactive-GNMax",
    "stable-gaussian": "Stable argmax, Gaussian test",
    "stable-laplace": "Stable argmax, Laplace test",
    "immutable": "Immutable argmax",
}
"""Names of the mechanisms as the papers write them."""

NOBODY_IS_PROTECTED = (
    "This mechanism protects nobody. Whoever knows the other votes can read the last one off a "
    "label. It is for comparison only"
)
"""What has to be said of the immutable argmax wherever it is met."""

_DISAGREED = "the teachers disagreed too much, or the noise said so"

_REFUSED_BECAUSE: Mapping[str, str] = {
    "interactive": "the teachers did not contradict the student clearly, or the noise said so",
    "stable-gaussian": "no class led by enough, or the noise said so",
    "stable-laplace": "no class led by enough, or the noise said so",
}


def mechanism_name(privacy: Mapping[str, Any]) -> str:
    """Name the mechanism."""
    name = privacy["mechanism"]["name"]
    return MECHANISM_NAMES.get(name, str(name))


def refused_because(privacy: Mapping[str, Any]) -> str:
    """Say why a query got no answer."""
    return _REFUSED_BECAUSE.get(privacy["mechanism"]["name"], _DISAGREED)


def mechanism_text(privacy: Mapping[str, Any]) -> str:
    """Say how a query became a label."""
    mechanism = privacy["mechanism"]
    tell = _TEXTS.get(mechanism["name"], _gnmax)
    return tell(mechanism)


def _gnmax(mechanism: Mapping[str, Any]) -> str:
    return f"For each query {_pick(mechanism)}."


def _lnmax(mechanism: Mapping[str, Any]) -> str:
    return f"For each query {_pick(mechanism, kind='Laplace noise')}."


def _confident(mechanism: Mapping[str, Any]) -> str:
    if mechanism.get("shares") is not None:
        return (
            f"A query is answered only if the highest of its vote counts, each with noise of its "
            f"own of standard deviation {_number(mechanism, 'sigma1')} votes, reaches "
            f"{_number(mechanism, 'vote_threshold')} votes. Then the votes on it are added up "
            f"again, with fresh noise: {_pick(mechanism)}. All other queries get no answer."
        )
    return (
        f"A query is answered only if its highest vote count, with noise of standard deviation "
        f"{_number(mechanism, 'sigma1')} votes added, reaches "
        f"{_number(mechanism, 'vote_threshold')} votes. Then {_pick(mechanism)}. "
        "All other queries get no answer."
    )


def _interactive(mechanism: Mapping[str, Any]) -> str:
    confidence = mechanism.get("confidence")
    sure = "enough" if confidence is None else f"at least {percent(confidence)}"
    return (
        "A student learns between the batches. Teachers are heard where they contradict it: from "
        "each count the votes that the student expects are taken off, and a query is answered only "
        f"if the highest count left, with noise of standard deviation "
        f"{_number(mechanism, 'sigma1')} votes added, reaches "
        f"{_number(mechanism, 'vote_threshold')} votes. Then {_pick(mechanism)}. All other queries "
        "get no answer from the teachers; a student that gives its own label a chance of "
        f"{sure} keeps it, which costs nothing, because it looks "
        "at no vote. In the first batch there is no student yet."
    )


def _stable(mechanism: Mapping[str, Any], *, kind: str) -> str:
    votes = mechanism.get("unit_votes") or 1
    change = "one vote" if votes == 1 else f"{count(votes)} votes"
    return (
        "The class with most votes is released as it is, but only if it leads clearly: counted is "
        f"how many changes of {change} it would survive; {kind} noise of standard deviation "
        f"{_number(mechanism, 'sigma1')} changes is added, and the sum must exceed a bar that "
        f"noise alone exceeds with a chance of {chance_text(mechanism.get('test_delta') or 0)}. "
        "All other queries get no answer. Answered or not, every query costs the same."
    )


def _stable_gaussian(mechanism: Mapping[str, Any]) -> str:
    return _stable(mechanism, kind="Gaussian")


def _stable_laplace(mechanism: Mapping[str, Any]) -> str:
    return _stable(mechanism, kind="Laplace")


def _immutable(mechanism: Mapping[str, Any]) -> str:
    return (
        f"{NOBODY_IS_PROTECTED}. The class with most votes is given "
        f"{_number(mechanism, 'constant')} votes more before noise of standard deviation "
        f"{_number(mechanism, 'sigma2')} votes is added to every count: so much that no noise can "
        "change the label."
    )


_TEXTS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "confident": _confident,
    "gnmax": _gnmax,
    "lnmax": _lnmax,
    "interactive": _interactive,
    "stable-gaussian": _stable_gaussian,
    "stable-laplace": _stable_laplace,
    "immutable": _immutable,
}


def _pick(mechanism: Mapping[str, Any], *, kind: str = "noise") -> str:
    sigma, shares = _number(mechanism, "sigma2"), mechanism.get("shares")
    if shares is not None:
        return (
            f"the class with most votes is released, after every hospital added its part of {kind} "
            f"to its own counts: so much that any {count(shares)} parts have a standard deviation "
            f"of {sigma} votes in every count"
        )
    return (
        f"the class with most votes is released, after {kind} of standard deviation "
        f"{sigma} votes was added to every count"
    )


def _number(mechanism: Mapping[str, Any], name: str) -> str:
    value = mechanism.get(name)
    return "an unknown number of" if value is None else count(value)
