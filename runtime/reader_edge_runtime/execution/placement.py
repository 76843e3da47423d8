"""Where the nodes of a graph went: one on the CPU in the midst of a GPU's costs two copies a pass, and says nothing."""

import onnxruntime as ort

from reader_edge_runtime.errors import ProviderError

RECORD_PLACEMENT = "session.record_ep_graph_assignment_info"  # the session option that `misplaced_nodes` needs

_MAX_NAMED = 3


def misplaced_nodes(session: ort.InferenceSession, provider: str) -> list[str]:
    """Nodes that another provider runs, as "operator name"."""
    return [
        f"{node.op_type} {node.name}".rstrip()
        for subgraph in session.get_provider_graph_assignment_info()
        if subgraph.ep_name != provider
        for node in subgraph.get_nodes()
    ]


def check_placement(session: ort.InferenceSession, provider: str) -> None:
    """Raise ProviderError, with names, unless `provider` runs every node."""
    misplaced = misplaced_nodes(session, provider)
    if misplaced:
        named = ", ".join(misplaced[:_MAX_NAMED])
        raise ProviderError(
            f"{provider} does not run {len(misplaced)} nodes of this graph ({named}): "
            "export with --precision fp16, or use --provider cpu."
        )
