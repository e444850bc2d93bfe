"""Public images in a report: each strip shows the images of its label; nothing reads a sheet."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pate_fed.public_images import SHEET_CELL, SHEET_COLUMNS, contact_sheet
from pate_fed.report import read_run, render_report
from pate_fed.report.editions import public_record
from pate_fed.report.thumbnails import MOST_OF_A_CLASS, sheet_of, strips_of
from pate_fed.run_folder import IMAGES
from tests.support.sample_run import write_sample


def shades(count: int) -> np.ndarray:
    """Images that are each one shade."""
    numbers = (np.arange(count) % 251).astype(np.uint8)
    return numbers[:, None, None, None].repeat(8, 1).repeat(8, 2)


def test_each_strip_shows_the_images_with_its_label(tmp_path: Path) -> None:
    write_sample(folder := tmp_path / "run")
    run = read_run(folder)
    pool = 1 + max(int(query) for query, _ in run.labels)
    (folder / IMAGES).write_bytes(sheet_of(shades(pool), run.labels))
    run = read_run(folder)
    strips = strips_of(run)
    assert strips
    with Image.open(io.BytesIO(run.images)) as image:
        sheet = np.asarray(image)
    assert sheet.shape[0] == strips[-1].top + strips[-1].height
    for strip in strips:
        labeled = [int(query) for query, label in run.labels if label == strip.label]
        assert strip.of == len(labeled)
        for place, query in enumerate(labeled[:MOST_OF_A_CLASS]):
            row, column = divmod(place, SHEET_COLUMNS)
            top = strip.top + row * SHEET_CELL
            assert sheet[top + 5, column * SHEET_CELL + 5].tolist() == [query % 251] * 3
    page = render_report(run)
    assert page.count('class="strip"') == len(strips)
    assert IMAGES in page


def test_what_is_no_png_file_is_not_shown(tmp_path: Path) -> None:
    write_sample(folder := tmp_path / "run")
    (folder / IMAGES).write_bytes(b"<svg onload=alert(1)>")
    run = read_run(folder)
    assert strips_of(run) == ()
    assert "onload" not in render_report(run)


@pytest.mark.parametrize("data", ["digits", "images"])
def test_the_public_edition_has_images_where_it_has_labels(tmp_path: Path, data: str) -> None:
    write_sample(folder := tmp_path / "run")
    (folder / IMAGES).write_bytes(contact_sheet([shades(3)]))
    run = read_run(folder)
    run = replace(
        run,
        settings=run.settings.changed(data=data, seed=None),
        manifest=run.manifest.changed(seed=None),
    )
    public = public_record(run)
    assert bool(public.images) is bool(public.labels) is (data == "digits")
