"""One end's material of a batch in a file, and its audit by somebody who sees no vote.

Material holds the end's opened parts of the batch and its secrets of it, never its key: nothing of
another batch can be read with it. What the end heard holds none of that: the auditor of the other
end needs it. Whoever has both ends' material of one batch reads each hospital's votes in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Final, Self

from coordinator.errors import UsageError
from coordinator.tally.served_run import ServedRun, noise_law
from pate_fed.nodes.owner_files import as_fault
from pate_fed.regular_files import read_regular
from protocols import wire
from protocols.envelope import SealingKey
from protocols.errors import ProtocolError
from protocols.fields import DIGEST_BYTES
from protocols.identity import PublicIdentity
from protocols.messages import KeyStatement
from protocols.values import decode_value, encode_value
from protocols.verified import (
    CheckStep,
    Exchanged,
    ReportTaken,
    SecretsDrawn,
    SideFindings,
    SideMaterial,
    SideSecrets,
    audit_side,
)
from protocols.verified.vote_side import ListedReport, report_taken, reports_in
from protocols.vote_messages import ReportList

MATERIAL_VERSION: Final = 2
ENDS: Final = ("coordinator", "tally")
_SECRETS: Final = ("nonce", "noise_seed", "parts", "headers")


@dataclass(frozen=True, slots=True)
class SideFile:
    """One end's file of a batch.

    Attributes:
        end: Whose it is: "coordinator" or "tally".
        coordinator: Public key of the coordinator's identity.
        record: Frame.
        plan: Frame.
        told: Frames of both ends, as this end has them.
        material: Opened parts and secrets; None in a file of what it heard.
    """

    end: str
    coordinator: bytes
    record: bytes
    plan: bytes
    told: tuple[bytes, ...]
    material: SideMaterial | None = field(repr=False)

    @classmethod
    def of_steps(
        cls,
        end: str,
        steps: Sequence[CheckStep],
        *,
        coordinator: PublicIdentity,
        record: bytes,
        plan: bytes,
        key: SealingKey | None,
    ) -> Self:
        """Return a file of an end's steps; `UsageError` where it told nothing.

        `key` opens the end's parts; without it the file is of what it heard.
        """
        drawn = [step for step in steps if isinstance(step, SecretsDrawn)]
        if not drawn:
            raise UsageError("a batch must have begun to be checked")
        frames = [
            frame
            for step in steps
            if isinstance(step, Exchanged)
            for frame in (step.received, step.sent)
            if frame
        ]
        made = cls(end, coordinator.key, record, plan, tuple(frames), None)
        if key is None:
            return made
        asked = made.run.plan_of(plan, coordinator=coordinator)
        secrets = SideSecrets(drawn[0].nonce, drawn[0].noise_seed)
        material = SideMaterial.of(
            made.run.batch_of(*asked),
            secrets,
            _reports_of(steps, frames, is_tally=made.is_tally),
            key=key,
            is_tally=made.is_tally,
        )
        return replace(made, material=material)

    @property
    def is_tally(self) -> bool:
        """Whether it is the tally's."""
        return self.end == ENDS[1]

    def to_bytes(self) -> bytes:
        """Return it as the content of a file."""
        table: dict[str, Any] = {
            "version": MATERIAL_VERSION,
            "end": self.end,
            "coordinator": self.coordinator,
            "record": self.record,
            "plan": self.plan,
            "told": list(self.told),
        }
        if self.material is not None:
            secrets = self.material.secrets
            parts = [[hospital, part] for hospital, part in sorted(self.material.parts.items())]
            values = secrets.nonce, secrets.noise_seed, parts, list(self.material.headers)
            table |= dict(zip(_SECRETS, values, strict=True))
        return encode_value(table)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file; `UsageError` where it is none."""
        with as_fault(UsageError, f"{path.name} must be readable"):
            content = read_regular(path)
        try:
            return cls._of_table(decode_value(content))
        except (ProtocolError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise UsageError(f"{path.name} must be an end's file of a batch, as made") from error

    @classmethod
    def _of_table(cls, table: dict[str, Any]) -> Self:
        secrets = {name: table.pop(name) for name in _SECRETS if name in table}
        if table.pop("version") != MATERIAL_VERSION or table["end"] not in ENDS:
            raise ValueError
        made = cls(**{**table, "told": tuple(table["told"])}, material=None)
        frames = (made.coordinator, made.record, made.plan, *made.told)
        if not all(type(frame) is bytes for frame in frames):
            raise TypeError
        if not secrets:
            return made
        nonce, seed, parts, headers = (secrets[name] for name in _SECRETS)
        opened = dict(parts)
        kinds = {type(value) for value in (nonce, seed, *chain(*opened.items()), *headers)}
        if kinds != {bytes} or {len(nonce), len(seed)} != {DIGEST_BYTES}:
            raise TypeError
        material = SideMaterial(SideSecrets(nonce, seed), opened, tuple(headers))
        return replace(made, material=material)

    @property
    def run(self) -> ServedRun:
        """The run, whose record is the coordinator's."""
        return ServedRun.of(self.record, coordinator=PublicIdentity(self.coordinator))


