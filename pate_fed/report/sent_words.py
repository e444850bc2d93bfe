"""What left each hospital, in words: packets by kind and by hospital, from `sent.csv`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pate_fed import wording
from pate_fed.report.run_directory import FinishedRun, SentPacket

_HIDDEN_VOTES = "its hidden votes on a batch of public inputs: alone they look like random numbers"
_CLEAR_VOTES = "its votes on a batch of public inputs, in the clear (--sum plain)"

_MEANINGS: Mapping[str, str] = {
    "RunReadiness": "whether it would take part, and when its people decided",
    "KeyStatement": "its public keys for this run, signed",
    "EnvelopeBundle": "keys for the other hospitals, sealed: the coordinator cannot open them",
    "Confirmations": "for each other hospital, proof that the sender and that hospital share a key",
    "Ready": "a notice that it is ready or has finished, with the fingerprint of the run so far",
    "MaskedVector": _HIDDEN_VOTES,
    "Dealing": "fingerprints of the pieces of its one-time keys",
    "ShareBundle": "pieces of one-time keys for the other hospitals, sealed",
    "VerdictMacs": "proof for each other hospital that it agrees whose votes are added",
    "Verdict": "a signed notice that it agrees whose votes are added",
    "Reveal": "pieces of one-time keys that take the masks off the sum, not off its own votes",
    "VoteReport": "its votes on a batch in two sealed parts, one for each aggregator, and a proof",
    "Refusal": "a refusal, with a code",
    "Readiness": "a notice that it would answer a batch",
    "StreamSums": "check sums of its masks, to find the sender of a wrong message",
    "HeadStatement": "its last fingerprint of the run, signed",
    "": "a receipt without content",
}
_UNKNOWN = "a message of another version"

MOST_LISTED = 60
"""Most hospitals that the page lists; the file has more."""


class Kind(NamedTuple):
    """One kind of message that hospitals sent.

    Attributes:
        name: Its type; "" for a receipt.
    """

    name: str
    meaning: str
    packets: int
    size: int


class Sender(NamedTuple):
    """A hospital, and how much it sent."""

    hospital: str
    packets: int
    size: int


def kinds(run: FinishedRun) -> list[Kind]:
    """List what hospitals sent, in the order in which the kinds first came."""
    counts: Counter[tuple[str, ...]] = Counter(packet.kinds for packet in run.sent)
    sizes: Counter[tuple[str, ...]] = Counter()
    for packet in run.sent:
        sizes[packet.kinds] += packet.size
    votes = {"MaskedVector": _CLEAR_VOTES} if run.privacy.sum == "plain" else {}
    return [
        Kind(
            " + ".join(dict.fromkeys(names)),
            "; ".join(_meanings(names, {**_MEANINGS, **votes})),
            count,
            sizes[names],
        )
        for names, count in counts.items()
    ]


def _meanings(names: tuple[str, ...], words: Mapping[str, str]) -> list[str]:
    return [words.get(name, _UNKNOWN) for name in dict.fromkeys(names or ("",))]


def senders(sent: Sequence[SentPacket]) -> list[Sender]:
    """List the hospitals, by name, with the number and size of their packets."""
    packets: Counter[str] = Counter(packet.hospital for packet in sent)
    sizes: Counter[str] = Counter()
    for packet in sent:
        sizes[packet.hospital] += packet.size
    return [Sender(name, packets[name], sizes[name]) for name in sorted(packets)]


def is_whole(run: FinishedRun) -> bool:
    """Tell whether the list begins with the run: else the coordinator was started again.

    A report to two aggregators is all that a hospital sends.
    """
    if run.privacy.at_aggregators:
        return True
    first = {packet.hospital: packet.kinds for packet in reversed(run.sent)}
    begun = all("KeyStatement" in kinds for kinds in first.values())
    return begun and not run.manifest.earlier_setups


def each_text(listed: Sequence[Sender]) -> str:
    """Write what one hospital sent: "7 packets (71.11 kB)", or the range over hospitals."""
    packets = sorted({one.packets for one in listed})
    sizes = sorted({wording.size_text(one.size): one.size for one in listed}.items(), key=_size)
    said = [str(packets[0]), str(packets[-1])][: len(packets)]
    return (
        f"{' to '.join(said)} {'packet' if packets[-1] == 1 else 'packets'} "
        f"({' to '.join(dict.fromkeys((sizes[0][0], sizes[-1][0])))})"
    )


def _size(item: tuple[str, int]) -> int:
    return item[1]
