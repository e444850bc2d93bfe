"""What votes would cost, by every method side by side: `pate-fed account`."""

from coordinator.account.request import AccountRequest
from coordinator.account.result import account, render_account

__all__ = ["AccountRequest", "account", "render_account"]
