"""Sealed envelopes from one party to another, relayed by the coordinator (rule R6).

Before a run has keys they are HPKE (RFC 9180), inside a batch AES-256-GCM under a key of its own.

HPKE's base mode does not authenticate the sealer: the sender signs the message with the envelope.
Sender, receiver, run and role are bound in, so an envelope opens nowhere else. A run has one suite,
which its record names. The default stays sealed even if X25519 is broken one day, because medical
votes must stay secret for decades.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hpke import (
    AEAD,
    KDF,
    KEM,
    MLKEM768X25519PrivateKey,
    MLKEM768X25519PublicKey,
    Suite,
)

from protocols.errors import BrokenEnvelopeError, MalformedMessageError, SuiteError
from protocols.suites import DEFAULT_SUITE, SUITE_MLKEM768_X25519, SUITE_X25519

_PrivateKey = X25519PrivateKey | MLKEM768X25519PrivateKey
_PublicKey = X25519PublicKey | MLKEM768X25519PublicKey
_MLKEM_KEY_BYTES = 1184
_MLKEM_SEED_BYTES = 64
_DOMAIN = b"pate-fed/1/envelope\0"

PAIR_ROOT = b"pair root"
"""Purpose of an envelope with a half of a pair's root; its run binds it."""

VOTES = b"votes"
"""Purpose of an envelope with a part of a report of votes; the report's digest binds it."""


class SealingKey:
    """An end's key for one run's envelopes. Secret; a party's is in memory only.

    Attributes:
        private_bytes: For an aggregator, which must open its parts after a restart, too.
    """

    __slots__ = ("_private_key", "_public_bytes", "_suite", "private_bytes")

    def __init__(self, suite: str = DEFAULT_SUITE) -> None:
        self._read(suite_named(suite), suite_named(suite).generate())

    @classmethod
    def from_private_bytes(cls, suite: str, private_bytes: bytes) -> SealingKey:
        """Read a key of `private_bytes` back; `SuiteError` where it is none of its suite."""
        key = cls.__new__(cls)
        try:
            key._read(suite_named(suite), private_bytes)
        except ValueError as error:
            raise SuiteError("a private sealing key must be of its suite", suite) from error
        return key

    def _read(self, suite: _Suite, private_bytes: bytes) -> None:
        self._suite, self.private_bytes = suite, private_bytes
        self._private_key, self._public_bytes = suite.read_private(private_bytes)

    @property
    def suite(self) -> str:
        """Name of the suite."""
        return self._suite.name

    @property
    def public_bytes(self) -> bytes:
        """Raw public key, as long as `sealing_key_bytes` says."""
        return self._public_bytes

    def open(
        self,
        sealed: bytes,
        *,
        run_id: bytes,
        sender: bytes,
        receiver: bytes,
        purpose: bytes = PAIR_ROOT,
    ) -> bytes:
        """Open an envelope of `seal`; `BrokenEnvelopeError` where it is of others, or changed."""
        try:
            return self._suite.hpke.decrypt(
                sealed, self._private_key, _info(run_id, sender, receiver, purpose)
            )
        except (InvalidTag, ValueError) as error:
            raise BrokenEnvelopeError(
                "an envelope must open under its run, sender and receiver"
            ) from error

    def __repr__(self) -> str:
        return f"SealingKey({self.suite})"


def seal(
    plaintext: bytes,
    receiver_key: bytes,
    *,
    suite: str = DEFAULT_SUITE,
    run_id: bytes,
    sender: bytes,
    receiver: bytes,
    purpose: bytes = PAIR_ROOT,
) -> bytes:
    """Seal bytes to a receiver's raw sealing key; return encapsulated key and ciphertext.

    The purpose, the run's id (of `VOTES` the report's digest), and the fingerprints of the party
    that seals and of the one that may open are bound in.

    Raises:
        SuiteError: no such suite, or a key of another one.
        MalformedMessageError: `receiver_key` is no usable key of the suite.
    """
    require_key_of(suite, receiver_key)
    chosen = suite_named(suite)
    try:
        key = chosen.read_public(receiver_key)
        return chosen.hpke.encrypt(plaintext, key, _info(run_id, sender, receiver, purpose))
    except ValueError as error:
        raise MalformedMessageError(
            "a sealing key must be a usable key of the run's suite"
        ) from error


def require_key_of(suite: str, key: bytes) -> None:
    """Refuse, with `SuiteError`, a sealing key of another length than its run's suite has."""
    expected = sealing_key_bytes(suite)
    if len(key) != expected:
        raise SuiteError(f"a sealing key of {suite} must have {expected} bytes", len(key))


