"""Checks of the hospital's records: they are there, unchanged, and a teacher learns from them."""

from __future__ import annotations

import numpy as np

from party.doctor.probes import PartyProbes
from party.errors import DataChangedError, DataError, PartyError
from party.site.held_out_patients import is_held_out
from party.site.own_table import own_review, read_registered, units_of
from party.site.people_decisions import PeopleDecisions
from party.site.site import Site
from party.site.tasks import read_task
from pate_fed.data.columns import canonical_cells, read_column, sorted_names
from pate_fed.data.csv_file import CsvTable
from pate_fed.data.dataset import Records
from pate_fed.data.flat_columns import NEARLY_ALL, FlatColumn, flat_columns, flat_images
from pate_fed.data.image_features import fit_image_encoder
from pate_fed.data.image_files import LARGEST_USUAL_SIDE, ImageFiles
from pate_fed.data.image_pixels import ImageReading
from pate_fed.data.image_schema import ImageSchema
from pate_fed.data.table_features import fit_table_encoder
from pate_fed.data.task import LearningTask, OwnRecords
from pate_fed.data.task_schema import TaskSchema
from pate_fed.errors import InvalidDataError, InvalidParameterError, PateFedError
from pate_fed.nodes import printable
from pate_fed.nodes.checks import Finding, fail, ok, warn
from pate_fed.teachers import make_ensemble
from pate_fed.wording import percent, plural

_LARGE_DELTA = 0.1 * (1 + 1e-9)
"""delta times the number of patients from which the doctor warns."""

SAMPLE = 500


def check_data(site: Site, around: PartyProbes) -> Finding:  # noqa: ARG001 - checks look alike
    """Read the records, hold them to their hash, and count their patients."""
    try:
        found = read_registered(site)
        everybody = set(units_of(site, found))
    except DataChangedError as error:
        return fail(
            f"{error}.",
            "Put the files back, or register them anew: teachers that are kept are then refused.",
        )
    except (DataError, InvalidDataError) as error:
        return fail(f"{error}.", "`pate-party data add FILE` registers a table.")
    patients, teachers = len(everybody), site.settings.teachers
    teaching = sum(not is_held_out(one, site.settings.held_out) for one in everybody)
    if teaching < (1 if site.settings.do_records_vote else teachers):
        said = f"{teaching} patients teach, for {teachers} teachers: some would have none."
        advice = (
            "Give each teacher more (`pate-party policy set records_per_teacher`), or hold fewer "
            "patients out."
        )
        return fail(said, advice)
    what = "The table can be read, and is the one that was registered"
    if isinstance(found, ImageFiles):
        what = "The images can be read, and are those that were registered"
    said = (
        f"{what}: {patients} patients, "
        f"{plural(teachers, 'voter' if site.settings.do_records_vote else 'teacher')}."
    )
    if isinstance(found, CsvTable):
        seen, _ = own_review(
            found,
            label=site.data.label,
            patient_id=site.data.patient_id or None,
            floor=site.data.floor,
        )
        said = " ".join((said, *seen.notes))
        if seen.asked:
            return warn(" ".join((*seen.asked, said)), "`pate-party data add` takes the answers.")
    delta = site.settings.delta
    if delta * patients > _LARGE_DELTA:
        warning = (
            f"{said} delta {delta:g}, the probability that epsilon may fail, is large for them."
        )
        return warn(
            warning,
            f"Take one of at most {_LARGE_DELTA / patients:.1g} (`pate-party policy set delta`), "
            "before the first start fixes it.",
        )
    return ok(said)


