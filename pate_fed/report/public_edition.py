"""Writes the public edition of a run into a new folder: the only form in which a run is exported.

It is made from allowed fields alone, see `editions`; nothing but the student is copied.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from pathlib import Path

from pate_fed.report.editions import public_record
from pate_fed.report.html import render_report
from pate_fed.report.model_card import render_model_card
from pate_fed.report.publication_words import has_own_data
from pate_fed.report.run_directory import RunDirectory, read_run
from pate_fed.run_folder import MODEL_CARD, SEALED, STUDENT

_CARD = f"{STUDENT}/{MODEL_CARD}"


def write_public_edition(
    run_dir: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    agreed: Collection[str] = (),
) -> None:
    """Write the public edition of a finished run."""
    run = read_run(run_dir)
    public = public_record(run, agreed=agreed)
    with RunDirectory.open_new(out) as directory:
        directory.write_record(public.settings, public.manifest, public.metrics, public.privacy)
        directory.write_labels(public.labels)
        if public.images:
            directory.write_images(public.images)
        # A student of the user's own patients holds rows of theirs, which no epsilon covers.
        for name in SEALED:
            source = Path(run_dir, name)
            if name.startswith(f"{STUDENT}/") and source.is_file() and not has_own_data(run):
                directory.student_directory()
                if name == _CARD:
                    card = render_model_card(public.metrics, public.privacy, public.settings)
                    (directory.folder / name).write_text(card, encoding="utf-8")
                else:
                    shutil.copyfile(source, directory.folder / name)
        directory.write_report(render_report(directory.read_back()))
