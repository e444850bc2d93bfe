"""Work on a stranger's bytes in a process of its own, with bounded memory and time.

A child that dies takes nothing with it: the caller says so with a code, and goes on.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from importlib import import_module
from typing import Final

from party.errors import TaskError

MOST_BYTES: Final = 2**31
"""Memory of a child that reads a document: several times what the bounds of one allow."""


def run_limited(
    module: str,
    *words: str,
    given: bytes | memoryview,
    must: str,
    seconds: float,
    most_bytes: int = MOST_BYTES,
) -> bytes:
    """Run `main` of one of our modules in a child; return its output.

    `given` is its standard input; `must` says in an error what that must be. Raises `TaskError`
    where it ends with a fault, needs more memory or time, or cannot start.
    """
    command = [sys.executable, "-I", "-c", _CHILD, *sys.path, "--", str(most_bytes), module]
    try:
        return subprocess.run(  # noqa: S603 - our own interpreter and code
            [*command, *words],
            input=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            timeout=seconds,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        room = f"within {seconds:.0f} seconds and {most_bytes >> 20} MiB"
        raise TaskError(f"{must} {room}", type(error).__name__) from error


_CHILD: Final = """
import sys
end = sys.argv.index("--")
sys.path[:] = sys.argv[1:end]
from party.site.limited_child import main
main(*sys.argv[end + 1:])
"""


def main(most_bytes: str, module: str, *words: str) -> None:
    """Set the limits, then run the module's `main`, as the child."""
    resource.setrlimit(resource.RLIMIT_AS, (int(most_bytes), int(most_bytes)))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    import_module(module).main(*words)
