"""A client of Flower's SecAgg+: its own stage functions, called one after the other.

Only what the client computes is timed: no messages are made or sent. Its peers exist as far as the
client can tell: their keys are real, and so is what they sealed for it.

Source:
    `flwr.client.mod.secure_aggregation.secaggplus_mod`, of the version that is installed.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import ConfigRecord
from flwr.common import ndarrays_to_parameters
from flwr.common.secure_aggregation.crypto.symmetric_encryption import encrypt, generate_shared_key
from flwr.common.secure_aggregation.secaggplus_constants import Key
from flwr.common.secure_aggregation.secaggplus_utils import share_keys_plaintext_concat
from flwr.supercore.primitives.asymmetric import (
    bytes_to_public_key,
    generate_key_pairs,
    public_key_to_bytes,
)
from numpy.typing import NDArray

CLIPPING_RANGE, TARGET_RANGE, MOD_RANGE, MAX_WEIGHT = 8.0, 2**22, 2**32, 1000.0
"""What `SecAggPlusWorkflow` takes where it is told nothing."""

ME = 1

# Its package has a function of the same name, which is what `import ... as` would find.
mod = importlib.import_module("flwr.client.mod.secure_aggregation.secaggplus_mod")


class SecAggClient:
    """One client among `clients`, each of whom shares with all others.

    Args:
        clients: Number of clients.
        threshold: Shares that join a secret.
    """

    def __init__(self, clients: int, threshold: int) -> None:
        self._clients, self._threshold = clients, threshold
        self._peers = {
            ME + place: generate_key_pairs() + generate_key_pairs() for place in range(1, clients)
        }
        self.seconds: dict[str, float] = {}
        self.bytes_sent = 0

    def run(self, vector: NDArray[np.int64]) -> None:
        """Do a whole round; sets `seconds`, CPU time of each stage, and `bytes_sent`."""
        state = mod.SecAggPlusState()
        state.nid = ME
        setup = {
            Key.SAMPLE_NUMBER: self._clients,
            Key.SHARE_NUMBER: self._clients,
            Key.THRESHOLD: self._threshold,
            Key.CLIPPING_RANGE: CLIPPING_RANGE,
            Key.TARGET_RANGE: TARGET_RANGE,
            Key.MOD_RANGE: MOD_RANGE,
            Key.MAX_WEIGHT: MAX_WEIGHT,
        }
        sent = [self._timed("setup", lambda: mod._setup(state, ConfigRecord(setup)))]
        keys = {str(ME): [state.pk1, state.pk2]}
        for nid, (_, one, _, two) in self._peers.items():
            keys[str(nid)] = [public_key_to_bytes(one), public_key_to_bytes(two)]
        sent.append(self._timed("share", lambda: mod._share_keys(state, ConfigRecord(keys))))
        arrived = ConfigRecord(self._sealed_for(state))
        parameters = ndarrays_to_parameters([vector.astype(np.float64)])
        sent.append(
            self._timed(
                "collect",
                lambda: mod._collect_masked_vectors(state, arrived, int(MAX_WEIGHT), parameters),
            )
        )
        everyone = {Key.ACTIVE_NODE_ID_LIST: [ME, *self._peers], Key.DEAD_NODE_ID_LIST: []}
        sent.append(self._timed("unmask", lambda: mod._unmask(state, ConfigRecord(everyone))))
        self.bytes_sent = sum(_size(value) for message in sent for value in message.values())

    def _timed(self, stage: str, act: Callable[[], Any]) -> Any:
        start = time.process_time()
        result = act()
        self.seconds[stage] = time.process_time() - start
        return result

    def _sealed_for(self, state: Any) -> dict[str, Any]:
        """What every peer sealed for the client: shares as long as its own."""
        one, two = state.rd_seed_share_dict[ME], state.sk1_share_dict[ME]
        mine = bytes_to_public_key(state.pk2)
        sealed = [
            encrypt(
                generate_shared_key(secret, mine), share_keys_plaintext_concat(nid, ME, one, two)
            )
            for nid, (_, _, secret, _) in self._peers.items()
        ]
        return {Key.SOURCE_LIST: list(self._peers), Key.CIPHERTEXT_LIST: sealed}


def _size(value: Any) -> int:
    """Bytes of a value of a `ConfigRecord`, without any framing."""
    if isinstance(value, list):
        return sum(_size(item) for item in value)
    return len(value) if isinstance(value, bytes | str) else 8
