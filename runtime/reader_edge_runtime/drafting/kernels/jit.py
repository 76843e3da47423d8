"""The one door to numba: typed, GIL released, machine code kept in the user's cache folder."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba.core import config

from reader_edge_runtime.drafting.kernel_cache import cache_folder

_Function = TypeVar("_Function", bound=Callable[..., Any])
_FOLDER = cache_folder()
_numba_config: Any = config


def kernel(function: _Function) -> _Function:
    """An entry point: compiled at its first call, or loaded from the cache folder."""
    if _FOLDER is None:
        return part(function)
    # numba reads the folder when a function is decorated; the setting is the whole process's, so it is put back.
    before, _numba_config.CACHE_DIR = _numba_config.CACHE_DIR, str(_FOLDER)
    try:
        return cast(_Function, numba.njit(cache=True, nogil=True, error_model="numpy")(function))
    finally:
        _numba_config.CACHE_DIR = before


def part(function: _Function) -> _Function:
    """A part of kernels: compiled into each of them."""
    return cast(_Function, numba.njit(nogil=True, error_model="numpy")(function))


def small_part(function: _Function) -> _Function:
    """A part that is always inlined."""
    return cast(_Function, numba.njit(nogil=True, error_model="numpy", forceinline=True)(function))
