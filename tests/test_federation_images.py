"""Four real processes label public images with hospitals' own: from PNG folders, and from DICOM.

What hospitals hold is looked for in all traffic, all files and the coordinator's memory: pixels,
and texts of headers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from party.site.people_decisions import ApprovalState
from pate_fed.data.image_pixels import ImageReading, read_image
from pate_fed.report import read_run
from pate_fed.report.thumbnails import strips_of
from pate_fed.students.prediction import predict_file
from tests.support.hospital_services import NAMES, records_of
from tests.support.marker import files_with_secrets, private_forms, secrets_in_memory
from tests.support.own_images import (
    CLASSES,
    LABEL,
    SIDE,
    dicom_file,
    picture,
    write_public_images,
)
from tests.support.real_data import real_data
from tests.support.whole_federation import (
    OwnRecords,
    WholeFederation,
    children_of,
    enroll,
    whole_federation,
)

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]


@contextmanager
def federation_of(folder: Path, records: OwnRecords) -> Iterator[WholeFederation]:
    with whole_federation(folder) as made:
        made.serve()
        enroll(made, records_of_each=records)
        made.start_hospitals(*NAMES)
        yield made


def labeled(
    made: WholeFederation, pool: Path, *, label: str, classes: tuple[str, ...], epsilon: int
) -> Path:
    """Ask for labels of all images of a pool, as operator and owners type it; return the run."""
    count = len(list(pool.iterdir()))
    made.pate_fed(
        *("run", "--queries", pool, "--label", label, "--classes", ",".join(classes)),
        *("--name", "first", "--epsilon", epsilon, "--mechanism", "gnmax", "--ask", count),
        *("--select", "all", "--detach"),
    )
    for name in NAMES:

        def waits(name: str = name) -> bool:
            with records_of(made.hospitals[name].site) as records:
                return bool(records.approvals(ApprovalState.PENDING))

        made.wait_for(waits)
        assert not made.run("first").is_ended, made.said
        listed = json.loads(made.pate_party(name, "approve", "--format", "json"))
        [pool_id] = [one["digest"] for one in listed["approvals"] if one["subject"] == "pool"]
        made.pate_party(name, "approve", pool_id, "--yes")
    run = made.wait_for_run("first", lambda run: run.is_ended)
    assert (run.state.value, run.reason) == ("done", ""), made.said
    return made.home.results("first")


def test_pneumonia_is_labeled_from_folders_of_png_files(tmp_path: Path) -> None:
    arrays = np.load(real_data("data/pneumoniamnist") / "pneumoniamnist.npz")
    names = ("normal", "pneumonia")

    def write(folder: Path, images: np.ndarray, labels: np.ndarray | None) -> Path:
        for place, pixels in enumerate(images):
            inner = folder if labels is None else folder / names[int(labels[place, 0])]
            inner.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(inner / f"{place:05}.png")
        return folder

    def own(folder: Path, name: str, place: int) -> tuple[Path, str, str | None]:
        rows = slice(place, None, len(NAMES))
        images, labels = arrays["train_images"][rows], arrays["train_labels"][rows]
        return write(folder / f"{name} images", images, labels), "finding", None

    pool = write(tmp_path / "pool", arrays["val_images"][:200], None)
    with federation_of(tmp_path, own) as made:
        results = labeled(made, pool, label="finding", classes=names, epsilon=200)
    run = read_run(results)
    truth = {str(row): names[int(one)] for row, one in enumerate(arrays["val_labels"][:200, 0])}
    right = np.mean([label == truth[query] for query, label in run.labels])
    strips = strips_of(run)
    test = write(tmp_path / "test", arrays["test_images"], None)
    found = predict_file(results / "student", test)
    accuracy = (found.chances.argmax(axis=1) == arrays["test_labels"][:, 0]).mean()
    print(f"labels right: {right:.3f}; student right: {accuracy:.3f}; {run.metrics.student}")
    print(f"thumbnails: {strips}; {len(run.images)} bytes")
    assert right > 0.85
    assert accuracy > 0.75
    assert {one.label for one in strips} == set(names)
    assert "data:image/png;base64" in (results / "report.html").read_text()


def test_disks_are_labeled_from_dicom_files_of_which_nothing_leaves(tmp_path: Path) -> None:
    rng = np.random.default_rng(8)
    secrets: dict[str, set[bytes]] = {}
    originals: list[Path] = []
    reading = ImageReading(SIDE, SIDE, 1)

    def own(folder: Path, name: str, place: int) -> tuple[Path, str, str | None]:
        images = folder / f"{name} images"
        for patient in range(40):
            pixels = picture(rng, patient % 2)
            pixels[0] = rng.integers(0, 256, SIDE)  # what nobody else has
            words = f"Marker{place}X{patient}Y{rng.integers(10**9)}"
            texts = {
                "PatientName": f"{words}^Ada",
                "PatientID": f"{words}-id",
                "InstitutionName": f"{words} clinic",
            }
            content = dicom_file(pixels, inverted=bool(patient % 3), texts=texts)
            path = images / CLASSES[patient % 2] / f"p{patient:03}" / f"IM{place}"
            path.parent.mkdir(parents=True)
            path.write_bytes(content)
            originals.append(path)
            [row] = {read_image(content, "one", reading)[0].tobytes()}
            assert row == pixels[0].tobytes()
            secrets[f"header of {name} {patient}"] = private_forms(words.encode())
            secrets[f"pixels of {name} {patient}"] = private_forms(row)
        return images, LABEL, None

    pool = write_public_images(tmp_path / "pool", images=24)
    with federation_of(tmp_path, own) as made:
        results = labeled(made, pool, label=LABEL, classes=CLASSES, epsilon=40)
        for pid in (made.service.pid, *children_of(made.service.pid)):
            assert secrets_in_memory(pid, secrets) == []
        known = {"its home": {str(made.home.folder).encode()}}
        assert secrets_in_memory(made.service.pid, known), "the search finds what is there"
    run = read_run(results)
    assert [CLASSES.index(label) for _, label in run.labels] == [row % 2 for row in range(24)]
    assert run.metrics.student is not None
    assert sum(one.shown for one in strips_of(run)) == 24
    headers = {name: forms for name, forms in secrets.items() if name.startswith("header")}
    found = [files_with_secrets(path.parent, headers) for path in originals[::10]]
    assert all(found), "the search finds them where they are"
    for path in originals:
        path.unlink()
    assert files_with_secrets(tmp_path, secrets) == {}
