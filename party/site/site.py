"""The folder of a hospital's node: its identity, its keys, its owner's policy, its files' places.

One hospital is one site: it has one identity, one database with its journal, its ledger and its
audit log, and any number of memberships. The folder is made with the first membership, and never
overwritten. Its secrets are readable by its owner alone.
"""

from __future__ import annotations

import hashlib
import shutil
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from party.errors import MembershipError, SiteError
from party.site.membership import (
    MEMBERSHIPS_FOLDER,
    NODE_KEYS,
    MembershipSettings,
    SiteMembership,
    free_name,
    free_port,
    is_membership_name,
)
from party.site.policy import Policy, Rules
from pate_fed.accounting import PrivacyLedger
from pate_fed.accounting.ranges import RANGES
from pate_fed.data.reading import USUAL, Reading
from pate_fed.inputs import DatasetKind
from pate_fed.nodes import checked, digested_settings, read_named, with_environment, write_named
from pate_fed.nodes.forwarding import Forwarding
from pate_fed.nodes.notices import Notify
from pate_fed.nodes.owner_files import as_fault, make_folder
from pate_fed.nodes.settings_file import settings_text
from pate_fed.rule import RECORDS_VOTE
from pate_fed.votes import RECORDS_PER_TEACHER, teachers_of
from protocols.identity import SigningIdentity
from protocols.invitation import Invitation
from protocols.membership_messages import MOST_DATA_SETS, NamedTally

if TYPE_CHECKING:
    from party.storage import PartyDatabase

SCHEMA_VERSION = 1
SETTINGS_FILE = "party.toml"
DATABASE_FILE = "party.db"
PREFIX = "PATE_PARTY_"
"""Of the environment's one variable, `PATE_PARTY_DATA_FILE`: the path of the table."""

IDENTITY_KEY = "identity.key"
"""The hospital's private key: its holder speaks for the hospital in every federation."""

_UNNAMED = ""
"""In memory, the place of the data set without a name while another is in use."""

_COUNT = {"ge": 0, "le": 10**9}

_FOLDERS = ("teachers", "pools", "log", MEMBERSHIPS_FOLDER)


