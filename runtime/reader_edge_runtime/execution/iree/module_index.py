"""What a package says of its modules: `iree.json`, beside MLIR and modules that are named by their widths."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from reader_edge_runtime.errors import PackageError
from reader_edge_runtime.execution.iree.target_machine import IREE_ATTENTION, TARGETS
from reader_edge_runtime.execution.onnxruntime.graph_contract import input_tensors, output_tensors
from reader_edge_runtime.package.manifest import WEIGHTS_NAME, Manifest
from reader_edge_runtime.package.model_package import ModelPackage

INDEX_NAME = "iree.json"
WIDTHS = (1, 2, 4, 8, 16, 32, 64)  # of passes that there is MLIR for: nodes, and rows that they report on
COMPILED_WIDTHS = (1, 8)  # those that an export compiles

_MAX_BYTES = 1 << 24
_MAX_MODULE_BYTES = 1 << 28  # of MLIR, or of a module, which hold no weights and are read whole


@dataclass(frozen=True, slots=True)
class ModuleIndex:
    """target: what the package's modules are compiled for. compiler: by which version.

    inputs, outputs: names of the graph's, in MLIR's order, which keeps no names. parameters: by the name that MLIR has
    for it, where a weight lies in the package's file of weights: its offset and size in bytes.
    """

    target: str
    compiler: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    parameters: dict[str, tuple[int, int]]

    def encoded(self) -> bytes:
        return (json.dumps({"format_version": 1, **asdict(self)}, indent=1) + "\n").encode()

    @classmethod
    def of(cls, package: ModelPackage) -> "ModuleIndex":
        """Read and checked. Raises PackageError for a package without one, or with one that is not what this reads."""
        if INDEX_NAME not in package.manifest.files:
            raise PackageError(f"'{package.folder}' holds no MLIR: export it with --engine iree.")
        path = package.path(INDEX_NAME)
        try:
            if path.stat().st_size > _MAX_BYTES:
                raise ValueError("too large")
            _check_sizes(package.manifest)
            return _checked(json.loads(path.read_bytes()), package.manifest)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise PackageError(f"'{path}' is unusable ({error!s:.80}): export the model again.") from None


def mlir_name(width: int) -> str:
    return f"iree-{width}.mlir"


def module_name(width: int) -> str:
    return f"iree-{width}.vmfb"


def _checked(fields: Any, manifest: Manifest) -> ModuleIndex:
    """Raises ValueError, KeyError or TypeError for anything that an export does not write."""
    version = fields["format_version"]
    if type(version) is not int or version != 1 or fields["target"] not in TARGETS:
        raise ValueError(f"format {version!r:.20}, target {fields['target']!r:.20}")
    is_fp32 = manifest.precision == "fp32" and manifest.kv_dtype == "float32"
    if manifest.attention != IREE_ATTENTION or not is_fp32 or manifest.has_states:
        raise ValueError(f"{manifest.attention} attention, {manifest.kv_dtype} cache")
    if not isinstance(fields["compiler"], str) or not fields["compiler"].isprintable():
        raise ValueError("compiler")
    inputs, outputs = tuple(fields["inputs"]), tuple(fields["outputs"])
    if sorted(inputs) != sorted((*input_tensors(manifest, 1, 1, 1, 1), *manifest.past_names())):
        raise ValueError("inputs")
    if sorted(outputs) != sorted((*output_tensors(manifest, 1, 1), *manifest.present_names())):
        raise ValueError("outputs")
    if not isinstance(fields["parameters"], dict):
        raise ValueError("parameters")
    num_bytes = manifest.files[WEIGHTS_NAME].num_bytes
    parameters = {}
    for name, (offset, size) in fields["parameters"].items():
        is_inside = type(offset) is type(size) is int and 0 <= offset <= offset + size <= num_bytes
        if not is_inside or not name.isprintable():
            raise ValueError(f"parameter {name!r:.40}")
        parameters[name] = offset, size
    return ModuleIndex(fields["target"], fields["compiler"][:40], inputs, outputs, parameters)


def _check_sizes(manifest: Manifest) -> None:
    """Raises ValueError for a file that is too large to be read whole."""
    for name, entry in manifest.files.items():
        if name.startswith("iree-") and entry.num_bytes > _MAX_MODULE_BYTES:
            raise ValueError(f"{name} is too large")
