"""A hospital's own teachers: MODULE:FUNCTION, in a file beside its data or where Python finds it.

Code beside data is pinned: its name ends in "@" and the SHA-256 of its file, as its owner read it.
Whoever can write beside the data can then not run code as the node.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import InspectLoader
from importlib.util import decode_source, find_spec, module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from pate_fed.errors import InvalidParameterError
from pate_fed.inputs import DatasetKind
from pate_fed.regular_files import read_regular

MOST_CODE_BYTES: Final = 2**20

_PIN: Final = "@"
_one_at_a_time: Final = threading.Lock()
_loaded: Final[dict[str, str]] = {}
"""SHA-256 of each module that was loaded from beside data: stored teachers name their module."""


def pinned(name: str, folders: Sequence[Path]) -> str:
    """Return MODULE:FUNCTION pinned to its file, if one of these folders has it.

    Raises:
        InvalidParameterError: the file cannot be read, Python has a module of its name, too, or
            there is none at all.
    """
    module, colon, _ = name.partition(":")
    if not colon or _PIN in name:
        return name
    path = _file_of(module, folders)
    if path is None:
        _require_installed(module)
        return name
    _require_free(module, path)
    return f"{name}{_PIN}{hashlib.sha256(_content(path)).hexdigest()}"


def own_teacher(
    name: str, folders: Sequence[Path], kind: DatasetKind
) -> tuple[Callable[[], Any], str]:
    """Load a hospital's own teacher: its function, and the package whose types it may store.

    Args:
        name: MODULE:FUNCTION, which Python finds, or `pinned` to a file in one of the folders.

    Raises:
        InvalidParameterError: there is no such function, it fails, its file has changed, or was
            put beside the data later.
    """
    from pate_fed.teachers.sklearn_ensemble import require_estimator  # noqa: PLC0415 - seconds

    named, _, digest = name.partition(_PIN)
    module, _, function = named.partition(":")
    path = None if digest else _file_of(module, folders)
    if path is not None and find_spec(module) is None:
        raise InvalidParameterError(
            f"{path.name} must be there when teacher_model is set: read it, and set it again",
            "a file that nobody pinned",
        )
    try:
        found = _beside(module, folders, digest) if digest else importlib.import_module(module)
        make = getattr(found, function)
        model = make()
    except InvalidParameterError:
        raise
    except (Exception, SystemExit) as error:
        raise InvalidParameterError(
            f"{named} must name a function without arguments, as MODULE:FUNCTION, that can be "
            "imported and run",
            f"{type(error).__name__}: {error}",
        ) from error
    require_estimator(model, named, kind)
    return make, module.split(".")[0]


def _beside(module: str, folders: Sequence[Path], digest: str) -> ModuleType:
    path = _file_of(module, folders)
    if path is None:
        raise InvalidParameterError(f"{module}.py must be in the folder that holds the data")
    content = _content(path)
    if hashlib.sha256(content).hexdigest() != digest:
        raise InvalidParameterError(
            f"{path.name} must be as it was when teacher_model was set: read it, and set it again",
            "another file",
        )
    with _one_at_a_time:
        known = sys.modules.get(module)
        if known is not None and _loaded.get(module) == digest:
            return known
        _require_free(module, path)
        return _run(module, path, content, digest)


def _run(module: str, path: Path, content: bytes, digest: str) -> ModuleType:
    loader = _HashedCode(content)
    spec = spec_from_loader(module, loader, origin=str(path))
    assert spec is not None, "a loader was given"
    made = module_from_spec(spec)
    _loaded[module] = digest
    sys.modules[module] = made
    try:
        loader.exec_module(made)
    except BaseException:
        del _loaded[module], sys.modules[module]
        raise
    return made


class _HashedCode(InspectLoader):
    """Loads the very bytes that were hashed, whatever the file has become."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def get_source(self, fullname: str) -> str:  # noqa: ARG002 - its contract
        return decode_source(self._content)


def _require_free(module: str, path: Path) -> None:
    """Refuse code that would take the place of another module."""
    if module in _loaded:
        return
    known = sys.modules.get(module)
    found = find_spec(module) if known is None else known.__spec__
    if (known or found) and not (found and found.origin and Path(found.origin) == path):
        raise InvalidParameterError(
            f"{module}.py beside the data must have a name that Python does not know: rename it",
            "the name of another module",
        )


def _require_installed(module: str) -> None:
    """Refuse a module that neither the folder of the data has nor Python, without running any."""
    parts = module.split(".")
    if all(map(str.isidentifier, parts)) and (parts[0] in sys.modules or find_spec(parts[0])):
        return
    raise InvalidParameterError(
        "MODULE of MODULE:FUNCTION must be a file MODULE.py in the folder that holds the data, or "
        "a module that Python finds",
        repr(module),
    )


def _file_of(module: str, folders: Sequence[Path]) -> Path | None:
    if not module.isidentifier():
        return None
    paths = (folder / f"{module}.py" for folder in folders)
    return next((path for path in paths if path.exists()), None)


def _content(path: Path) -> bytes:
    try:
        return read_regular(path, most_bytes=MOST_CODE_BYTES)
    except OSError as error:
        raise InvalidParameterError(
            f"{path.name} must be a readable file of at most {MOST_CODE_BYTES} bytes",
            type(error).__name__,
        ) from None
