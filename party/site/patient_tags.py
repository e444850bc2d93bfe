"""Tags of this hospital's patients: for an audit that no patient teaches two teachers."""

from __future__ import annotations

import json
from typing import Any

from party.errors import TeachersError
from party.site.site import Site
from party.site.training import SHARES_FILE, read_files, read_manifest
from pate_fed.audit.tags import tag_shares


def patient_tags(site: Site, *, name: str, key: bytes) -> dict[str, Any]:
    """Return keyed hashes of the patients of each kept teacher, by task.

    Raises:
        TeachersError: no teachers are kept, or their files do not say whose they are.
        InvalidParameterError: the key is too short.
    """
    place = site.path("teachers")
    shares: dict[str, list[list[str]]] = {}
    for folder in sorted(place.iterdir()) if place.is_dir() else ():
        if folder.is_dir() and not folder.name.startswith("."):
            files = read_files(folder, read_manifest(folder).get("files"))
            if SHARES_FILE not in files:
                raise TeachersError(
                    f"teachers/{folder.name} must say which teacher has which patient"
                )
            shares[folder.name] = json.loads(files[SHARES_FILE])
    if not shares:
        raise TeachersError("teachers must be kept: train them first, by a run")
    return tag_shares(shares, party=name, key=key)
