"""A request's arrays as one argument of the kernels: passing each by itself takes longer than a short draft."""

from typing import Any, NamedTuple

from numba.core import types
from numba.experimental import structref

from reader_edge_runtime.drafting.kernels.arrays import Float32Array, Int32Array
from reader_edge_runtime.drafting.kernels.evidence import Sources
from reader_edge_runtime.drafting.kernels.jit import owning_kernel


class Arrays(NamedTuple):
    """sources: what is known. state: int32 (STATE,), where the text ends. nodes, values, states, evidences: the last
    draft, see tree.py. parameters, scratch, work: of the mixture, shared by all requests.
    """

    sources: Sources
    state: Int32Array
    nodes: Int32Array
    values: Float32Array
    states: Int32Array
    evidences: Int32Array
    parameters: Float32Array
    scratch: Float32Array
    work: Int32Array


@structref.register
class _RequestType(types.StructRef):
    pass


class Request(structref.StructRefProxy):
    """The arrays, by reference. Each read of them counts references to all, so a kernel reads them once."""

    arrays: Arrays


structref.define_proxy(Request, _RequestType, ["arrays"])
_request: Any = Request


@owning_kernel
def new_request(arrays: Arrays) -> Request:
    """Put a request's arrays together."""
    return _request(arrays)
