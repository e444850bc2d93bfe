"""Every numerical library that is loaded uses one thread, and afterwards as many as before."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
from threadpoolctl import threadpool_info, threadpool_limits  # type: ignore[import-untyped]

from pate_fed import one_thread as module
from pate_fed.one_thread import one_thread


def threads() -> list[int]:
    return [library["num_threads"] for library in threadpool_info()]


def test_one_thread_until_the_context_ends() -> None:
    with threadpool_limits(2):
        before = threads()
        assert 2 in before
        with one_thread():
            assert set(threads()) == {1}
        assert threads() == before


def test_libraries_are_looked_for_again_once_more_modules_are_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a later module brings along, such as PyTorch's own kernels, is limited, too."""
    looks: list[int] = []
    look = module.ThreadpoolController
    monkeypatch.setattr(module, "ThreadpoolController", lambda: looks.append(1) or look())
    module._loaded.cache_clear()
    for _ in range(2):
        with one_thread():
            pass
    assert len(looks) == 1
    monkeypatch.setitem(sys.modules, "a_module_of_a_test", ModuleType("a_module_of_a_test"))
    with one_thread():
        pass
    assert len(looks) == 2
