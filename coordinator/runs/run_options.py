"""The settings of a deployed run, as its command and the console's form have them.

Loaded by `pate-fed --help`: registries are read where a choice is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from pate_fed.options import MECHANISM, OPTIONS, Option

QUERIES: Final = "Public queries"


def _mechanisms() -> Iterable[str]:
    """Name the mechanisms that hospitals may be asked to take part in."""
    from pate_fed.mechanisms import DEPLOYED_MECHANISMS  # noqa: PLC0415 - keeps --help fast

    return DEPLOYED_MECHANISMS


def _voters() -> Iterable[str]:
    """Say who may vote: teachers, whose kind each hospital chose, or patients."""
    from pate_fed.rule import RECORDS_VOTE  # noqa: PLC0415 - keeps --help fast

    return "auto", RECORDS_VOTE


def _students() -> Iterable[str]:
    """Name all students; those of images are refused for a table."""
    from pate_fed.students import students_for  # noqa: PLC0415 - keeps --help fast

    return students_for("image")


def deployed_forms() -> Iterable[str]:
    """Name the forms of the secure sum that a deployment may use."""
    from protocols.forms import DEPLOYED_FORMS  # noqa: PLC0415 - keeps --help fast

    return DEPLOYED_FORMS


_ROWS: Final = (
    OPTIONS["queries"].but(
        help="Inputs to ask. [default: all, at most 500; with a threshold as affordable]",
        spelled="--ask",
        panel=QUERIES,
    ),
    OPTIONS["mechanism"].but(
        choices=_mechanisms,
        help=f"{OPTIONS['mechanism'].help}Hospitals allow threshold and gnmax unless their owners "
        "say otherwise. [default: gnmax; threshold where one is given]",
    ),
    *(OPTIONS[name] for name in ("vote_threshold", "sigma1", "sigma2", "confidence", "test_delta")),
    OPTIONS["form"].but(
        choices=deployed_forms,
        help="masked survives lost hospitals; verified needs a tally, and survives them, too. "
        "[default: verified with a tally, masked from five hospitals, otherwise additive]",
        usual=None,
        panel=MECHANISM,
    ),
    OPTIONS["teacher"].but(
        choices=_voters,
        help="auto: teachers vote, of the kind that each hospital chose. neighbors: each patient "
        "votes on the queries close to its records; hospitals must have set it.",
        panel=MECHANISM,
    ),
    OPTIONS["noise"].but(
        help="Who adds the noise; with parties or aggregators the coordinator sees noisy counts "
        "only. [default: aggregators, each the full amount, with --sum verified; otherwise "
        "coordinator]",
    ),
    *(OPTIONS[name] for name in ("suite", "unit", "epsilon", "delta")),
    OPTIONS["batch_size"].but(help="Queries per batch.", usual=20),
    OPTIONS["patient_votes"],
    OPTIONS["student"].but(choices=_students, help="Kind of student; some learn from images only."),
    *(OPTIONS[name] for name in ("coverage", "prevalence", "purpose")),
)

DEPLOYED_OPTIONS: Final[Mapping[str, Option]] = {one.name: one for one in _ROWS}
"""By name, in the order of `run --help`."""
