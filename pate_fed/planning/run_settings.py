"""Settings of a run, simulated or real, as a person gave them.

`RunSettings` holds the given values, and None for the others. `pate_fed.planning.resolving` fills
it in once the data are known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, get_args

from pate_fed.accounting.costs import NoisePlace, PrivacyUnit
from pate_fed.accounting.ranges import broken_ranges
from pate_fed.data import DatasetKind, DataSource
from pate_fed.errors import InvalidSettingError
from pate_fed.mechanisms import SPECS, Spec, specs_with
from pate_fed.options import OPTIONS, fields_of, option_of
from pate_fed.partition import PartitionScheme
from pate_fed.planning.defaults import usual_mechanism
from pate_fed.planning.sum_advice import VERIFIED, Sums, require_enough, require_place
from pate_fed.rule import CAPS, PARAMETERS, RECORDS_VOTE, Caps, Rule
from pate_fed.terms import MOST_PURPOSE, RECORD_MECHANISMS, is_purpose
from pate_fed.votes import NEAR_SHARE

if TYPE_CHECKING:
    from pate_fed.record import Settings
    from pate_fed.students.facts import LabelFacts


def require_in_range(settings: Any) -> None:
    """Check every number of settings that has a range."""
    for name, rule, number in broken_ranges(settings):
        raise InvalidSettingError(f"{option_of(name)} must be {rule}", number)


@dataclass(frozen=True, slots=True)
class RunSettings:
    """A run as it was asked for; None means "choose for me".

    `pate_fed.options` describes each value, but for these.

    Attributes:
        purpose: Reason for the run, for its approvers and its report; "" where nobody stated one.
    """

    data: DataSource
    suite: str
    rule: Rule
    caps: Caps = CAPS
    parties: int | None = None
    teachers: int | None = None
    records_per_teacher: int | None = None
    party_teachers: tuple[int, ...] | None = None
    partition: PartitionScheme | None = None
    select: str | None = None
    form: str = "additive"
    unit: PrivacyUnit | None = None
    weights: tuple[int, ...] | None = None
    delta: float = 1e-5
    epsilon: float = 5.0
    party_epsilons: tuple[float, ...] | None = None
    teacher: str = "auto"
    device: str = "cpu"
    class_balance: str = "auto"
    prevalence: tuple[float, ...] | None = None
    patients: int | None = None
    student: str = "auto"
    coverage: float | None = None
    evaluate: str = "public"
    evaluation_epsilon: float | None = None
    evaluate_by: tuple[str, ...] = ()
    engine: str = "local"
    seed: int | None = None
    purpose: str = ""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Return the settings that a person gave, with the usual mechanism if they name none.

        Of a verified sum the aggregators add the noise, unless they name another place.
        """
        given = {name: value for name, value in given.items() if value is not None}
        if given.get("form") == VERIFIED:
            given = {"noise": "aggregators", **given}
        data, rule = DataSource(**fields_of("data", given)), fields_of("rule", given)
        labels = len(data.several_labels) or None
        usual = usual_mechanism(data.name, may_refuse="vote_threshold" in rule)
        if given.get("teacher") == RECORDS_VOTE and "vote_threshold" not in rule:
            usual = RECORD_MECHANISMS[0]
        return cls(
            data=data,
            rule=Rule(**{"mechanism": usual, **rule}),
            caps=Caps(**fields_of("caps", given), labels=labels),
            **fields_of("", given),
        )

    def changed(self, given: Mapping[str, Any]) -> Self:
        """Return settings with other values by names of `pate_fed.options`; None opens them."""
        return replace(
            self,
            data=replace(self.data, **fields_of("data", given)),
            rule=replace(self.rule, **fields_of("rule", given)),
            caps=replace(self.caps, **fields_of("caps", given)),
            **fields_of("", given),
        )

    def check(self, sums: Sums) -> None:
        """Refuse wrong settings that show without data."""
        self.check_alone()
        if self.parties is not None:
            require_enough(self.parties, form=self.form, sums=sums)
        require_place(self.rule, sums[self.form])
        if self.rule.at_parties and not sums[self.form].hides_vectors:
            raise InvalidSettingError(
                "--noise parties must hide the votes: one hospital's noise is too little for it",
                "--sum plain",
            )

    def check_alone(self) -> None:
        """Refuse wrong settings that show without data, whatever the secure sum."""
        require_in_range(self)
        self._check_rule()
        if self.teachers is not None and self.records_per_teacher is not None:
            raise InvalidSettingError("--records-per-teacher must be without --teachers")
        if self.weights == ():
            raise InvalidSettingError("--weights must be at least 1 each")
        has_columns = self.data.name == "csv" or self.data.lists_images
        if self.partition == "column" and has_columns and not self.data.hospital_column:
            raise InvalidSettingError("--partition column needs --hospital COLUMN")
        if not is_purpose(self.purpose):
            raise InvalidSettingError(
                f"--purpose must be one line of at most {MOST_PURPOSE} letters",
                f"{len(self.purpose)} letters",
            )
        if self.coverage is not None and (self.spec.learns or self.asks_by_student):
            raise InvalidSettingError(
                "--coverage needs queries that no student chooses or answers",
                self.rule.mechanism if self.spec.learns else f"--select {self.select}",
            )
        if self.coverage is not None and self.votes_by_cluster:
            raise InvalidSettingError(
                "--coverage needs teachers that vote on a row alone", f"--select {self.select}"
            )
        self._check_data_options()
        self._check_evaluation()
        self._check_labels()
        self._check_records()

    def _check_records(self) -> None:
        """Refuse settings for which the price of records that vote is not proved."""
        if not self.do_records_vote:
            if self.caps.patient_votes is not None:
                raise InvalidSettingError(
                    f"--votes-per-patient is for --teacher {RECORDS_VOTE}", self.teacher
                )
            return
        kind = f"--teacher {RECORDS_VOTE} must"
        if self.unit == "party":
            must = f"{kind} protect patients: a hospital has as many votes as patients"
            raise InvalidSettingError(must, "--unit party")
        if self.rule.opens_noisy:
            raise InvalidSettingError(
                f"{kind} have {self._one_noise}",
                self.form if self.rule.at_aggregators else self.rule.noise_place,
            )
        if self.coverage is not None:
            must = f"{kind} have no --coverage: a cap lets rows depend on each other"
            raise InvalidSettingError(must, self.coverage)
        if self.rule.mechanism not in RECORD_MECHANISMS:
            allowed = " or ".join(RECORD_MECHANISMS)
            raise InvalidSettingError(f"{kind} have --mechanism {allowed}", self.rule.mechanism)
        if self.caps.labels is not None:
            raise InvalidSettingError(f"{kind} have one label", self.caps.labels)
        if self.spec.may_refuse and self.rule.vote_threshold is None:
            raise InvalidSettingError(f"{kind} have --vote-threshold with --mechanism threshold")
        if self.teachers is not None or self.records_per_teacher not in (None, 1):
            raise InvalidSettingError(
                f"{kind} be without --teachers and --records-per-teacher: each patient votes",
                self.teachers or self.records_per_teacher or 0,
            )

    def _check_labels(self) -> None:
        """Refuse settings that several labels have no use or no price for."""
        caps = self.caps
        if caps.labels is None:
            if caps.label_cap is not None:
                raise InvalidSettingError("--label-cap is for several labels", "one")
            return
        if caps.label_cap is not None and 2 * caps.label_cap >= caps.labels:
            raise InvalidSettingError(
                f"--label-cap must be below half of the {caps.labels} labels to lower the price; "
                "leave it out for none",
                caps.label_cap,
            )
        if caps.label_cap is not None and self.class_balance == "equal":
            raise InvalidSettingError(
                "--label-cap needs teachers that say yes as they predict: --class-balance natural",
                "equal",
            )
        for name, number in (("queries", caps.max_asks), ("batch_size", caps.batch_size)):
            if (number or 0) % caps.labels:
                raise InvalidSettingError(
                    f"{option_of(name)} counts questions: it must be a multiple of the "
                    f"{caps.labels} labels of each input",
                    number,
                )
        of_one = {
            "--evaluate private": self.evaluate == "private",
            "--max-answers": caps.max_answers is not None,
            "--partition dirichlet": self.partition == "dirichlet",
            "--prevalence": self.prevalence is not None,
            "--coverage": self.coverage is not None,
            f"--select {self.select}": self.asks_by_student or self.votes_by_cluster,
            f"--mechanism {self.rule.mechanism}": self.spec.learns or self.spec.shows_counts,
        }
        for option, is_given in of_one.items():
            if is_given:
                raise InvalidSettingError(f"{option} is for one label", f"{caps.labels} labels")

    @property
    def _one_noise(self) -> str:
        """What somebody is to type so that the coordinator alone adds the noise."""
        return "another --sum" if self.rule.at_aggregators else "--noise coordinator"

    def _check_evaluation(self) -> None:
        if self.evaluate not in ("public", "private"):
            raise InvalidSettingError("--evaluate must be public or private", self.evaluate)
        if self.evaluate == "private" and self.rule.opens_noisy:
            raise InvalidSettingError(
                f"--evaluate private needs {self._one_noise}, which adds its noise",
                self.rule.noise_place,
            )
        if self.evaluate == "public" and self.evaluation_epsilon:
            raise InvalidSettingError("--evaluation-epsilon needs --evaluate private", "public")
        if len(set(self.evaluate_by)) < len(self.evaluate_by):
            raise InvalidSettingError(
                "--evaluate-by must name a column once", ", ".join(self.evaluate_by)
            )

    def _check_rule(self) -> None:
        """Refuse parameters and caps of other mechanisms, and of the other place of the noise."""
        rule, caps = self.rule, self.caps
        place = rule.noise_place
        if place not in get_args(NoisePlace):
            raise InvalidSettingError(f"--noise must be {' or '.join(get_args(NoisePlace))}", place)
        if rule.colluders is not None and not rule.at_parties:
            raise InvalidSettingError("--colluders is for --noise parties", place)
        possible = specs_with(place)
        if rule.mechanism not in possible:
            raise InvalidSettingError(
                f"--mechanism with --noise {place} must be {' or '.join(possible)}", rule.mechanism
            )
        for name in PARAMETERS:
            if getattr(rule, name) is not None and name not in self.spec.parameters:
                has = " and ".join(
                    f"--mechanism {other}"
                    for other, each in possible.items()
                    if name in each.parameters
                )
                must = f"is for {has}" if has else f"is not for --noise {place}"
                raise InvalidSettingError(f"{option_of(name)} {must}", rule.mechanism)
        if rule.vote_threshold is not None and rule.vote_threshold < 0:
            raise InvalidSettingError("--vote-threshold must be at least 0", rule.vote_threshold)
        if caps.max_answers is not None and not self.spec.may_refuse:
            raise InvalidSettingError(
                "--max-answers needs a mechanism that may give no answer", rule.mechanism
            )
        if rule.test_delta is not None and not rule.test_delta < self.delta:
            raise InvalidSettingError("--test-delta must be below --delta", rule.test_delta)

    def _check_data_options(self) -> None:
        data = self.data
        csv_only = {
            "--data-file": data.data_file,
            "--label": data.label_column,
            "--patient-id": data.patient_column,
            "--hospital": data.hospital_column,
        }
        for option, value in csv_only.items():
            if value is not None and data.name != "csv" and not data.lists_images:
                if option == "--data-file" and data.name == "images":
                    continue
                raise InvalidSettingError(f"{option} is for --data csv", data.name)
        table_only = {"--ignore": data.ignored_columns, "--positive": data.positive}
        for option, given in table_only.items():
            if given and not data.is_table:
                raise InvalidSettingError(f"{option} is for a table", data.name)
        if data.name in ("digits", "breast-cancer", "csv") and data.data_dir is not None:
            raise InvalidSettingError("--data-dir is for data with a folder", data.name)
        if self.prevalence is not None and not (
            len(self.prevalence) > 1 and abs(sum(self.prevalence) - 1) <= 1e-6
        ):
            raise InvalidSettingError(
                "--prevalence must be the share of each class, in order, and sum to 1",
                ", ".join(map(str, self.prevalence)),
            )

    @property
    def spec(self) -> Spec:
        """The `Spec` of its mechanism."""
        return SPECS[self.rule.mechanism]

    @property
    def do_records_vote(self) -> bool:
        """Whether patients vote themselves, near their records."""
        return self.teacher == RECORDS_VOTE

    @property
    def asks_by_student(self) -> bool:
        """Whether the student of earlier batches chooses the next queries."""
        return self.select == "least-confident"

    @property
    def votes_by_cluster(self) -> bool:
        """Whether teachers vote on the cluster around a query, by their majority in it."""
        return self.select == "cluster-votes"

    @property
    def teams(self) -> list[tuple[int, int]]:
        """Weight and number of each party's teachers; of resolved settings."""
        weights = self.weights or ()
        counts = self.party_teachers or (self.teachers or 0,) * len(weights)
        return list(zip(weights, counts, strict=True))

    @property
    def votes(self) -> int:
        """Votes per query in all; of resolved settings."""
        return sum(weight * count for weight, count in self.teams)

    @property
    def likely_votes(self) -> int:
        """Votes that a query gets, about: all of teachers, those of patients close to it."""
        if not self.do_records_vote:
            return self.votes
        allowed = (self.caps.patient_votes or 1) / (self.caps.max_asks or 1)
        return max(1, round(self.votes * min(NEAR_SHARE, allowed)))

    @property
    def all_teachers(self) -> int:
        """Teachers of all parties; of resolved settings."""
        return sum(count for _, count in self.teams)

    @property
    def most_unit_votes(self) -> int:
        """Most votes that a privacy unit of any party can move; of resolved settings."""
        if self.unit == "party":
            return max(weight * count for weight, count in self.teams)
        return max(self.weights or (1,))

    def label_facts(self, kind: DatasetKind) -> LabelFacts:
        """Return the facts that a student may use; of resolved settings."""
        from pate_fed.students.facts import LabelFacts  # noqa: PLC0415 - fast --help
        from pate_fed.teachers.teacher_choice import shares_out  # noqa: PLC0415

        return LabelFacts(
            votes=self.likely_votes,
            sigma=self.rule.sigma2 or 0.0,
            shared_out=shares_out(self.class_balance, kind),
            prevalence=self.prevalence,
        )

    def as_record(self, **others: object) -> Settings:
        """Return the settings for `run.toml`, with others that a run knows better."""
        from pate_fed.record import Settings  # noqa: PLC0415 - takes a moment

        file = self.data.data_file
        known = {
            **{name: option.of(self) for name, option in OPTIONS.items()},
            "teachers": self.teachers
            or (None if self.records_per_teacher else self.party_teachers),
            "file": None if file is None else Path(file).name,
            **others,
        }
        return Settings(**{name: known[name] for name in Settings.model_fields if name in known})
