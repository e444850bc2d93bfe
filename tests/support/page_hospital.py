"""A hospital that answered one run and is asked about another, for tests of its page."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import anyio
import httpx
from starlette.types import ASGIApp

from party.service import PartyService
from party.site.people_decisions import Subject
from party.site.site import Site
from pate_fed.terms import RunTerms
from protocols import wire
from protocols.suites import DEFAULT_SUITE
from protocols.values import encode_value
from tests.support.hospital_services import Hospitals, records_of

HOSTILE = '<script>alert("x")</script>'


def asked(
    hospitals: Hospitals, *, name: str, terms: RunTerms | None = None, tally: bytes = b""
) -> str:
    """Let the first site's node note that a run waits; return its digest."""
    site = hospitals.sites[0]
    members = tuple(sorted(hospitals.members, key=lambda one: one.identity.fingerprint))
    terms = replace(terms or hospitals.terms(members), name=name)
    digest = hashlib.sha256(name.encode()).digest()
    details: dict[str, Any] = {
        "coordinator": hospitals.coordinator.public.fingerprint,
        "terms": encode_value(terms.as_record()),
        "seats": tuple(one.identity.fingerprint for one in members),
        "form": "verified" if tally else "additive",
        "suite": DEFAULT_SUITE,
    }
    with records_of(site) as records:
        records.ask(Subject.POOL, terms.pool_digest, tally=tally, **details)
        records.ask(Subject.RUN, digest, tally=tally, **details)
    return digest.hex()


def asks_about_each_run(site: Site) -> Site:
    """Return the site, which asks its people about each run from now on."""
    return site.save(replace(site.settings, approval="each run"))


def recorded(service: PartyService) -> list[bytes]:
    """Return the list that the frames of a service's answers go to from now on."""
    frames: list[bytes] = []
    receive = service.receive

    def told(packet: bytes, federation: str | None = None) -> bytes:
        answer = receive(packet, federation)
        frames.extend(wire.unpack(answer, max_bytes=len(answer)))
        return answer

    service.receive = told  # type: ignore[method-assign]
    return frames


class PageClient:
    """A browser's requests to an app, without a socket; it keeps cookies, and follows nothing."""

    def __init__(self, app: ASGIApp, *, base_url: str) -> None:
        self._app = app
        self._base_url = base_url
        self.cookies = httpx.Cookies()

    def request(self, method: str, url: str, **more: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            carried = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(
                transport=carried, base_url=self._base_url, cookies=self.cookies
            ) as client:
                answer = await client.request(method, url, **more)
                self.cookies = client.cookies
                return answer

        return anyio.run(ask)

    def get(self, url: str, **more: Any) -> httpx.Response:
        return self.request("GET", url, **more)

    def post(self, url: str, **more: Any) -> httpx.Response:
        return self.request("POST", url, **more)
