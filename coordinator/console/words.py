"""The plain sentence beside every technical term of the console."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from coordinator.errors import CoordinatorBehindError, TallyBehindError, TallyUnreachableError

TERMS: Final[Mapping[str, str]] = {
    "epsilon": "How much a run can tell about one unit's records: 0 is nothing. At 1 "
    "nothing becomes more than about 2.7 times as likely, at 3 about 20 times.",
    "delta": "A small chance with which epsilon need not hold.",
    "unit": "Whose records are protected: all records of one patient, or of a whole hospital.",
    "view": "The viewer: the public sees labels, the coordinator sees more.",
    "neighbors": "The two cases that nobody can tell apart well.",
    "method": "The proof by which epsilon was computed.",
    "mechanism": "The rule that turns votes into labels, with noise.",
    "voters": "Teachers, or each patient whose own record lies close to a query.",
    "noise": "Random numbers that are added to the counts of votes, so that no single vote shows.",
    "sigma": "The size of the noise, in votes: its standard deviation.",
    "threshold": "Too few votes for one class give no answer: so many are needed, noise included.",
    "query": "One public row that the hospitals are asked to label.",
    "batch": "Queries that are asked together.",
    "teacher": "A model that a hospital trained on a part of its own records. Each has one vote.",
    "student": "The model that learns from the released labels; it may leave the federation.",
    "budget": "The most epsilon that a run may use. It is fixed before the run begins.",
    "formal": "Holds for any records and any votes. It may be published.",
    "fingerprint": "Twelve words that name a hospital's key. Only its own people can read them to "
    "you.",
    "secure sum": "The hospitals' votes are added so that nobody sees those of one hospital.",
    "tally": "A second organization's server: it checks every vote, and adds noise of its own.",
    "seal": "Checksums of all files, signed by the coordinator.",
    "chain": "Each audit entry holds a hash of all before it: a change shows.",
    "head": "Number and hash of the last entry. Write it down elsewhere: only so a cut end shows.",
    "one-time code": "Six digits from the authenticator app on your telephone.",
}

STATES: Final[Mapping[str, str]] = {
    "queued": "Waits for its turn.",
    "running": "Hospitals are being asked.",
    "waiting": "Waits; it goes on by itself.",
    "paused": "Rests until somebody resumes it.",
    "stopping": "Ends after the current batch.",
    "done": "All was asked.",
    "incomplete": "Ended early, and keeps its labels.",
    "failed": "Ended without a result.",
    "stopped": "Ended by a person; it keeps its labels.",
}

WHY: Final[Mapping[str, str]] = {
    "PF-311": "It has checked the words of too few other hospitals.",
    "PF-322": "Its people have not decided on the run's document yet: call them.",
    "PF-328": "Its people rejected it. The run waits: they may decide otherwise.",
    "PF-329": "Its people have not pinned the tally, or not said who runs it and you: call them.",
    "PF-323": "Its people paused it.",
    "PF-325": "Too many runs wait for its people.",
    "PF-314": "Its owner has not decided on the public rows yet: call them.",
    "PF-317": "It answered one of the queries before.",
    "PF-318": "Its own budget does not bear the run.",
    "PF-320": "Void batches of this run used up as much of its budget as its rules allow.",
    "PF-326": "Its disk is full.",
    "PF-436": "The operator suspended it: it is asked nothing until it is reinstated.",
    TallyUnreachableError.code: "The tally does not answer: call its people. Nothing is lost, and "
    "the run goes on by itself.",
    TallyBehindError.code: "The tally's database is older than what it told: call its people. They "
    "put the newest copy back, or accept this one, which ends its runs (on their machine: "
    "`pate-fed tally restored tally`).",
    CoordinatorBehindError.code: "This database is older than what the tally told: the machine's "
    "administrator puts the newest copy back, or the tally's people accept this one (on theirs: "
    "`pate-fed tally restored coordinator`).",
}
"""The meaning of the codes of whoever keeps a run from going on."""

TALLY: Final[Mapping[str, str]] = {
    TallyUnreachableError.code: "The tally does not answer.",
    TallyBehindError.code: "The tally has an older database than before.",
    CoordinatorBehindError.code: "This coordinator has an older database than the tally knows.",
}
"""What is wrong with the tally, by the code of its last call."""

SERVICE: Final[Mapping[str, str]] = {
    "superlink": "Messages to hospitals can be sent.",
    "database": "Results can be stored.",
    "worker": "Runs are worked on.",
    "certificate": "Hospitals trust the server's certificate.",
}
