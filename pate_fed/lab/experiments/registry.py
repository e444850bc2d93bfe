"""The experiments by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from pate_fed.errors import InvalidParameterError, UnreadableFileError
from pate_fed.lab.experiments.adult import adult_2018
from pate_fed.lab.experiments.canaries import canaries
from pate_fed.lab.experiments.clinics import clinics
from pate_fed.lab.experiments.experiment import Experiment, Result, Tell
from pate_fed.lab.experiments.hearts import hearts
from pate_fed.lab.experiments.images import fashion, mnist_2017, mnist_2018
from pate_fed.lab.experiments.interactive import interactive
from pate_fed.lab.experiments.membership_inference import membership
from pate_fed.lab.experiments.mislabeled import mislabeled
from pate_fed.lab.experiments.published_votes import nzc_mnist, svhn_votes
from pate_fed.lab.experiments.vote_leak import vote_leak

EXPERIMENTS: Final[dict[str, Experiment]] = {
    "mnist-2017": Experiment(
        "MNIST, beside Papernot et al. 2017", ("mnist", "pate_votes"), mnist_2017
    ),
    "mnist-2018": Experiment(
        "MNIST with the votes of Papernot et al. 2018", ("mnist", "pate_votes"), mnist_2018
    ),
    "adult-2018": Experiment(
        "Adult with the votes of Papernot et al. 2018", ("adult", "pate_votes"), adult_2018
    ),
    "svhn-votes-2018": Experiment(
        "SVHN's votes of Papernot et al. 2018, without images", ("pate_votes",), svhn_votes
    ),
    "nzc-mnist": Experiment(
        "MNIST: an argmax that noise cannot change, and a private one",
        ("mnist", "pate_votes"),
        nzc_mnist,
    ),
    "interactive-2018": Experiment(
        "MNIST in two rounds of Interactive-GNMax, each with parameters of its own",
        ("mnist", "pate_votes"),
        interactive,
    ),
    "fashion-pate++": Experiment(
        "Fashion-MNIST, beside PATE++ (2021)", ("fashion_mnist",), fashion
    ),
    "clinics": Experiment(
        "BRFSS: 250 clinics of 40 patients, half of them ill", ("brfss_diabetes",), clinics
    ),
    "hearts": Experiment(
        "Heart disease in four hospitals, as they are", ("heart_disease",), hearts
    ),
    "mislabeled": Experiment(
        "Adult: 250 teachers, some of whose labels are wrong",
        ("adult",),
        mislabeled,
        axis="share of wrong labels",
    ),
    "canaries": Experiment("Digits: a wrong label in one teacher's data", (), canaries),
    "membership": Experiment("Digits: was a record among the training records?", (), membership),
    "vote-leak": Experiment(
        "Votes rebuilt from repeated answers, beside Wang et al. 2022",
        ("mnist", "pate_votes", "adult"),
        vote_leak,
        axis="sigma above, epsilon in the other panels",
    ),
}
"""Every experiment."""


def reproduce(name: str, folder: Path, seeds: Sequence[int], tell: Tell) -> Iterator[Result]:
    """Repeat an experiment; its results come one by one."""
    if name not in EXPERIMENTS:
        raise InvalidParameterError(
            f"an experiment must be one of {', '.join(EXPERIMENTS)}", repr(name)
        )
    if not seeds:
        raise InvalidParameterError("an experiment must have a seed")
    known = EXPERIMENTS[name]
    for needed in known.needs:
        if not (folder / needed).is_dir():
            raise UnreadableFileError(f"--data-dir must hold the folder {needed} for {name}")
    return known.run(folder, seeds, tell)
