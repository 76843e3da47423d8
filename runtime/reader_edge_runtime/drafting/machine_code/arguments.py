"""Arguments of kernels as numba's types, and how compiled code takes them from words of 64 bits."""

import typing
from collections.abc import Callable, Iterator
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import numba
from numba.core import cgutils, types
from numba.extending import intrinsic
from numba.np import arrayobj

_WORD = types.int64


def kernel_types(function: Callable[..., Any]) -> tuple[types.Type, ...]:
    """numba's types of a kernel's parameters, from its annotations."""
    hints = get_type_hints(function, include_extras=True)
    return tuple(_type_of(hint) for name, hint in hints.items() if name != "return")


def unpack(argument_types: tuple[types.Type, ...]) -> Callable[..., Any]:
    """A function for compiled code: of a tuple of words, one for each argument, the tuple of arguments."""

    @intrinsic
    def unpacked(typing_context: Any, words: types.Type) -> Any:
        result = types.Tuple(argument_types)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            values = cgutils.unpack_tuple(builder, arguments[0], len(argument_types))
            members = [
                value if each is _WORD else _read(context, builder, each, _words_at(builder, value))
                for each, value in zip(argument_types, values, strict=True)
            ]
            return context.make_tuple(builder, result, members)

        return result(words), generate

    return unpacked


def _type_of(hint: Any) -> types.Type:
    """Arrays are annotated with their number of dimensions, named tuples are tuples of such; all else is a word."""
    if get_origin(hint) is Annotated:
        array, num_dimensions = get_args(hint)
        element = get_args(array)[-1]  # of NDArray: the scalar type itself from numpy 2.5 on, before in a dtype
        (dtype,) = get_args(element) or (element,)
        return types.Array(numba.from_dtype(dtype), num_dimensions, "C")
    if get_origin(hint) is tuple:
        return types.Tuple([_type_of(member) for member in get_args(hint)])
    if isinstance(hint, type) and issubclass(hint, tuple):
        hints = get_type_hints(hint, include_extras=True)
        return types.NamedTuple([_type_of(member) for member in hints.values()], hint)
    if hint is int or hint is typing.Any:
        return _WORD
    raise TypeError(f"No kernel can take {hint}.")


def _words_at(builder: Any, address: Any) -> Iterator[Any]:
    """The words from an address on, each loaded when it is read."""
    words = builder.inttoptr(address, cgutils.intp_t.as_pointer())
    place = 0
    while True:
        yield builder.load(cgutils.gep_inbounds(builder, words, place))
        place += 1


def _read(context: Any, builder: Any, kind: Any, words: Iterator[Any]) -> Any:
    """A value of a type from the next words."""
    if not isinstance(kind, types.Array):
        members = [_read(context, builder, member, words) for member in kind]
        return context.make_tuple(builder, kind, members)
    array = arrayobj.make_array(kind)(context, builder)
    address = next(words)
    shape = [next(words) for _ in range(kind.ndim)]
    itemsize = context.get_abi_sizeof(context.get_data_type(kind.dtype))
    strides = [cgutils.intp_t(itemsize)]
    for size in reversed(shape[1:]):
        strides.insert(0, builder.mul(strides[0], size))
    data = builder.inttoptr(address, array.data.type)
    arrayobj.populate_array(array, data, shape, strides, itemsize, meminfo=None)
    return array._getvalue()
