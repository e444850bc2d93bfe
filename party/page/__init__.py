"""The hospital's own page, on this machine alone: requests, budget, sent messages."""

from party.page.server import serve_page

__all__ = ["serve_page"]
