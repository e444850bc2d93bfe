"""The budget for life, which the first start fixes."""

from __future__ import annotations

from typing import Final

from party.errors import NotConfirmedError
from party.owner import OpenSite
from party.site.site import SiteSettings

LIFETIME_RULES: Final = ("lifetime_epsilon", "delta", "delta_for_tests")
"""Settings that the first start fixes for ever."""


def require_lifetime_decided(opened: OpenSite) -> None:
    """Refuse a first start that would fix a budget for life that nobody here decided."""
    from party.storage import is_budget_fixed  # noqa: PLC0415 - keeps --help fast

    settings, usual = opened.site.settings, SiteSettings()
    decided = opened.decided_rules()
    open_rules = [
        f"{name} {getattr(usual, name):g}"
        for name in LIFETIME_RULES
        if name not in decided and getattr(settings, name) == getattr(usual, name)
    ]
    if open_rules and not is_budget_fixed(opened.database):
        raise NotConfirmedError(
            "the first start fixes the budget for life for ever, so a person must decide it: "
            "`pate-party setup`, or `pate-party policy set NAME VALUE`",
            f"undecided {', '.join(open_rules)}",
        )
