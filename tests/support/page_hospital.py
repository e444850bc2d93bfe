"""A hospital that answered one run and is asked about another, for tests of its page."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from party.site.folder import Site
from party.site.records import Subject
from pate_fed.federation import RunTerms
from protocols import wire
from protocols.envelope import DEFAULT_SUITE
from tests.support.hospital_services import Hospitals, records_of

HOSTILE = '<script>alert("x")</script>'


def asked(hospitals: Hospitals, *, name: str, terms: RunTerms | None = None) -> str:
    """Let the first site's node note that a run waits; return its digest."""
    site = hospitals.sites[0]
    members = tuple(sorted(hospitals.members, key=lambda one: one.identity.fingerprint))
    terms = replace(terms or hospitals.terms(members), name=name)
    digest = hashlib.sha256(name.encode()).digest()
    details: dict[str, Any] = {
        "coordinator": hospitals.coordinator.public.fingerprint,
        "terms": wire.encode_value(terms.as_record()),
        "seats": tuple(one.identity.fingerprint for one in members),
        "form": "additive",
        "suite": DEFAULT_SUITE,
    }
    with records_of(site) as records:
        records.ask(Subject.POOL, terms.pool_digest, **details)
        records.ask(Subject.RUN, digest, **details)
    return digest.hex()


@contextmanager
def each_run(site: Site) -> Iterator[Site]:
    """The site, which asks its people about each run."""
    yield site.save(replace(site.settings, approval="each run"))
