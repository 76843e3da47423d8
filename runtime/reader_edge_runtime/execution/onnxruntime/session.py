"""Sessions on ONNX Runtime: options, loading, and runs whose faults are ours to tell.

A device's session is refused where one node would run on the CPU: that costs two copies a pass, and says nothing.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from reader_edge_runtime.errors import ProviderError
from reader_edge_runtime.execution.inputs import Inputs
from reader_edge_runtime.execution.onnxruntime.graph_contract import check_contract
from reader_edge_runtime.execution.onnxruntime.wheel import ort
from reader_edge_runtime.execution.rows.rows_target import RowsResult
from reader_edge_runtime.machine.processor import has_saturating_sums, num_threads
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.target import Target

# ONNX Runtime's levels: 2 warnings, 3 errors, 4 fatal ones; runs take their session's. Errors come back as exceptions,
# and in the log names from the graph could steer a terminal.
LOG_SEVERITY = 4

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
NOT_CAPTURED = -1  # ONNX Runtime's graph id of a run that is made as it comes

# With graph capture on, ONNX Runtime refuses a graph that copies between host and device (a Memcpy node), though it
# names no node. TensorFloat-32 would give products of fp32 packages the 11 bits of fp16.
_OPTIONS = {CUDA: {"enable_cuda_graph": "1", "use_tf32": "0"}}
_REFUSAL = "cannot use the graph capture feature"
_REMEDY = "export with --precision fp16, or use --provider cpu"
_NO_MEMORY = re.compile("bad_alloc|MemoryError|allocate memory", re.IGNORECASE)
_LARGE_REMEDY = "cut the package for several boxes with `reader-edge split`, or export with fewer bits"
_MAKERS_OF_SIZES = ("Shape", "Size")  # whatever provider runs them, their results are the host's


def open_session(
    graph: Path | bytes,
    threads: int,
    library: Path | None = None,
    weights_folder: Path | None = None,
) -> ort.InferenceSession:
    """On the CPU; threads: 0 is the usable cores. library: operators that take the place of the graph's definitions.

    graph: a file, or the contents of one whose weights are in `weights_folder`.
    """
    options = cpu_options(threads)
    if weights_folder is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(weights_folder))
    options.enable_mem_pattern = False  # it keeps one for good for each new past: 10 KB on the demo
    if library is not None:
        options.register_custom_ops_library(str(library))
    return load_session(graph, options, CPU)


def cpu_options(threads: int) -> ort.SessionOptions:
    """Options of sessions on the CPU, whose integer products are right on every processor."""
    options = session_options(threads)
    # Else they spin on behind a pass, on cores that a draft's pass needs: one of 2.6 ms then took up to 9.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if has_saturating_sums():
        options.add_session_config_entry("session.x64quantprecision", "1")
    return options


def session_options(threads: int) -> ort.SessionOptions:
    """Options that all sessions share."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = num_threads(threads)
    options.inter_op_num_threads = 1
    options.log_severity_level = LOG_SEVERITY
    return options


def run_options(graph_id: int = NOT_CAPTURED) -> ort.RunOptions:
    """Options of a run that a device captures under an id, and replays whenever the id comes again."""
    options = ort.RunOptions()
    options.add_run_config_entry("gpu_graph_id", str(graph_id))
    return options


def load_session(
    graph: Path | bytes, options: ort.SessionOptions, provider: str, provider_options: dict[str, str] | None = None
) -> ort.InferenceSession:
    """Load a graph on one provider. Raises ProviderError, also where ONNX Runtime takes another one instead."""
    model, name = (graph, "part of a graph") if isinstance(graph, bytes) else (str(graph), f"'{graph}'")
    try:
        providers = [(provider, provider_options or {})]
        session = ort.InferenceSession(model, options, providers, enable_fallback=0)  # it would print, and load twice
    except Exception as error:  # onnxruntime raises a dozen unrelated classes here
        if provider == CPU and _NO_MEMORY.search(f"{type(error).__name__}: {error}"):
            raise ProviderError(f"To load {name} takes more memory than is free: {_LARGE_REMEDY}.") from error
        raise ProviderError(f"ONNX Runtime cannot load {name}: {_reason(error)}") from error
    if session.get_providers()[0] != provider:
        raise ProviderError(
            f"ONNX Runtime would run {name} on {session.get_providers()[0]} instead of {provider}: "
            "use --provider cpu, or see its log for what is missing."
        )
    return session