def sealing_key_bytes(suite: str) -> int:
    """Length of a raw public key of a suite."""
    return suite_named(suite).key_bytes


@dataclass(frozen=True, slots=True)
class _Suite:
    """One suite: its KEM's keys as bytes and back. Key derivation and cipher are the same in all.

    `generate` makes a fresh raw private key; `read_private` returns it with its raw public key,
    which has `key_bytes`. Both readers raise `ValueError` where a raw key is none.
    """

    name: str
    kem: KEM
    hpke: Suite = field(init=False)
    key_bytes: int
    generate: Callable[[], bytes]
    read_private: Callable[[bytes], tuple[_PrivateKey, bytes]]
    read_public: Callable[[bytes], _PublicKey]

    def __post_init__(self) -> None:
        object.__setattr__(self, "hpke", Suite(self.kem, KDF.HKDF_SHA256, AEAD.AES_256_GCM))


def _generate_x25519() -> bytes:
    return X25519PrivateKey.generate().private_bytes_raw()


def _read_private_x25519(raw: bytes) -> tuple[_PrivateKey, bytes]:
    key = X25519PrivateKey.from_private_bytes(raw)
    return key, key.public_key().public_bytes_raw()


# The library's hybrid keys have no bytes of their own: a raw key is its two halves, as in X-Wing.


def _generate_hybrid() -> bytes:
    return MLKEM768PrivateKey.generate().private_bytes_raw() + _generate_x25519()


def _read_private_hybrid(raw: bytes) -> tuple[_PrivateKey, bytes]:
    lattice = MLKEM768PrivateKey.from_seed_bytes(raw[:_MLKEM_SEED_BYTES])
    curve, public = _read_private_x25519(raw[_MLKEM_SEED_BYTES:])
    assert isinstance(curve, X25519PrivateKey)
    public = lattice.public_key().public_bytes_raw() + public
    return MLKEM768X25519PrivateKey(lattice, curve), public


def _read_hybrid(raw: bytes) -> MLKEM768X25519PublicKey:
    return MLKEM768X25519PublicKey(
        MLKEM768PublicKey.from_public_bytes(raw[:_MLKEM_KEY_BYTES]),
        X25519PublicKey.from_public_bytes(raw[_MLKEM_KEY_BYTES:]),
    )


_SUITES: Mapping[str, _Suite] = {
    suite.name: suite
    for suite in (
        _Suite(
            SUITE_MLKEM768_X25519,
            KEM.MLKEM768_X25519,
            _MLKEM_KEY_BYTES + 32,
            _generate_hybrid,
            _read_private_hybrid,
            _read_hybrid,
        ),
        _Suite(
            SUITE_X25519,
            KEM.X25519,
            32,
            _generate_x25519,
            _read_private_x25519,
            X25519PublicKey.from_public_bytes,
        ),
    )
}


def suite_named(name: str) -> _Suite:
    """Find a suite; `SuiteError` where there is none of this name."""
    suite = _SUITES.get(name)
    if suite is None:
        raise SuiteError("a sealing suite must be known", name)
    return suite


def _info(run_id: bytes, sender: bytes, receiver: bytes, purpose: bytes) -> bytes:
    # The last three have 32 bytes, so their places cannot be mixed up.
    return _DOMAIN + purpose + b"\0" + run_id + sender + receiver


# Inside a batch -----------------------------------------------------------------------------------

TAG_BYTES = 16
_NONCE = bytes(12)  # the same in all: each key seals one envelope


def seal_shares(plaintext: bytes, key: bytes, *, dealing_digest: bytes) -> bytes:
    """Seal a holder's shares to it with AES-256-GCM (rule R6); `TAG_BYTES` longer.

    `key` is of this one envelope (`pair_keys.envelope_key`). The digest of the dealing that the
    shares go with is authenticated, too.
    """
    return AESGCM(key).encrypt(_NONCE, plaintext, dealing_digest)


def open_shares(sealed: bytes, key: bytes, *, dealing_digest: bytes) -> bytes:
    """Open an envelope of `seal_shares`.

    Raises `BrokenEnvelopeError` where it was sealed for another pair, direction, plan or stage,
    with another dealing, or changed.
    """
    try:
        return AESGCM(key).decrypt(_NONCE, sealed, dealing_digest)
    except (InvalidTag, ValueError) as error:
        raise BrokenEnvelopeError(
            "an envelope must open under its plan, stage, sender, receiver and dealing"
        ) from error
