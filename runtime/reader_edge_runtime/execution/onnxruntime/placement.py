"""Where the nodes of a loaded graph run."""

from collections import defaultdict

from reader_edge_runtime.target import Target


def nodes_elsewhere(target: Target) -> dict[str, list[str]] | None:
    """The nodes that another provider than the target's own runs, "operator name" by provider; {} where none does.

    None where it is not known: no session, or one of several providers that did not note who takes what.
    """
    session = getattr(target, "session", None)
    if session is None:
        return None
    if session.get_providers() == [target.provider]:
        return {}
    try:
        subgraphs = session.get_provider_graph_assignment_info()
    except Exception:  # onnxruntime raises unrelated classes here
        return None
    elsewhere: defaultdict[str, list[str]] = defaultdict(list)
    for each in subgraphs:
        if each.ep_name != target.provider:
            elsewhere[str(each.ep_name)] += [f"{node.op_type} {node.name}".rstrip() for node in each.get_nodes()]
    return dict(elsewhere)
