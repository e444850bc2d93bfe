"""A coordinator's document is read for the first time in a process of its own.

Only a document that the child has read is kept. So the command line, the page, the doctor and the
node, which read kept ones, need no more memory than the bounds of `pate_fed.data.task_schema` give.
"""

from __future__ import annotations

import json
import sys
from typing import Final

from party.errors import TaskError
from party.site.limited_child import run_limited
from pate_fed.data.task import LearningTask
from pate_fed.errors import InvalidTaskError
from pate_fed.evaluation_task import EvaluationTask, is_evaluation

AskedTask = LearningTask | EvaluationTask
"""What a run asks: labels of a pool, or counts of held-out patients."""

SECONDS: Final = 300.0
"""Most time to read a document; one of the largest takes a fifth of it on a slow core."""


def require_readable(content: bytes, digest: bytes) -> None:
    """Read a document in a child; `TaskError` where it is no task of that pool, or too large."""
    said = run_limited(
        __name__,
        digest.hex(),
        given=content,
        must="a pool must be so small that its file is read",
        seconds=SECONDS,
    )
    if said:
        must, got = json.loads(said)
        raise TaskError(must, got)


def read_document(content: bytes, digest: bytes) -> AskedTask:
    """Read a document here; `TaskError` where it is no task of that pool, or too large."""
    kind = EvaluationTask if is_evaluation(content) else LearningTask
    try:
        task: AskedTask = kind.from_bytes(content)
    except InvalidTaskError as error:
        must = f"a pool's file must be a task: {error.must}"
        raise TaskError(must, f"{error.code} {error.got}".rstrip()) from error
    if task.pool.digest != digest:
        raise TaskError("a task must have the pool that was asked for")
    return task


def main(digest: str) -> None:
    """Read the document on the standard input, as the child; say why it is none."""
    try:
        read_document(sys.stdin.buffer.read(), bytes.fromhex(digest))
    except TaskError as error:
        sys.stdout.write(json.dumps([error.must, str(error.got)]))
