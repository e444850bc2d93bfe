"""The suites that seal envelopes, by name."""

from typing import Final

SUITE_MLKEM768_X25519: Final = "mlkem768-x25519-hkdf-sha256-aes-256-gcm"
"""ML-KEM-768 and X25519 together: sealed as long as one of the two holds."""

SUITE_X25519: Final = "x25519-hkdf-sha256-aes-256-gcm"
"""X25519 alone: only if the owner wrote so."""

SUITES: Final = (SUITE_MLKEM768_X25519, SUITE_X25519)

DEFAULT_SUITE: Final = SUITE_MLKEM768_X25519
