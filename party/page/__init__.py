"""The hospital's own page: what waits, what was paid, what left, on this machine alone."""

from party.page.server import serve_page

__all__ = ["serve_page"]
