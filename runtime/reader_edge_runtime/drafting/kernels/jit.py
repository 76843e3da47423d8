"""The one door to numba: typed, GIL released, machine code kept in the user's cache folder."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba.core import config

from reader_edge_runtime.drafting.kernel_loader import cache_folder

_Function = TypeVar("_Function", bound=Callable[..., Any])
_FOLDER = cache_folder()
_numba_config: Any = config


# Arrays belong to Python, which holds them as long as a kernel runs: counting references to each took longer than the
# rest of a draft. So what is compiled with this allocates nothing.
_BORROWING: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}


def kernel(function: _Function) -> _Function:
    """An entry point: compiled at its first call, or loaded from the cache folder."""
    return _stored(function, _BORROWING)


def owning_kernel(function: _Function) -> _Function:
    """An entry point that may allocate, or take a `Request`."""
    return _stored(function, {**_BORROWING, "_nrt": True})


def part(function: _Function) -> _Function:
    """A part of kernels: compiled into each of them."""
    return cast(_Function, numba.njit(**_BORROWING)(function))


def small_part(function: _Function) -> _Function:
    """A part that is always inlined."""
    return cast(_Function, numba.njit(**_BORROWING, forceinline=True)(function))


def _stored(function: _Function, options: dict[str, Any]) -> _Function:
    if _FOLDER is None:
        return cast(_Function, numba.njit(**options)(function))
    # numba reads the folder when a function is decorated; the setting is the whole process's, so it is put back.
    before, _numba_config.CACHE_DIR = _numba_config.CACHE_DIR, str(_FOLDER)
    try:
        return cast(_Function, numba.njit(cache=True, **options)(function))
    finally:
        _numba_config.CACHE_DIR = before
