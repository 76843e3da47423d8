"""A request's arrays as one argument of the kernels: passing twenty takes longer than a short draft."""

from typing import Any, cast

import numba
from numba.core import types
from numba.experimental import structref

from reader_edge_runtime.drafting.kernels.arrays import Float32Array, Int32Array
from reader_edge_runtime.drafting.kernels.evidence import Sources
from reader_edge_runtime.drafting.kernels.jit import owning_kernel

_new_struct: Any = structref.new  # an intrinsic, which has other arguments in compiled code


@structref.register
class _RequestType(types.StructRef):
    def preprocess_fields(self, fields: Any) -> Any:
        return tuple((name, types.unliteral(each)) for name, each in fields)


class Request(structref.StructRefProxy):
    """The arrays, by reference.

    sources: what is known. state: int32 (STATE,), where the text ends. nodes, values, states, evidences: the last
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


structref.define_boxing(_RequestType, Request)
_request: Any = Request
_FIELDS = tuple(Request.__annotations__)


@numba.extending.overload(Request)
def _new_request(
    sources: Any,
    state: Any,
    nodes: Any,
    values: Any,
    states: Any,
    evidences: Any,
    parameters: Any,
    scratch: Any,
    work: Any,
) -> Any:
    fields = (sources, state, nodes, values, states, evidences, parameters, scratch, work)
    request_type = cast(Any, _RequestType)(list(zip(_FIELDS, fields, strict=True)))

    def new(
        sources: Any,
        state: Any,
        nodes: Any,
        values: Any,
        states: Any,
        evidences: Any,
        parameters: Any,
        scratch: Any,
        work: Any,
    ) -> Any:
        request = _new_struct(request_type)
        request.sources = sources
        request.state = state
        request.nodes = nodes
        request.values = values
        request.states = states
        request.evidences = evidences
        request.parameters = parameters
        request.scratch = scratch
        request.work = work
        return request

    return new


@owning_kernel
def new_request(
    sources: Sources,
    state: Int32Array,
    nodes: Int32Array,
    values: Float32Array,
    states: Int32Array,
    evidences: Int32Array,
    parameters: Float32Array,
    scratch: Float32Array,
    work: Int32Array,
) -> Request:
    """Put a request's arrays together."""
    return _request(sources, state, nodes, values, states, evidences, parameters, scratch, work)
