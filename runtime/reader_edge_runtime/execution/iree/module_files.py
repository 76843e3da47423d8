"""A package's modules: what its `iree.json` says of them, and their files, shipped ones and those compiled here."""

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from reader_edge_runtime.atomic_file import new_file, write_failure
from reader_edge_runtime.errors import PackageError, ProviderError
from reader_edge_runtime.execution.iree.compilation import compile_module, module_key
from reader_edge_runtime.execution.iree.target_machine import IREE_ATTENTION, TARGETS, TargetMachine
from reader_edge_runtime.execution.iree.wheel import compiler_version
from reader_edge_runtime.execution.onnxruntime.graph_contract import input_tensors, output_tensors
from reader_edge_runtime.machine.cache_folder import cache_folder, make_private, why_untrusted
from reader_edge_runtime.package.manifest import WEIGHTS_NAME, Manifest
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.untrusted.untrusted_json import Text, converted, one_of, read_json

INDEX_NAME = "iree.json"
WIDTHS = (1, 2, 4, 8, 16, 32, 64)  # of passes that there is MLIR for: nodes, and rows that they report on
COMPILED_WIDTHS = (1, 8)  # those that an export compiles

_MAX_BYTES = 1 << 24
_Offset = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
_MAX_MODULE_BYTES = 1 << 28  # of MLIR, or of a module, which hold no weights and are read whole


@dataclass(frozen=True, slots=True)
class ModuleIndex:
    """target: what the package's modules are compiled for. compiler: by which version.

    inputs, outputs: names of the graph's, in MLIR's order, which keeps no names. parameters: by the name that MLIR has
    for it, where a weight lies in the package's file of weights: its offset and size in bytes.
    """

    target: Annotated[str, one_of(*TARGETS)]
    compiler: Text
    inputs: tuple[Text, ...]
    outputs: tuple[Text, ...]
    parameters: dict[Text, tuple[_Offset, _Offset]]
    format_version: Literal[1] = 1

    def encoded(self) -> bytes:
        return (json.dumps({"format_version": 1} | asdict(self), indent=1) + "\n").encode()

    @classmethod
    def of(cls, package: ModelPackage) -> "ModuleIndex":
        """Read and checked. Raises PackageError for a package without one, or with one that is not what this reads."""
        if INDEX_NAME not in package.manifest.files:
            raise PackageError(f"'{package.folder}' holds no MLIR: export it with --engine iree.")
        path, remedy = package.path(INDEX_NAME), "export the model again"
        index = converted(read_json(path, PackageError, remedy, _MAX_BYTES), cls, f"'{path}'", PackageError, remedy)
        if misfit := _misfit(index, package.manifest):
            raise PackageError(f"'{path}' is unusable ({misfit:.80}): {remedy}.")
        return index


def mlir_name(width: int) -> str:
    return f"iree-{width}.mlir"


def module_name(width: int) -> str:
    return f"iree-{width}.vmfb"


def _misfit(index: ModuleIndex, manifest: Manifest) -> str | None:
    """What does not fit to the package; None for nothing."""
    is_fp32 = manifest.precision == "fp32" and manifest.kv_dtype == "float32"
    if manifest.attention != IREE_ATTENTION or not is_fp32 or manifest.has_states:
        return f"{manifest.attention} attention, {manifest.kv_dtype} cache"
    if sorted(index.inputs) != sorted((*input_tensors(manifest, 1, 1, 1, 1), *manifest.past_names())):
        return "inputs"
    if sorted(index.outputs) != sorted((*output_tensors(manifest, 1, 1), *manifest.present_names())):
        return "outputs"
    num_bytes = manifest.files[WEIGHTS_NAME].num_bytes
    for name, entry in manifest.files.items():
        if name.startswith("iree-") and entry.num_bytes > _MAX_MODULE_BYTES:
            return f"{name} is too large"
    outside = (name for name, (offset, size) in index.parameters.items() if offset + size > num_bytes)
    return next((f"parameter {name!r:.40}" for name in outside), None)


class ModuleFiles:
    """Those for one target."""

    def __init__(self, package: ModelPackage, index: ModuleIndex, target: TargetMachine) -> None:
        self._package = package
        self._index = index
        self._target = target

    def is_shipped(self, width: int) -> bool:
        return self._target.name == self._index.target and module_name(width) in self._package.manifest.files

    def kept(self, width: int) -> Path | None:
        """A module that was compiled here."""
        if compiler_version() is None:
            return None
        path = self.cached(width)
        return path if os.access(path, os.R_OK) and path.is_file() else None

    def compiled(self, width: int, check: Callable[[Path], None], is_aside: bool = False) -> Path:
        """Compile a module, and keep it where `check` does not raise. Raises ProviderError or InstallationError."""
        path = self.cached(width)
        module = compile_module(self._package.path(mlir_name(width)), self._target, is_aside)
        try:
            make_private(path.parent, cache_folder())
            with new_file(path, 0o600, keeps_mode=False) as file:
                file.write(module)
                file.flush()
                check(Path(file.name))
        except OSError as error:
            elsewhere = "set XDG_CACHE_HOME to a folder that can be written"
            raise ProviderError(write_failure(path, error, elsewhere=elsewhere)) from error
        return path

    def cached(self, width: int) -> Path:
        """Raises ProviderError where others could have put their own code."""
        key = module_key(self._package.path(mlir_name(width)), self._target)
        path = cache_folder() / "iree" / f"{key}.vmfb"
        if fault := why_untrusted(path, cache_folder()):
            raise ProviderError(fault)
        return path
