"""Sessions on ONNX Runtime: options, loading, and runs whose faults are ours to tell."""

from pathlib import Path

import onnxruntime as ort

from reader_edge_runtime.errors import ProviderError
from reader_edge_runtime.processor import has_saturating_sums, num_usable_cores

# ONNX Runtime's levels: 2 warnings, 3 errors. Errors come back as exceptions, so its log stays quiet.
LOG_SEVERITY = 3

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
NOT_CAPTURED = -1  # ONNX Runtime's graph id of a run that is made as it comes


def open_session(graph: Path, threads: int, library: Path | None = None) -> ort.InferenceSession:
    """Load a graph on the CPU provider with `threads` threads (0: the usable cores).

    library: operators whose kernels take the place of the graph's own definitions.
    """
    options = session_options(threads)
    if has_saturating_sums():
        options.add_session_config_entry("session.x64quantprecision", "1")
    options.enable_mem_pattern = False  # it keeps one for good for each new past: 10 KB on the demo
    if library is not None:
        options.register_custom_ops_library(str(library))
    return load_session(graph, options, CPU)


def session_options(threads: int) -> ort.SessionOptions:
    """Options that all sessions share."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads or num_usable_cores()
    options.inter_op_num_threads = 1
    options.log_severity_level = LOG_SEVERITY
    return options


def run_options(graph_id: int = NOT_CAPTURED) -> ort.RunOptions:
    """Options of a run that a device captures under an id, and replays whenever the id comes again."""
    options = ort.RunOptions()
    options.add_run_config_entry("gpu_graph_id", str(graph_id))
    return options


def load_session(
    graph: Path, options: ort.SessionOptions, provider: str, provider_options: dict[str, str] | None = None
) -> ort.InferenceSession:
    """Load a graph on one provider. Raises ProviderError, also where ONNX Runtime takes another one instead."""
    try:
        session = ort.InferenceSession(str(graph), options, providers=[(provider, provider_options or {})])
    except Exception as error:  # onnxruntime raises a dozen unrelated classes here
        raise ProviderError(f"ONNX Runtime cannot load '{graph}': {_reason(error)}") from error
    if session.get_providers()[0] != provider:
        raise ProviderError(
            f"ONNX Runtime would run '{graph}' on {session.get_providers()[0]} instead of {provider}: "
            "use --provider cpu, or see its log for what is missing."
        )
    return session


def run_bound(session: ort.InferenceSession, binding: ort.IOBinding, options: ort.RunOptions | None = None) -> None:
    """Run a graph on its bound tensors. Raises ProviderError where it fails."""
    try:
        session.run_with_iobinding(binding, options)
    except Exception as error:  # as when loading
        raise ProviderError(
            f"ONNX Runtime failed in a pass ({_reason(error)}): export the model again, or free some memory."
        ) from error


def _reason(error: Exception) -> str:
    """The first line of what ONNX Runtime says."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
