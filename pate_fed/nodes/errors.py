"""The base of all errors of a node.

Each node lists its codes in its own `errors.py`::

    NodeError
    |- party.errors.PartyError
    `- coordinator.errors.CoordinatorError
"""

from __future__ import annotations

from typing import ClassVar


class NodeError(Exception):
    """Base of all errors of a node.

    Attributes:
        code: Stable code, for people and programs.
        must: The rule.
        got: The value that broke it; never a secret.
    """

    code: ClassVar[str]

    def __init__(self, must: str, got: object) -> None:
        self.must = must
        self.got = str(got)
        super().__init__(f"{must}, got {self.got}")