@dataclass(frozen=True, slots=True)
class DataSettings:
    """A data set of the hospital's own records, as `data add` found it.

    Attributes:
        kind: Kind of its records.
        file: Path of the file or folder; empty before `data add`.
        label: Column that is predicted.
        patient_id: Column that names the patient; empty if each row is a patient's only one.
        digest: SHA-256 of the files, and of how they are read, hex.
        reading: How its files are read.
        notes: Sentences of `data add` on how they are read.
        rows: Number of rows.
        patients: Number of patients at `data add`: a removal changes no other patient's teacher.
        floor: Smallest count of patients' rows that anybody may see.
    """

    kind: DatasetKind = "table"
    file: str = ""
    label: str = ""
    patient_id: str = ""
    digest: str = ""
    rows: int = field(default=0, metadata=_COUNT)
    patients: int = field(default=0, metadata=_COUNT)
    floor: int = field(default=10, metadata=_COUNT)
    reading: Reading = USUAL
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SiteSettings:
    """The settings in the file of a site. All but the memberships holds in every federation.

    Attributes:
        records_per_teacher: Patients of a teacher (or records): their number gives that of the
            teachers, each with one vote.
        teacher_model: Kind of teacher; with neighbors none is trained, and each patient votes.
        device: torch's name of where convolution teachers are trained and vote, such as cuda.
        held_out: Share of the patients who teach no teacher, for evaluations; another one needs new
            teachers.
        lifetime_epsilon: Most epsilon for one patient, over all runs; fixed at the first start.
        delta: Delta of that number; fixed at the first start.
        delta_for_tests: Part of delta kept for tests of stability (stable-*); fixed at the first
            start.
        approval: A person approves each run, or a pool.
        policy: The owner's rules; all others have their default.
        data: Its records that a task asks for which names no data set.
        data_sets: The others, by name.
        audit: Where the records of the audit log are copied.
        notify: Where messages to its people are sent.
        memberships: The settings of each federation, by the site's name for it.
    """

    records_per_teacher: int = field(
        default=RECORDS_PER_TEACHER, metadata=RANGES["records_per_teacher"].metadata
    )
    teacher_model: str = "auto"
    device: str = field(default="cpu", metadata={"max_length": 40})
    held_out: float = field(default=0.0, metadata={"ge": 0, "le": 0.5})
    lifetime_epsilon: float = field(default=5.0, metadata=RANGES["epsilon"].metadata)
    delta: float = field(default=1e-5, metadata=RANGES["delta"].metadata)
    delta_for_tests: float = field(default=0.0, metadata={"ge": 0, "le": 1})
    approval: Literal["each run", "pool"] = "each run"
    policy: dict[str, object] = field(default_factory=dict)
    data: DataSettings = DataSettings()
    data_sets: dict[str, DataSettings] = field(default_factory=dict)
    audit: Forwarding = field(default_factory=Forwarding)
    notify: Notify = field(default_factory=Notify)
    memberships: dict[str, MembershipSettings] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.delta_for_tests >= self.delta:
            raise SiteError("delta_for_tests must be below delta", self.delta_for_tests)
        policy = self.policy_for(frozenset())  # refuses unknown rules, and values that cannot be
        if self.do_records_vote and "record" not in policy.units:
            must = f"teacher_model {RECORDS_VOTE} needs record among the units of the policy"
            raise SiteError(must, "party alone")
        named = self.data_sets.keys() - {_UNNAMED}
        for name in named:
            require_data_name(name)
        if len(named) > MOST_DATA_SETS:
            raise SiteError(f"at most {MOST_DATA_SETS} data sets have a name", len(named))
        self._require_apart()

    @property
    def party(self) -> str:
        """The hospital's name in its first federation; empty before."""
        return next((one.party for one in self.memberships.values()), "")

    @property
    def data_folders(self) -> tuple[Path, ...]:
        """The folders that hold the registered data sets, and may hold the hospital's code."""
        held = (self.data, *self.data_sets.values())
        return tuple(dict.fromkeys(Path(one.file).parent for one in held if one.file))

    @property
    def do_records_vote(self) -> bool:
        """Whether patients vote themselves, near their records, and no teachers."""
        return self.teacher_model == RECORDS_VOTE

    @property
    def teachers(self) -> int:
        """Number of teachers that are trained here, each with one vote; 0 without a table.

        Public: it follows from the number of patients, never from what is known of them. Where
        runs may protect whole hospitals alone there is one, so that noise hides one vote. Where
        records vote it is that of the patients: one who was removed, or is held out, keeps a place.
        """
        if not self.data.patients:
            return 0
        if self.do_records_vote:
            return self.data.patients
        if self.policy_for(frozenset()).units == {"party"}:
            return 1
        return teachers_of(self._teaching, records_per_teacher=self.records_per_teacher)

    @property
    def patients_per_teacher(self) -> float:
        """About how many patients each teacher learns from; public, as `teachers` is."""
        return self._teaching / (self.teachers or 1)

    @property
    def _teaching(self) -> int:
        """About how many patients are not held out: exactly who depends on their ids."""
        return round(self.data.patients * (1 - self.held_out))

    def _require_apart(self) -> None:
        """Refuse bad names, and two memberships with one port or one coordinator."""
        for name in self.memberships:
            if not is_membership_name(name):
                raise SiteError(
                    f"every name in [{MEMBERSHIPS_FOLDER}] must be of small letters, digits and "
                    "single hyphens",
                    repr(name),
                )
        held = self.memberships.values()
        ports = _repeated(one.node_port for one in held)
        if ports:
            raise SiteError("node_port must be another in each membership", f"{ports[0]} twice")
        if _repeated(one.coordinator for one in held):
            raise SiteError("coordinator_key must be another in each membership")

    def new_ledger(self) -> PrivacyLedger:
        """Return the ledger for life as the node's first start makes it."""
        return PrivacyLedger.for_life(
            self.lifetime_epsilon, self.delta, additive_delta=self.delta_for_tests
        )

    def with_membership(self, name: str, settings: MembershipSettings) -> SiteSettings:
        """Return the settings with this membership added or replaced."""
        return replace(self, memberships={**self.memberships, name: settings})

    def with_setting(self, name: str, **changed: Any) -> SiteSettings:
        """Return the settings with some of a membership's changed."""
        return self.with_membership(name, replace(self.memberships[name], **changed))

    def with_tally(self, name: str, tally: NamedTally, *, body: str) -> SiteSettings:
        """Return the settings with a membership's tally pinned: another one gives way."""
        return self.with_setting(
            name,
            tally_name=tally.name,
            tally_key=tally.identity.key.hex(),
            tally_body=body,
        )

    def policy_for(self, pools: frozenset[bytes]) -> Policy:
        """Return the owner's policy, with the pools that were approved."""
        rules = checked(Rules, self.policy, where="[policy] ", fault=SiteError)
        if not rules.own_body:
            rules = replace(rules, own_body=self.party)
        return Policy(**asdict(rules), approved_pools=pools)