@dataclass(frozen=True, slots=True)
class SideVerdict:
    """What an audit found.

    Attributes:
        end: Which was audited.
        ends: Fingerprints of coordinator and tally, to compare with the known ones.
        plan_digest: The batch's.
        findings: Wrong messages, and the hospitals that they are about.
    """

    end: str
    ends: tuple[bytes, bytes]
    plan_digest: bytes
    findings: SideFindings


def audit_files(audited: SideFile, heard: SideFile) -> SideVerdict:
    """Compute again all that an end told in a batch, its noise included, and compare.

    Args:
        audited: Its material.
        heard: What the other end heard of the same batch: what really left the audited one.

    Raises:
        UsageError: both ends' material, or none, or files of one end, or of two batches.
        ProtocolError: a frame is not of one of the two; or a part is not its hospital's.
        CoordinatorError: the run is none of this form.
    """
    if audited.material is None:
        raise UsageError("the first file must be the audited end's material", "what it heard")
    if heard.material is not None:
        raise UsageError(
            "of the other end an auditor must have what it heard, and no more: with both ends' "
            "material every vote of the batch can be read",
            "two ends' material",
        )
    if heard.end == audited.end:
        raise UsageError("the second file must be the other end's", "one of the same end")
    if (audited.coordinator, audited.record, audited.plan) != (
        heard.coordinator,
        heard.record,
        heard.plan,
    ):
        raise UsageError("both files must be of one batch")
    run, coordinator = audited.run, PublicIdentity(audited.coordinator)
    statement = wire.expect(wire.decode(run.record.tally), KeyStatement)
    tally = PublicIdentity(statement.identity_key)
    plan, asked = run.plan_of(audited.plan, coordinator=coordinator)
    findings = audit_side(
        run.batch_of(plan, asked),
        audited.material,
        # What the audited end told is what the other one heard, whatever it has of it now.
        [*heard.told, *_by(audited.told, heard, tally)],
        is_tally=audited.is_tally,
        ends=(coordinator, tally),
        hospitals=run.hospitals,
        least_parties=run.record.threshold,
        draw_noise=noise_law(run.terms),
    )
    ends = coordinator.fingerprint, tally.fingerprint
    return SideVerdict(audited.end, ends, plan.digest, findings)


def _reports_of(
    steps: Sequence[CheckStep], frames: Sequence[bytes], *, is_tally: bool
) -> list[ListedReport]:
    """Return a batch's reports as an end has them."""
    if not is_tally:
        return [report_taken(step.report) for step in steps if isinstance(step, ReportTaken)]
    told = (wire.decode(frame).message for frame in frames)
    lists = [message for message in told if isinstance(message, ReportList)]
    return list(reports_in(lists[0])) if lists else []


def _by(frames: Sequence[bytes], end: SideFile, tally: PublicIdentity) -> list[bytes]:
    """Return the frames that an end signed."""
    signer = tally if end.is_tally else PublicIdentity(end.coordinator)
    found = []
    for frame in frames:
        try:
            wire.decode(frame).verify(signer)
        except ProtocolError:
            continue
        found.append(frame)
    return found
