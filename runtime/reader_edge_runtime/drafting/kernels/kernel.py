"""The decorator of drafting kernels: Python functions here, called as machine code.

    kernel       an entry point, called from Python
    part         a function that kernels call
    small_part   the same, inlined wherever kernels call it

machine_code/ compiles them, for every processor of a kind, and loads what was compiled. None may allocate or raise.
"""

import ctypes
import struct
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar, cast

from reader_edge_runtime.drafting.machine_code.library import KernelLibrary

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Function = TypeVar("_Function", bound=Callable[..., Any])
_Tuple = TypeVar("_Tuple", bound=tuple[Any, ...])

_PARTS: dict[Callable[..., Any], bool] = {}  # whether each is a small one


class Kernel(Generic[_P, _R]):
    """An entry point. Arguments are integers, arrays in C order, or named tuples of them; the result an integer.

    Machine code takes one word of 64 bits for each argument: an integer, or the address of the words of an array
    (where its data is, then its shape) or of all arrays of a tuple, one after the other. Dtypes and numbers of
    dimensions are those of the annotations (arrays.py), and the caller's to keep.
    """

    def __init__(self, function: Callable[_P, _R]) -> None:
        self.function = function
        self.name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
        self._entry: Callable[..., int] | None = None

    def __call__(self, *arguments: _P.args, **named: _P.kwargs) -> _R:
        entry = self._entry or self._load()
        return cast(_R, entry(*[each if type(each) in _PASSED else _packed_words(each) for each in arguments]))

    def _load(self) -> Callable[..., int]:
        # an address is what ctypes makes of integers, of bytes and of `Packed`
        words = [ctypes.c_void_p] * self.function.__code__.co_argcount
        # Short as they are, they keep the interpreter: a busy event loop would hold up each one's return.
        self._entry = ctypes.PYFUNCTYPE(ctypes.c_int64, *words)(KernelLibrary.shared().address(self.name))
        return self._entry


class Packed:
    """An argument's words, and the arrays that they point to."""

    def __init__(self, argument: Any) -> None:
        self.argument = argument
        self._as_parameter_ = _packed_words(argument)


def packed(arguments: _Tuple) -> _Tuple:
    """The same argument for kernels, whose words are found once for many calls. Nothing else can be done with it."""
    return cast(_Tuple, Packed(arguments))


def kernel(function: Callable[_P, _R]) -> Kernel[_P, _R]:
    return Kernel(function)


def part(function: _Function) -> _Function:
    _PARTS[function] = False
    return function


def small_part(function: _Function) -> _Function:
    _PARTS[function] = True
    return function


def is_part(value: object) -> bool:
    return callable(value) and value in _PARTS


def is_small_part(function: Callable[..., Any]) -> bool:
    return _PARTS.get(function, False)


def _packed_words(argument: Any) -> bytes:
    """The words of an array, or of the members of a tuple."""
    if isinstance(argument, tuple):
        return b"".join(map(_packed_words, argument))
    try:  # a fifth of the time that numpy takes to tell the address
        address = ctypes.addressof(_Bytes.from_buffer(argument))
    except (TypeError, ValueError, BufferError):  # for writing only, and in C order
        if not argument.flags.c_contiguous:
            raise ValueError("Compiled drafting takes arrays in C order only.") from None
        address = argument.ctypes.data
    return _WORDS[argument.ndim].pack(address, *argument.shape)


_Bytes = ctypes.c_char * 0
_WORDS = [struct.Struct(f"{1 + num_dimensions}q") for num_dimensions in range(3)]
_PASSED = (int, Packed)
