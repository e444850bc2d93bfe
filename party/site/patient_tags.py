"""Tags of this hospital's patients: for an audit that no patient teaches two teachers."""

from __future__ import annotations

from typing import Any

from party.errors import TeachersError
from party.site.own_table import units_of
from party.site.site import Site
from party.site.tasks import kept_pools, read_task
from party.site.training import kept_folders, read_files, read_manifest, shares_in
from pate_fed.audit.tags import tag_shares
from pate_fed.data.task import LearningTask


def patient_tags(site: Site, *, name: str, key: bytes) -> dict[str, Any]:
    """Return keyed hashes of the patients of each kept teacher, by task; of all who may vote."""
    shares: dict[str, list[list[str]]] = {}
    if site.settings.do_records_vote:  # each patient alone, for every task that is kept
        tasks = (read_task(site, bytes.fromhex(pool.name)) for pool in kept_pools(site))
        found = {one.digest.hex(): one.data_set for one in tasks if isinstance(one, LearningTask)}
        for task, data_set in sorted(found.items()):
            asked = site.using(data_set)
            shares[task] = [[one] for one in dict.fromkeys(units_of(asked))]
    else:
        for folder in kept_folders(site):
            files = read_files(folder, read_manifest(folder).get("files"))
            shares[folder.name] = shares_in(folder, files, fault=TeachersError)
    if not shares:
        raise TeachersError("teachers must be kept: train them first, by a run")
    return tag_shares(shares, party=name, key=key)