def check_teacher(site: Site, around: PartyProbes) -> Finding:  # noqa: ARG001
    """Train one teacher on a sample; it is thrown away. Where records vote, let the sample vote."""
    try:
        text = read_registered(site)
        sample = _sample(text, site)
        settings = site.settings
        ensemble = make_ensemble(
            settings.teacher_model,
            site.settings.data.kind,
            records=settings.patients_per_teacher,
            teachers=settings.teachers,
            folders=settings.data_folders,
        )
        classes = max(2, int(sample.labels.max()) + 1)
        # The draw decides nothing here.
        rng = np.random.default_rng(0)
        ensemble.fit([sample], classes=classes, rng=rng, public=sample.inputs)
        ensemble.vote(sample.inputs.select([0]))
    except (DataError, DataChangedError, InvalidDataError) as error:
        return fail(
            f"No teacher could be trained: {error}.",
            "Mend the images, or the table and its columns' names, and register them anew.",
        )
    except InvalidParameterError as error:
        return fail(f"No teacher could be trained: {error}.", "Set teacher_model anew.")
    if settings.do_records_vote:
        return ok(f"{len(sample)} {_things(site)} can vote on queries close to them.")
    return ok(f"A teacher was trained on {len(sample)} {_things(site)}, and thrown away.")


def check_columns(site: Site, around: PartyProbes) -> Finding:
    """Look for columns of approved pools in which own rows look alike to teachers."""
    try:
        with site.open_database() as database:
            pools = PeopleDecisions(database, clock=around.clock).decided().pools
        tasks = [read_task(site, pool) for pool in pools]
        schemas = {one.digest: one for one in tasks if isinstance(one, LearningTask)}
        flat = set()
        if schemas:
            own = read_registered(site)
            found = [one for task in schemas.values() for one in _flat(task, own)]
            flat = {one.column for one in found if one.is_by_task}
    except (PartyError, PateFedError) as error:
        said = f"Your {_things(site)} cannot be compared with the approved pools: {error}."
        return warn(said, "Mend them, or put the file under `pools` back.")
    if flat:
        listed = printable(", ".join(sorted(flat)))
        return warn(
            f"At least {percent(NEARLY_ALL)} of your {_things(site)} look alike to teachers in: "
            f"{listed}.",
            "Questions that differ only there get the same votes. Ask the operator for public "
            "inputs that resemble your patients.",
        )
    if site.data.kind == "image":
        return ok(f"Teachers tell your images apart, by the features of {len(pools)} pool(s).")
    return ok(f"Teachers tell your rows apart in all columns of {len(pools)} pool(s).")


def _things(site: Site) -> str:
    return "images" if site.data.kind == "image" else "rows"


def _flat(task: LearningTask, own: OwnRecords) -> tuple[FlatColumn, ...]:
    match task.schema, own:
        case TaskSchema() as schema, CsvTable() as text:
            return flat_columns(schema, text)
        case ImageSchema() as schema, ImageFiles() as images:
            return flat_images(schema.encode(images).features)
    return ()  # another kind of task than the records: nobody is asked about it


def _sample(text: OwnRecords, site: Site) -> Records:
    data = site.settings.data
    if isinstance(text, ImageFiles):
        return _sampled_images(text)
    roles = (data.label, data.patient_id)
    columns = tuple(read_column(text, name) for name in text.header if name not in roles)
    # Evenly over the file: tables are often sorted by the predicted column.
    rows = np.unique(np.linspace(0, len(text.lines) - 1, SAMPLE).astype(np.int64))
    # For this check alone; a task brings encoders that were fitted on public inputs.
    features = fit_table_encoder(columns, rows).apply(columns, rows)
    cells = canonical_cells(text.known_cells(data.label))
    places = {name: place for place, name in enumerate(sorted_names(set(cells)))}
    return Records(
        features=features,
        labels=np.array([places[cells[row]] for row in rows], dtype=np.int64),
        unit_ids=tuple(str(row) for row in rows),
    )


def _sampled_images(own: ImageFiles) -> Records:
    rows = np.unique(np.linspace(0, len(own) - 1, SAMPLE).astype(np.int64))
    # For this check alone; a task brings size and encoder of public images.
    images = own.read(ImageReading(LARGEST_USUAL_SIDE, LARGEST_USUAL_SIDE, 1), rows.tolist())
    places = {name: place for place, name in enumerate(sorted_names(set(own.labels)))}
    return Records(
        features=fit_image_encoder(images).apply(images),
        labels=np.array([places[own.labels[row]] for row in rows], dtype=np.int64),
        unit_ids=tuple(str(row) for row in rows),
        images=images,
    )
