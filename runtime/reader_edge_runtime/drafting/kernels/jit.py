"""How kernels are compiled: by numba, without the GIL, with the machine code kept in the user's cache folder."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba.core import config

from reader_edge_runtime.drafting.kernel_loader import cache_folder

_Function = TypeVar("_Function", bound=Callable[..., Any])
_FOLDER = cache_folder()
_numba_config: Any = config


# The caller keeps all arrays alive while a kernel runs. Counting references to each took longer than the rest of a
# draft, so it is switched off, and what is compiled without it cannot allocate.
_BORROWING: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}


def kernel(function: _Function) -> _Function:
    """An entry point: compiled at its first call, or loaded from the cache folder. It must not allocate."""
    return _stored(function, _BORROWING)


def owning_kernel(function: _Function) -> _Function:
    """An entry point that may allocate, or take a `Request`."""
    return _stored(function, {**_BORROWING, "_nrt": True})


def part(function: _Function) -> _Function:
    """A function that kernels call."""
    return cast(_Function, numba.njit(**_BORROWING)(function))


def small_part(function: _Function) -> _Function:
    """A function that is inlined wherever kernels call it."""
    return cast(_Function, numba.njit(**_BORROWING, forceinline=True)(function))


def _stored(function: _Function, options: dict[str, Any]) -> _Function:
    if _FOLDER is None:
        return cast(_Function, numba.njit(**options)(function))
    # numba reads this process-wide setting when a function is decorated; other users of numba get theirs back.
    before, _numba_config.CACHE_DIR = _numba_config.CACHE_DIR, str(_FOLDER)
    try:
        return cast(_Function, numba.njit(cache=True, **options)(function))
    finally:
        _numba_config.CACHE_DIR = before
