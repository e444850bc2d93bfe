"""One aggregator alone in its process, for a search through its memory.

It makes its own keys and says their public halves, is told the batch, then answers frames: each
line of its input and output is one value in Base64. With ``--bare`` it adds no noise.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pate_fed.mechanisms.discrete_sampling import sample_discrete_gaussian
from protocols.envelope import SealingKey
from protocols.identity import PublicIdentity, SigningIdentity
from protocols.suites import SUITE_X25519
from protocols.verified import (
    Aggregator,
    CheckingCoordinator,
    CheckingEnd,
    CheckingTally,
    MemoryCheckJournal,
    VoteBatch,
)
from tests.support.checking import end

SIGMA = 40.0
HELD: list[NDArray[np.int64] | None] = []


class LoneEnd:
    """The other end of its pipes."""

    def __init__(self, *, is_tally: bool, is_bare: bool = False) -> None:
        words = [*(["--tally"] if is_tally else []), *(["--bare"] if is_bare else [])]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.lone_end", *words],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self.identity = PublicIdentity(self._read())
        self.aggregator = Aggregator(self.identity.fingerprint, self._read())

    @property
    def pid(self) -> int:
        return self._process.pid

    def begin(
        self, batch: VoteBatch, other: PublicIdentity, hospitals: dict[bytes, PublicIdentity]
    ) -> None:
        keys = [identity.key for identity in hospitals.values()]
        self.ask(pickle.dumps((batch, other.key, keys)))

    def ask(self, frame: bytes) -> bytes:
        """Hand a frame over; return the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(b64encode(frame) + b"\n")
        self._process.stdin.flush()
        return self._read()

    def end(self) -> None:
        self._process.communicate()
        assert self._process.returncode == 0

    def _read(self) -> bytes:
        assert self._process.stdout is not None
        return b64decode(self._process.stdout.readline())


def say(value: bytes) -> None:
    sys.stdout.write(b64encode(value).decode() + "\n")
    sys.stdout.flush()


def hear() -> bytes | None:
    line = sys.stdin.readline()
    return b64decode(line) if line else None


def noise(shape: tuple[int, int], random_bytes: Callable[[int], bytes]) -> NDArray[np.int64]:
    if "--bare" in sys.argv:
        return np.zeros(shape, dtype=np.int64)
    return sample_discrete_gaussian(shape, sigma=SIGMA, random_bytes=random_bytes)


def answered(end: CheckingEnd, frame: bytes) -> bytes:
    """Answer a frame; hold the opened sum, as whoever releases labels does."""
    answer = end.receive(frame)
    HELD.append(end.opened)
    return answer


def main() -> None:
    """Run an end; the coordinator's takes an empty frame as the word to close the list."""
    identity, key = SigningIdentity.generate(), SealingKey(SUITE_X25519)
    say(identity.public.key)
    say(key.public_bytes)
    told = hear()
    assert told is not None
    batch, other, keys = pickle.loads(told)  # noqa: S301 - of the test itself
    pinned = [PublicIdentity(each) for each in keys]
    journal = MemoryCheckJournal(lambda _: None)
    given = end(identity, key, PublicIdentity(other), pinned, journal=journal, draw_noise=noise)
    say(b"")
    if "--tally" in sys.argv:
        tally = CheckingTally(batch, **given)
        while (frame := hear()) is not None:
            say(answered(tally, frame))
        return
    coordinator = CheckingCoordinator(batch, **given)
    for _ in keys:
        frame = hear()
        assert frame is not None
        coordinator.take_report(frame)
        say(b"")
    assert hear() == b""
    say(coordinator.close())
    while (frame := hear()) is not None:
        say(answered(coordinator, frame))


if __name__ == "__main__":
    main()