def load_on_devices(
    graph: Path,
    options: ort.SessionOptions,
    devices: Sequence[Any],
    provider: str,
    provider_options: dict[str, str] | None = None,
) -> ort.InferenceSession:
    """Load a graph on devices (OrtEpDevice) of a plugin, noting who takes which node. Raises ProviderError."""
    record_placement(options)
    try:
        options.add_provider_for_devices(devices, provider_options or {})
        session = ort.InferenceSession(str(graph), options, enable_fallback=0)  # it would print, and load twice
    except Exception as error:  # as with a provider of the wheel
        raise ProviderError(f"ONNX Runtime cannot load '{graph}' on {provider}: {_reason(error)}") from error
    return session


def load_placed(graph: Path, options: ort.SessionOptions, provider: str) -> ort.InferenceSession:
    """Load a graph that `provider` runs whole. Raises ProviderError, with names of the nodes in the way."""
    record_placement(options)
    try:
        session = load_session(graph, options, provider, _OPTIONS.get(provider))
    except ProviderError as error:
        if _REFUSAL not in str(error):
            raise
        uncaptured = load_session(graph, options, provider)
        sizes = [name for name in check_placement(uncaptured, provider) if name.startswith(_MAKERS_OF_SIZES)]
        raise _refusal(f"{provider} would copy between host and device, for what comes of", sizes) from error
    check_placement(session, provider)
    return session


def record_placement(options: ort.SessionOptions) -> None:
    """Have a session tell who runs its nodes."""
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")


def check_placement(
    session: ort.InferenceSession, provider: str, spared: Collection[str] = frozenset(), remedy: str = _REMEDY
) -> list[str]:
    """A session's nodes as "operator name". Raises ProviderError, with names, unless `provider` runs all of them.

    spared: operators that may run elsewhere.
    """
    subgraphs = session.get_provider_graph_assignment_info()
    nodes = [(each.ep_name, f"{node.op_type} {node.name}".rstrip()) for each in subgraphs for node in each.get_nodes()]
    misplaced = [name for ep_name, name in nodes if ep_name != provider and name.split()[0] not in spared]
    if misplaced:
        raise _refusal(f"{provider} does not run", misplaced, remedy)
    return [name for _, name in nodes]


def _refusal(finding: str, nodes: list[str], remedy: str = _REMEDY) -> ProviderError:
    return ProviderError(f"{finding} {len(nodes)} nodes of this graph ({', '.join(nodes[:3])}): {remedy}.")


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


class RowsSession:
    """Results of a pass come to the host's memory, wherever the session runs."""

    def __init__(self, session: ort.InferenceSession, manifest: Manifest) -> None:
        """Raises ProviderError where the graph is not what the manifest says."""
        check_contract(session, manifest)
        self.provider = str(session.get_providers()[0])
        self._session = session
        self._outputs = [node.name for node in session.get_outputs()]
        self._new_rows = dict(zip(manifest.past_names(), manifest.present_names(), strict=True))

    def run(self, inputs: Inputs, past: Mapping[str, ort.OrtValue]) -> RowsResult:
        """past: float32 (1, H, S, D) of each tensor, S at least what masks cover. Raises ProviderError."""
        binding = self._session.io_binding()
        for name, array in inputs.items():
            binding.bind_cpu_input(name, array)
        for name, rows in past.items():
            binding.bind_ortvalue_input(name, rows)
        for name in self._outputs:
            binding.bind_output(name)
        run_bound(self._session, binding)
        made = {name: value.numpy()[0] for name, value in zip(self._outputs, binding.get_outputs(), strict=True)}
        new_rows = {name: made[new] for name, new in self._new_rows.items()}
        return RowsResult(made["logits"], made.get("hidden_states"), new_rows)


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
