"""An engine of TensorRT: a session whose graph is one engine, for one capacity of the cache and every padded size."""

import hashlib
import warnings
from pathlib import Path

from reader_edge_runtime.errors import ProviderError
from reader_edge_runtime.execution.onnxruntime.device.buckets import TREE_SIZES, visible_bucket
from reader_edge_runtime.execution.onnxruntime.device.cuda import gpu_name
from reader_edge_runtime.execution.onnxruntime.device.device_target import PREFILL_CHUNK
from reader_edge_runtime.execution.onnxruntime.graph_contract import input_tensors
from reader_edge_runtime.execution.onnxruntime.session import (
    check_placement,
    load_on_devices,
    load_session,
    record_placement,
    session_options,
)
from reader_edge_runtime.execution.onnxruntime.wheel import INSTALLED_WHEEL, ort
from reader_edge_runtime.machine.cache_folder import cache_folder, make_private, why_untrusted
from reader_edge_runtime.package.manifest import GRAPH_NAME, Manifest
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_tensorrt.libraries import TensorRt

CAPACITY_NAME = "S"  # of the graph's dimension that an engine fixes

_LIKELY_NODES = TREE_SIZES[3]
_LIKELY_VISIBLE = 1024

Shape = tuple[int, ...]
ShapeRange = tuple[Shape, Shape, Shape]  # least, likeliest, largest

_REMEDY = "use --provider cuda, as for Gemma 2, whose capped scores TensorRT does not know"


def open_engine(
    package: ModelPackage, tensorrt: TensorRt, threads: int, num_slots: int, num_rows: int
) -> ort.InferenceSession:
    """Load a package's graph for caches of up to so many slots of `num_rows` rows, padding included.

    Building takes seconds to minutes, and is kept in the user's cache. Raises ProviderError where TensorRT does not
    take the whole graph: what it left out would run on the CPU, and what is between two parts would be copied.
    """
    options = session_options(threads)
    options.add_free_dimension_override_by_name(CAPACITY_NAME, num_rows)
    ranges = shape_ranges(package.manifest, num_slots, num_rows)
    settings = provider_options(tensorrt, ranges, _made_folder(engine_folder(package, tensorrt, num_slots, num_rows)))
    if tensorrt.devices:
        session = load_on_devices(package.path(GRAPH_NAME), options, tensorrt.devices, tensorrt.provider, settings)
    else:
        record_placement(options)
        session = load_session(package.path(GRAPH_NAME), options, tensorrt.provider, settings)
    check_placement(session, tensorrt.provider, remedy=_REMEDY)
    num_parts = len(session.get_provider_graph_assignment_info())
    if num_parts != 1:
        raise ProviderError(f"{tensorrt.provider} takes this graph in {num_parts} parts instead of one: {_REMEDY}.")
    return session


def provider_options(tensorrt: TensorRt, ranges: dict[str, ShapeRange], folder: Path | None) -> dict[str, str]:
    """Options of the provider: the sizes of each input, and where it may keep what it built.

    No precision is among them: packages carry their types, which TensorRT keeps where no option allows others.
    """
    prefix = "nv" if tensorrt.devices else "trt"
    ends = dict(zip(("min", "opt", "max"), zip(*ranges.values(), strict=True), strict=True))
    options = {f"{prefix}_profile_{end}_shapes": _written(ranges, shapes) for end, shapes in ends.items()}
    if folder is None:
        return options
    if tensorrt.devices:
        return options | {"nv_runtime_cache_path": str(folder)}
    kept = {"trt_engine_cache_enable": "1", "trt_timing_cache_enable": "1"}
    return options | kept | {"trt_engine_cache_path": str(folder), "trt_timing_cache_path": str(folder.parent)}


def engine_folder(package: ModelPackage, tensorrt: TensorRt, num_slots: int, num_rows: int) -> Path:
    """Another one for every size of caches, package, GPU, driver and version of what builds and loads engines.

    TensorRT names what it keeps by the graph's nodes, which are the same for all sizes.
    """
    facts = [package.fingerprint().hex(), gpu_name(), INSTALLED_WHEEL, tensorrt.provider, tensorrt.version]
    key = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:24]
    return cache_folder() / "engines" / key / f"{num_slots}x{num_rows}"


def _made_folder(folder: Path) -> Path | None:
    """None where nothing can be kept."""
    try:
        make_private(folder, cache_folder())  # an engine is code
        fault = why_untrusted(folder, cache_folder())
    except OSError:
        return None
    if fault:
        warnings.warn(fault, stacklevel=2)
    return None if fault else folder


def _written(names: dict[str, ShapeRange], shapes: tuple[Shape, ...]) -> str:
    return ",".join(f"{name}:{'x'.join(map(str, shape))}" for name, shape in zip(names, shapes, strict=True))


def shape_ranges(manifest: Manifest, num_slots: int, num_rows: int) -> dict[str, ShapeRange]:
    """The shapes of each input of a graph for a cache of so many slots of `num_rows` rows, padding included."""
    sizes = (
        (1, 1, visible_bucket(1, num_rows), 1),
        (1, _LIKELY_NODES, visible_bucket(_LIKELY_VISIBLE, num_rows), _LIKELY_NODES),
        (num_slots, PREFILL_CHUNK, num_rows, PREFILL_CHUNK),
    )
    ends = [_shapes(manifest, num_rows, *each) for each in sizes]
    return {name: (ends[0][name], ends[1][name], ends[2][name]) for name in ends[0]}


def _shapes(
    manifest: Manifest, capacity: int, num_trees: int, num_nodes: int, num_visible: int, num_rows: int
) -> dict[str, Shape]:
    tensors = input_tensors(manifest, num_trees, num_nodes, num_visible, num_rows)
    kv = num_trees, manifest.num_kv_heads, capacity, manifest.head_dim
    return {name: shape for name, (_, shape) in tensors.items()} | dict.fromkeys(manifest.past_names(), kv)