@dataclass(frozen=True, slots=True, repr=False)
class Site:
    """A hospital's folder, with SHA-256 of its settings file as it was read or written.

    Its `settings.data` is the data set in use, called `data_set`: see `using`.
    """

    folder: Path
    settings: SiteSettings
    settings_digest: bytes = b""
    data_set: str = ""

    # Opening ----------------------------------------------------------------------------------

    @classmethod
    def create(cls, folder: Path, invitation: Invitation) -> Site:
        """Make a site with its first membership: its identity, its database, its node's keys."""
        make_folder(
            folder,
            exists="a site is made once, in a new folder: remove a half-made one, or take another "
            "--site",
            fault=SiteError,
        )
        for name in _FOLDERS:
            (folder / name).mkdir(mode=0o700)
        from party.storage import PartyDatabase  # noqa: PLC0415 - keeps --help fast

        PartyDatabase.create(folder / DATABASE_FILE).close()
        return cls(folder, SiteSettings()).add(invitation)  # writes the settings file last

    def add(self, invitation: Invitation) -> Site:
        """Add a membership, or renew one that was left; return the site that has it.

        The settings file is written last. A membership missing there is made again. A coordinator's
        federation is joined once. The identity must be there if other memberships are.
        """
        known = self.membership_at(invitation.coordinator.fingerprint)
        if known is not None and not known.has_left:
            raise MembershipError(
                "a coordinator's federation is joined once: if its address changed, write the new "
                f"one under [{MEMBERSHIPS_FOLDER}.{known.name}] in {SETTINGS_FILE}; to join anew, "
                f"first `pate-party leave --federation {known.name}`",
                f"a membership of {known.settings.party} at {known.settings.address}",
            )
        held = self.settings.memberships
        name = known.name if known else free_name(invitation.federation, held)
        ports = {one.node_port for one in held.values()}
        settings = MembershipSettings(
            federation=invitation.federation,
            party=invitation.party,
            address=invitation.address,
            coordinator_key=invitation.coordinator_key.hex(),
            node_port=known.settings.node_port if known else free_port(ports),
            operator_body=known.settings.operator_body if known else "",
        )
        self._make_identity()
        SiteMembership(self, name, settings).make_files(invitation.ca_certificate)
        return self.save(self.settings.with_membership(name, settings))

    @classmethod
    def open(cls, folder: Path) -> Site:
        """Open a site's folder, or raise `SiteError`."""
        settings, digest = digested_settings(
            folder / SETTINGS_FILE,
            SiteSettings,
            version=SCHEMA_VERSION,
            advice=f"a site's folder must hold {SETTINGS_FILE}: `pate-party join` makes one",
            fault=SiteError,
        )
        return cls(folder, settings, digest)

    # Contents ---------------------------------------------------------------------------------

    @property
    def identity(self) -> SigningIdentity:
        """The hospital's identity."""
        content = self._read(IDENTITY_KEY)
        try:
            return SigningIdentity.from_private_bytes(bytes.fromhex(content.decode().strip()))
        except ValueError as error:
            raise SiteError(f"{IDENTITY_KEY} must hold a private key") from error

    @property
    def data(self) -> DataSettings:
        """Its records; the environment may say where this machine has their file.

        Nothing else of a site comes from there: the file's digest is on record as the owner's word.
        """
        if self.data_set:
            return self.settings.data
        return with_environment(
            self.settings.data, prefix=PREFIX, table="DATA_", only={"file"}, fault=SiteError
        )

    def using(self, data_set: str) -> Site:
        """Return the site with another of its data sets in use; "" is the one without a name.

        A name that is not known has no records yet.
        """
        if data_set == self.data_set:
            return self
        plain = self._unnamed(self.settings)
        if not data_set:
            return replace(self, settings=plain, data_set="")
        chosen = plain.data_sets.get(require_data_name(data_set), DataSettings())
        return replace(
            self,
            settings=replace(
                plain, data=chosen, data_sets={_UNNAMED: plain.data, **plain.data_sets}
            ),
            data_set=data_set,
        )

    @property
    def data_sets(self) -> tuple[Site, ...]:
        """The site with each of its registered data sets in use, the one without a name first."""
        names = ("", *self._unnamed(self.settings).data_sets)
        return tuple(one for one in map(self.using, names) if one.settings.data.file)

    @property
    def votes(self) -> dict[str, int]:
        """The votes on each query about a data set, by its name; "" has none."""
        return {one.data_set: one.settings.teachers for one in self.data_sets}

    def _unnamed(self, settings: SiteSettings) -> SiteSettings:
        """Return settings with the data set without a name in use, as the file has them."""
        if not self.data_set:
            return settings
        others = dict(settings.data_sets)
        unnamed = others.pop(_UNNAMED)
        return replace(settings, data=unnamed, data_sets={**others, self.data_set: settings.data})

    @property
    def memberships(self) -> tuple[SiteMembership, ...]:
        """All memberships, those left included."""
        return tuple(
            SiteMembership(self, name, settings)
            for name, settings in self.settings.memberships.items()
        )

    @property
    def current(self) -> tuple[SiteMembership, ...]:
        """The memberships that were not left."""
        return tuple(one for one in self.memberships if not one.has_left)

    def membership(self, name: str | None = None) -> SiteMembership:
        """Return the membership of a name; without a name, the only one."""
        known = self.memberships if name is not None else self.current or self.memberships
        found = [one for one in known if name in (None, one.name)]
        if len(found) != 1:
            names = ", ".join(f"{one.name} ({one.settings.federation})" for one in known)
            raise MembershipError(
                f"--federation must name one of this hospital's: {names or 'it joined none'}",
                "no name" if name is None else repr(name),
            )
        return found[0]

    def membership_at(self, coordinator: bytes) -> SiteMembership | None:
        """Return the membership with this coordinator's fingerprint; None if there is none."""
        found = (one for one in self.memberships if one.coordinator.fingerprint == coordinator)
        return next(found, None)

    def federation_of(self, coordinator: bytes) -> str:
        """Return the name of the federation with this coordinator's fingerprint, for people."""
        found = self.membership_at(coordinator)
        return "an unknown federation" if found is None else found.settings.federation

    def open_database(self) -> PartyDatabase:
        """Open the node's memory. It is made once: a new one would have forgotten everything."""
        from party.storage import PartyDatabase  # noqa: PLC0415 - keeps --help fast

        return PartyDatabase.at(self.path(DATABASE_FILE))

    def path(self, *parts: str) -> Path:
        """Return the path of one of its files."""
        return self.folder.joinpath(*parts)

    # Calls ------------------------------------------------------------------------------------

    def save(self, settings: SiteSettings) -> Site:
        """Write other settings, whole or not at all; return the site that has them."""
        content = settings_text(self._unnamed(settings), version=SCHEMA_VERSION)
        self._write(SETTINGS_FILE, content)
        digest = hashlib.sha256(content).digest()
        return replace(self, settings=settings, settings_digest=digest)

    @property
    def has_keys(self) -> bool:
        """Whether the hospital's identity is there: `leave` removes it with the last membership."""
        return self.path(IDENTITY_KEY).exists()

    def leave(self, name: str) -> None:
        """Remove the keys of a membership's node for good, and with the last one the identity."""
        one = self.membership(name)
        others = [each for each in self.current if each.name != name]
        # The identity first: without it the other keys are worth nothing.
        files = [*([] if others else [self.path(IDENTITY_KEY)]), *map(one.path, NODE_KEYS)]
        left = [path for path in files if path.exists()]
        if not left:
            raise SiteError("a membership must have keys to leave", "none: it left before")
        with as_fault(SiteError, "the keys must be removable"):
            for path in left:
                path.unlink()

    def forget(self, name: str) -> Site:
        """Remove a membership whose keys no coordinator knows; return the site without it."""
        one = self.membership(name)
        held = {each: kept for each, kept in self.settings.memberships.items() if each != name}
        site = self.save(replace(self.settings, memberships=held))
        with as_fault(SiteError, "a membership's folder must be removable"):
            shutil.rmtree(one.path())
        return site

    def _make_identity(self) -> None:
        """Make the identity, unless it is there. Leaving the last membership removes it."""
        if self.has_keys:
            return
        if self.current:
            raise SiteError(
                f"{IDENTITY_KEY} must be there: put it back from your safe, or end the setup "
                "with `pate-party leave`",
            )
        self._write(IDENTITY_KEY, SigningIdentity.generate().private_bytes.hex().encode())

    def _read(self, name: str) -> bytes:
        return read_named(self.path(name), name, fault=SiteError)

    def _write(self, name: str, content: bytes) -> None:
        write_named(self.path(name), name, content, fault=SiteError)

    def __repr__(self) -> str:
        return f"Site({self.folder.name}, {len(self.settings.memberships)} membership(s))"


def require_data_name(name: str) -> str:
    """Return a data set's name, or raise `SiteError` where none can have it."""
    if not is_membership_name(name):
        raise SiteError(
            "a data set's name must be of small letters, digits and single hyphens", repr(name)
        )
    return name


def _repeated(values: Iterable[Any]) -> list[Any]:
    return [value for value, count in Counter(values).items() if count > 1]
