"""Where the nodes of a graph went: one on the CPU in the midst of a GPU's costs two copies a pass, and says nothing."""

from pathlib import Path

import onnxruntime as ort

from reader_edge_runtime.errors import ProviderError
from reader_edge_runtime.execution.onnxruntime.session import CUDA, load_session

# With graph capture on, ONNX Runtime refuses a graph that copies between host and device (a Memcpy node), though it
# names no node. TensorFloat-32 would give products of fp32 packages the 11 bits of fp16.
_OPTIONS = {CUDA: {"enable_cuda_graph": "1", "use_tf32": "0"}}
_REFUSAL = "cannot use the graph capture feature"

_MAKERS_OF_SIZES = ("Shape", "Size")  # whatever provider runs them, their results are the host's


def load_placed(graph: Path, options: ort.SessionOptions, provider: str) -> ort.InferenceSession:
    """Load a graph that `provider` runs whole, without a copy between host and device.

    Raises ProviderError, with names of the nodes in the way.
    """
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    try:
        session = load_session(graph, options, provider, _OPTIONS.get(provider))
    except ProviderError as error:
        if _REFUSAL not in str(error):
            raise
        uncaptured = load_session(graph, options, provider)
        check_placement(uncaptured, provider)
        sizes = [name for _, name in _nodes(uncaptured) if name.startswith(_MAKERS_OF_SIZES)]
        raise _refusal(f"{provider} would copy between host and device, for what comes of", sizes) from error
    check_placement(session, provider)
    return session


def check_placement(session: ort.InferenceSession, provider: str) -> None:
    """Raise ProviderError, with names, unless `provider` runs every node of a session with recorded placement."""
    misplaced = [name for ep_name, name in _nodes(session) if ep_name != provider]
    if misplaced:
        raise _refusal(f"{provider} does not run", misplaced)


def _nodes(session: ort.InferenceSession) -> list[tuple[str, str]]:
    """The provider of each node, and the node as "operator name"."""
    subgraphs = session.get_provider_graph_assignment_info()
    return [(each.ep_name, f"{node.op_type} {node.name}".rstrip()) for each in subgraphs for node in each.get_nodes()]


def _refusal(finding: str, nodes: list[str]) -> ProviderError:
    named = ", ".join(nodes[:3])
    return ProviderError(
        f"{finding} {len(nodes)} nodes of this graph ({named}): export with --precision fp16, or use --provider cpu."
    )
