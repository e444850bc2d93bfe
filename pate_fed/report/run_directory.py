"""The directory of one run: written whole or not at all, read back strictly.

docs/reference/run-directory.md lists its files. Everything is written into a hidden folder beside
the final place, which is renamed as the last step: a directory under its final name is a finished
run. It stays readable by its owner alone (0700), because `privacy.json` and the report hold numbers
that depend on private data.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, NamedTuple, Self

from pate_fed.cells import csv_line, read_cell
from pate_fed.errors import InvalidParameterError, RunDirectoryError
from pate_fed.regular_files import open_regular, read_regular
from pate_fed.run_folder import (
    ANNEXES,
    AUDIT,
    IMAGES,
    LABELS,
    MANIFEST,
    METRICS,
    PRIVACY,
    REPORT,
    SENT,
    SETTINGS,
    STUDENT,
    TRANSCRIPT,
    exchange,
    publish,
    refuse_existing,
    sync,
    whole_folder,
    writing,
)

if TYPE_CHECKING:
    from pate_fed.record import Audit, Manifest, Metrics, Privacy, RecordTable, Settings

MOST_SHEET_BYTES = 2**25
_QUERY_ID = "query_id"
_LABELS_HEADER = [_QUERY_ID, "label"]
_ROW, _DRAWN_IN, _REINFORCED = "row", "drawn_in", "reinforced"
_SENT_HEADER = ["hospital", "packet", "content", "bytes", "sha256"]


class SentPacket(NamedTuple):
    """A packet that a hospital sent to the coordinator.

    Attributes:
        kinds: Types of the messages in it; none for a receipt.
    """

    hospital: str
    kinds: tuple[str, ...]
    size: int
    digest: str


class RunDirectory:
    """A run directory that is being written; `open_new` makes it.

    Each file is written once. Its files are visible to others only when the block of `open_new`
    ends without an error.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    @contextmanager
    def open_new(cls, path: str | os.PathLike[str]) -> Iterator[Self]:
        """Write a run directory, all of it or nothing.

        Missing parents are made. On any error, Ctrl-C included, all its files and folders are
        removed again.
        """
        target = Path(path)
        refuse_existing(target)
        with whole_folder(target, publish) as folder:
            yield cls(folder)

    @classmethod
    @contextmanager
    def open_in_place(cls, path: str | os.PathLike[str]) -> Iterator[Self]:
        """Write a finished run directory anew: the old one stays until the new one is whole."""
        target = Path(path)
        if not target.is_dir() or target.is_symlink():
            raise RunDirectoryError("a run directory must be a folder", target)
        with whole_folder(target, exchange) as folder:
            yield cls(folder)

    def write_record(self, *tables: RecordTable) -> None:
        """Write each table into its file."""
        for table in tables:
            self._write(table.FILE, table.as_text())

    def write_json(self, name: str, content: Mapping[str, object]) -> None:
        """Write one JSON object: keys sorted, two spaces, a newline at the end."""
        try:
            text = json.dumps(content, indent=2, sort_keys=True, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise InvalidParameterError(
                f"{name} must hold finite numbers, text, lists and tables", str(error)
            ) from error
        self._write(name, text + "\n")

    def write_labels(
        self,
        rows: Iterable[tuple[int | str, str]],
        *,
        drawn_in: Mapping[int, str] | None = None,
        reinforced: Mapping[int, str] | None = None,
        row_names: Sequence[str] | None = None,
        labels: Sequence[str] = (),
    ) -> None:
        """Write `labels.csv`: the id of each query asked, and its class name or "".

        With several labels a row is of an input, and has a column for each of them.

        Args:
            drawn_in: Name of the earlier run that drew a label, by query id. The column is there
                only if there are some.
            reinforced: Class that a student kept for a query without an answer, likewise.
            row_names: Line or image of the user's file that each input of the pool is, for a column
                that leads back to it; None where nobody could look it up.
            labels: Names of several labels. Query i * labels + l is the question about label l of
                input i, and all of an input are there, one after another.
        """
        listed = list(rows)
        header = [_QUERY_ID, *labels] if labels else [*_LABELS_HEADER]
        table = [[str(query_id), label] for query_id, label in listed]
        if labels:
            firsts = range(0, len(listed), len(labels))
            answers = [[label for _, label in listed[at : at + len(labels)]] for at in firsts]
            listed = [(int(listed[at][0]) // len(labels), "") for at in firsts]
            table = [[str(of), *row] for (of, _), row in zip(listed, answers, strict=True)]
            row_names = None if row_names is None else row_names[:: len(labels)]
        if row_names is not None:
            header.append(_ROW)
            table = [
                [*row, row_names[int(query_id)]]
                for row, (query_id, _) in zip(table, listed, strict=True)
            ]
        for name, known in ((_DRAWN_IN, drawn_in), (_REINFORCED, reinforced)):
            if known:
                header.append(name)
                texts = {str(query_id): text for query_id, text in known.items()}
                table = [[*row, texts.get(row[0], "")] for row in table]
        self._write_table(LABELS, (header, *table))

    def write_images(self, sheet: bytes) -> None:
        """Write `images.png`: see `pate_fed.report.thumbnails`."""
        with writing(self.folder / IMAGES):
            (self.folder / IMAGES).write_bytes(sheet)

    def write_sent(self, packets: Iterable[SentPacket]) -> None:
        """Write `sent.csv`: a row for each packet, hospital by hospital, in the order sent."""
        by_hospital: dict[str, list[SentPacket]] = {}
        for packet in packets:
            by_hospital.setdefault(packet.hospital, []).append(packet)
        rows = (
            [name, str(number), "+".join(one.kinds), str(one.size), one.digest]
            for name in sorted(by_hospital)
            for number, one in enumerate(by_hospital[name], start=1)
        )
        self._write_table(SENT, (_SENT_HEADER, *rows))

    def write_transcript(self, lines: Iterable[str], *, name: str = TRANSCRIPT) -> None:
        """Write a transcript, one line each; a line has no line end of its own."""
        self._write(name, "".join(f"{line}\n" for line in lines))

    def write_report(self, page: str) -> None:
        """Write `report.html`; last, since it lists the digests of all other files."""
        self._write(REPORT, page)

    def write_annexes(self, page: str) -> None:
        """Write `annexes.html`."""
        self._write(ANNEXES, page)

    def student_directory(self) -> Path:
        """Make `student/`, where the model and its card go, and return it."""
        student = self.folder / STUDENT
        with writing(student):
            student.mkdir(exist_ok=True)
        return student

    def read_back(self) -> FinishedRun:
        """Read the files written so far, as `read_run` will: the report is made of this."""
        return read_run(self.folder)

    def _write_table(self, name: str, rows: Iterable[Sequence[str]]) -> None:
        self._write(name, "".join(map(csv_line, rows)))

    def _write(self, name: str, text: str) -> None:
        if PurePath(name).name != name:
            raise InvalidParameterError("a file of the run directory must be a plain name", name)
        with (
            writing(self.folder / name),
            (self.folder / name).open("x", encoding="utf-8", newline="") as file,
        ):
            file.write(text)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class FinishedRun:
    """The content of a run directory.

    Attributes:
        settings, manifest, metrics, privacy: Its record.
        labels: Query id and class name, or "" for "no answer", in the order of `labels.csv`.
        digests: SHA-256 in hex of every file but the report, by its path in the directory.
        sent: The packets of `sent.csv`; none where it is absent.
        audit: `audit.json`; None if nobody audited the run.
        drawn_in: Name of the earlier run that drew a label, by query id.
        reinforced: Class name that a student kept for a query without an answer, by query id.
        images: Small copies of labelled public images, a PNG file; empty for a table.
    """

    settings: Settings
    manifest: Manifest
    metrics: Metrics
    privacy: Privacy
    labels: tuple[tuple[str, str], ...]
    digests: Mapping[str, str]
    sent: tuple[SentPacket, ...] = ()
    audit: Audit | None = None
    drawn_in: Mapping[str, str] = field(default_factory=dict)
    reinforced: Mapping[str, str] = field(default_factory=dict)
    images: bytes = b""

    def __repr__(self) -> str:
        return f"FinishedRun(labels={len(self.labels)}, files={len(self.digests)})"

    @property
    def is_simulated(self) -> bool:
        """Whether either file says that the run was a simulation."""
        return self.metrics.simulated or self.privacy.simulated


def read_run(path: str | os.PathLike[str]) -> FinishedRun:
    """Read a finished run directory, strictly: any other is a RunDirectoryError."""
    folder = Path(path)
    if not folder.is_dir():
        raise RunDirectoryError("a run directory must be a folder", folder)
    from pate_fed.record import (  # noqa: PLC0415 - keeps --help fast
        Audit,
        Manifest,
        Metrics,
        Privacy,
        Settings,
    )

    settings = Settings.of_toml(_read_text(folder / SETTINGS))
    several = () if isinstance(settings.label, str | None) else settings.label
    labels, drawn_in, reinforced = _read_labels(folder / LABELS, several)
    audit = folder / AUDIT
    return FinishedRun(
        settings=settings,
        manifest=Manifest.read(_read_text(folder / MANIFEST)),
        metrics=Metrics.read(_read_text(folder / METRICS)),
        privacy=Privacy.read(_read_text(folder / PRIVACY)),
        labels=labels,
        digests=digests_of(folder),
        sent=_read_sent(folder / SENT),
        audit=Audit.read(_read_text(audit)) if audit.exists() else None,
        drawn_in=drawn_in,
        reinforced=reinforced,
        images=_read_images(folder / IMAGES),
    )


def replace_report(path: str | os.PathLike[str], page: str, *, name: str = REPORT) -> None:
    """Put a page, such as a new `report.html`, into a finished run directory, in one step."""
    folder = Path(path)
    with writing(folder / name):
        descriptor, new = tempfile.mkstemp(prefix=f".{name}.", dir=folder)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
                file.write(page)
                file.flush()
                os.fsync(file.fileno())
            Path(new).replace(folder / name)
        except BaseException:
            Path(new).unlink(missing_ok=True)
            raise
        sync(folder)


def keep_audit(path: str | os.PathLike[str], found: Audit) -> None:
    """Put the findings of an audit into a finished run directory, in place of earlier ones."""
    replace_report(path, found.as_text(), name=AUDIT)


def _read_text(path: Path) -> str:
    try:
        return read_regular(path).decode("utf-8")
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise RunDirectoryError(f"a run directory must hold a readable {path.name}", reason) from (
            error
        )
    except UnicodeDecodeError as error:
        raise RunDirectoryError(f"{path.name} must be UTF-8") from error


def _read_labels(
    path: Path, labels: tuple[str, ...]
) -> tuple[tuple[tuple[str, str], ...], dict[str, str], dict[str, str]]:
    """Return query ids and labels; the runs that drew them; and the labels that a student kept."""
    rows = _read_table(path)
    header = rows[0] if rows else []
    named = [_QUERY_ID, *labels] if labels else _LABELS_HEADER
    own = header[len(named) :]
    further = [name for name in (_ROW, _DRAWN_IN, _REINFORCED) if name in own]
    if header != [*named, *further]:
        raise RunDirectoryError(f"{path.name} must begin with {','.join(named)}")
    if labels:
        return _read_questions(rows[1:], len(labels), name=path.name), {}, {}
    drawn_in, reinforced = (
        {row[0]: row[header.index(name)] for row in rows[1:] if row[header.index(name)]}
        if name in header
        else {}
        for name in (_DRAWN_IN, _REINFORCED)
    )
    return tuple((row[0], row[1]) for row in rows[1:]), drawn_in, reinforced


def _read_questions(
    rows: list[list[str]], labels: int, *, name: str
) -> tuple[tuple[str, str], ...]:
    """Return the id and answer of each question about several labels, input by input."""
    if not all(row[0].isdecimal() for row in rows):
        raise RunDirectoryError(f"{name} must name inputs by their number")
    return tuple(
        (str(int(row[0]) * labels + place), answer)
        for row in rows
        for place, answer in enumerate(row[1 : labels + 1])
    )


def _read_sent(path: Path) -> tuple[SentPacket, ...]:
    if not os.path.lexists(path):
        return ()
    rows = _read_table(path)
    if not rows or rows[0] != _SENT_HEADER:
        raise RunDirectoryError(f"{path.name} must begin with hospital,packet")
    if not all(row[3].isdecimal() for row in rows[1:]):
        raise RunDirectoryError(f"{path.name} must hold sizes in bytes")
    return tuple(
        SentPacket(name, tuple(filter(None, content.split("+"))), int(size), digest)
        for name, _, content, size, digest in rows[1:]
    )


def _read_images(path: Path) -> bytes:
    if not os.path.lexists(path):
        return b""
    try:
        return read_regular(path, most_bytes=MOST_SHEET_BYTES)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise RunDirectoryError(f"{path.name} must be readable", reason) from error


def _read_table(path: Path) -> list[list[str]]:
    """Read a table; every row has as many cells as the first."""
    text = io.StringIO(_read_text(path), newline="")
    try:
        written = csv.reader(text, strict=True)
        rows = [[read_cell(cell) for cell in row] for row in written]
    except (csv.Error, ValueError) as error:
        raise RunDirectoryError(f"{path.name} must be CSV", str(error)) from error
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(rows[0]):
            raise RunDirectoryError(
                f"{path.name} must have {len(rows[0])} cells a row", f"{len(row)} in row {number}"
            )
    return rows


def digests_of(folder: Path) -> dict[str, str]:
    """Return the SHA-256 in hex of every file of a run but its pages, by its path in there."""
    digests = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        is_page = name in (REPORT, ANNEXES)
        if path.is_symlink() or not path.is_file() or is_page or path.name.startswith("."):
            continue
        try:
            with open_regular(path) as file:
                digests[name] = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise RunDirectoryError(f"{path.name} must be readable", reason) from error
    return digests
