"""What an export for IREE adds to a package: MLIR for every width, modules of the usual ones, and their index.

A width is that of passes of one tree, N nodes, as many logit rows. M and S stay free: loops over the visible rows of a
free number take a tenth longer than over a fixed one, and one module serves them all.
"""

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir
from onnx_ir.passes import common
from onnxscript.optimizer import fold_constants

from reader_edge_export.onnx_graph.graph_editor import sizes_of
from reader_edge_runtime.errors import ExportError, InstallationError
from reader_edge_runtime.execution.iree.compilation import compile_module
from reader_edge_runtime.execution.iree.module_files import (
    COMPILED_WIDTHS,
    INDEX_NAME,
    WIDTHS,
    ModuleIndex,
    mlir_name,
    module_name,
)
from reader_edge_runtime.execution.iree.target_machine import TARGETS
from reader_edge_runtime.execution.iree.wheel import compiler_version
from reader_edge_runtime.package.manifest import GRAPH_NAME
from reader_edge_runtime.package.model_package import ModelPackage

# Importers leave tensors of fewer elements in the text, and refer to a file for the others.
LEAST_PARAMETER = 64
_IMPORTER = "iree.compiler.tools.import_onnx"
_MAX_REASON = 200
NUM_STEPS = len(WIDTHS) + len(COMPILED_WIDTHS)  # of `write_mlir`


def fix_width(model: ir.Model, width: int) -> None:
    """Give N and R their numbers, and fold what becomes of them; weights are not read."""
    sizes: dict[int | str | None, int] = {"B": 1, "N": width, "R": width}
    for value in (*model.graph.inputs, *model.graph.outputs):
        value.shape = ir.Shape([sizes.get(size, size) for size in sizes_of(value) or ()])
    for node in model.graph:
        for output in node.outputs:
            if not output.is_graph_output():
                output.shape = None
    fold_constants(model, onnx_shape_inference=True, should_fold=_is_small)
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor) and tensor.size < LEAST_PARAMETER:
            value.const_value = ir.Tensor(tensor.numpy().copy(), dtype=tensor.dtype, name=tensor.name)
    for tidy in (
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.IdentityEliminationPass(),
        common.CommonSubexpressionEliminationPass(),
        common.RemoveUnusedNodesPass(),
    ):
        tidy(model)


def _is_small(node: ir.Node) -> bool:
    sizes = node.outputs[0].shape
    return sizes is not None and sizes.is_static() and math.prod(sizes.numpy()) < LEAST_PARAMETER


def write_mlir(folder: Path, work_folder: Path, target: str, advance: Callable[[float], None]) -> None:
    """Add all that belongs to IREE to the files of a package in `folder`, whose graph is there.

    target: one of TARGETS. work_folder: a folder for what is needed meanwhile. advance: called after each of NUM_STEPS.
    Raises InstallationError, ExportError, ProviderError.
    """
    version, machine = compiler_version(), TARGETS[target]
    if version is None:
        raise InstallationError("IREE's compiler is missing: pip install 'reader-edge[iree-export]'.")
    parameters: dict[str, tuple[int, int]] = {}
    for width in WIDTHS:
        model = ir.load(folder / GRAPH_NAME)
        fix_width(model, width)
        parameters |= _parameters(model)
        (folder / mlir_name(width)).write_bytes(_imported(model, work_folder))
        advance(1)
    for width in COMPILED_WIDTHS:
        (folder / module_name(width)).write_bytes(compile_module(folder / mlir_name(width), machine))
        advance(1)
    inputs, outputs = (tuple(str(value.name) for value in each) for each in (model.graph.inputs, model.graph.outputs))
    (folder / INDEX_NAME).write_bytes(ModuleIndex(target, version, inputs, outputs, parameters).encoded())


def check_modules(package: ModelPackage) -> None:
    """Compare the modules with ONNX Runtime, if this machine runs them; else the first that does compares them.

    Raises ProviderError.
    """
    from reader_edge_runtime.execution.iree.module_set import ModuleSet  # which imports the runtime

    index = ModuleIndex.of(package)
    target = TARGETS[index.target]
    if target.is_here:
        ModuleSet(package, index, target, 0)


def _imported(model: ir.Model, work_folder: Path) -> bytes:
    """A graph as MLIR, which names its weights and does not hold them."""
    fixed, mlir = work_folder / "fixed.onnx", work_folder / "fixed.mlir"
    ir.save(model, fixed)
    call = [sys.executable, "-m", _IMPORTER, str(fixed), "-o", str(mlir), "--large-model", "--externalize-params"]
    call += ["--no-save-params", "--num-elements-threshold", str(LEAST_PARAMETER)]
    done = subprocess.run(call, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    fixed.unlink()
    if done.returncode != 0:
        reason = (done.stderr.decode(errors="replace").splitlines() or ["no reason given"])[-1]
        raise ExportError(f"IREE cannot import the graph ({reason:.{_MAX_REASON}}): report this model.")
    text = mlir.read_bytes()
    mlir.unlink()
    return text


def _parameters(model: ir.Model) -> dict[str, tuple[int, int]]:
    """Of the weights that a graph keeps in a file, by the name that the importer gives them: offset and size there."""
    tensors = {str(value.name): value.const_value for value in model.graph.initializers.values()}
    return {
        name.replace(":", "_"): (tensor.offset or 0, tensor.nbytes)
        for name, tensor in tensors.items()
        if isinstance(tensor, ir.ExternalTensor)
    }
