"""`manifest.json`: versions, seed and hashes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pate_fed.record.base import About, Count, File, RecordTable
from pate_fed.run_folder import MANIFEST


class TeacherProof(RecordTable):
    """One teacher's records in the proof of a partition."""

    party: Annotated[int, Field(ge=0), About("index of the party", "no")]
    teacher: Annotated[int, Field(ge=0), About("index within its party", "no")]
    units: Annotated[Count, About("privacy units", "no")]
    records: Annotated[Count, About("records", "no")]
    digest: Annotated[str, About("of ids and contents, in hex; their order does not matter", "no")]


class PartitionProof(RecordTable):
    """Counts and keyed hashes that fix a partition without naming a patient."""

    schema_version: Annotated[Literal[1], About("of this table", "no")]
    hash: Annotated[
        str,
        About("method: HMAC-SHA256 with a fresh, discarded key for each run", "no"),
    ]
    units: Annotated[Count, About("privacy units in all", "no")]
    records: Annotated[Count, About("records in all", "no")]
    repeated_contents: Annotated[
        Count, About("records whose content another teacher has under another id", "no")
    ]
    root: Annotated[str, About("digest of all entries", "no")]
    teachers: Annotated[tuple[TeacherProof, ...], About("in order", "no")]


class SplitKeys(RecordTable):
    """Of a simulation, for its next run and for its student.

    Neither is in the report.
    """

    seed: Annotated[
        str,
        About(
            "in hex: of the draws that share out records and train; fresh noise does not follow "
            "from it",
            "no",
        ),
    ]
    coordinator: Annotated[
        str,
        About(
            "in hex: private key of its one-time coordinator, with which `pate-fed student` seals "
            "anew; a rehearsal's seal proves nothing to others",
            "no",
        ),
    ]


class LostSetup(RecordTable):
    """A setup that failed, so that the run was set up anew."""

    run_id: Annotated[str, About("its id", "no")]
    transcript_head: Annotated[str, About("head of its transcript", "no")]
    reason: Annotated[str, About("of the failure", "no")]


class EvaluatedRun(RecordTable):
    """The run whose labels and student these are."""

    run: Annotated[str, About("its name", "no")]
    run_id: Annotated[str, About("its id", "no")]


class Manifest(File):
    """Content of `manifest.json`."""

    FILE = MANIFEST

    edition: Annotated[Literal["public"] | None, About("of a public edition alone", "yes")] = None
    begun_on: Annotated[
        str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$"), About("the run's first day (UTC)", "yes")
    ]
    federation: Annotated[str, About("its name, of a deployed run", "no")] = ""
    pate_fed: Annotated[str, About("version of this software", "yes")]
    python: Annotated[str | None, About("version of Python", "no")]
    versions: Annotated[
        dict[str, str],
        About("of `cryptography`, `flwr`, `numpy`, `scikit-learn`, `scipy`, `torch`", "no"),
    ]
    seed: Annotated[int | None, About("of the noise; null for fresh noise", "no")]
    suite: Annotated[str, About("sealing suite", "yes")]
    run_id: Annotated[str, About("digest of the run record; fresh each time", "yes")]
    transcript_head: Annotated[str, About("head of the transcript", "yes")]
    heads_compared: Annotated[
        tuple[str, ...],
        About("fingerprints of the hospitals that signed this head at the closing", "no"),
    ]
    not_heard: Annotated[tuple[str, ...], About("names of the other hospitals", "no")]
    pool_sha256: Annotated[str | None, About("digest of the public pool", "pool")]
    earlier_setups: Annotated[tuple[LostSetup, ...], About("lost ones, oldest first", "no")]
    partition: Annotated[
        PartitionProof | None, About("of a simulation: that no patient has two teachers", "no")
    ] = None
    split: Annotated[SplitKeys | None, About("of a simulation", "no")] = None
    evaluated: Annotated[
        EvaluatedRun | None,
        About("of an evaluation; ids and transcript above are then its own", "no"),
    ] = None

    @property
    def is_public(self) -> bool:
        """Whether it is of a public edition."""
        return self.edition == "public"
