"""Modules for another processor, run by IREE's own program in an emulator and compared with ONNX Runtime here.

python -m benchmarks.passes.iree_emulated PACKAGE --program "qemu-aarch64-static -L ROOT iree-run-module"; PACKAGE is of
`export --engine iree --target aarch64`, ROOT has that processor's libraries.
"""

import argparse
import shlex
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import iree.runtime as rt
import numpy as np

from reader_edge_runtime.execution.inputs import Inputs
from reader_edge_runtime.execution.iree.module_check import ModuleCheck
from reader_edge_runtime.execution.iree.module_index import COMPILED_WIDTHS, ModuleIndex, module_name
from reader_edge_runtime.execution.onnxruntime.host.host_rows_runner import HostRowsRunner
from reader_edge_runtime.execution.onnxruntime.host.kv_slab import KvArray
from reader_edge_runtime.execution.rows.rows_runner import RowsResult
from reader_edge_runtime.package.manifest import WEIGHTS_NAME
from reader_edge_runtime.package.model_package import ModelPackage

NUM_NODES = 8


class ProgramRunner:
    """A `RowsRunner` whose passes are runs of a program, arrays going through files of a folder."""

    provider = "iree-run-module"
    pass_sizes: tuple[int, ...] = ()
    pass_facts: tuple[str, ...] = ()

    def __init__(self, package: ModelPackage, width: int, program: Sequence[str], folder: Path) -> None:
        self.manifest = package.manifest
        self._index = ModuleIndex.of(package)
        self._width = width
        self._folder = folder
        parameters = f"--parameters=model={weights_archive(package, self._index, folder)}"
        module = f"--module={package.path(module_name(width))}"
        self._call = [*program, "--device=local-sync", "--function=main_graph", module, parameters]

    def width_for(self, num_nodes: int) -> int:
        return self._width

    def bound(self, past: Mapping[str, KvArray]) -> Mapping[str, KvArray]:
        return past

    def run(self, inputs: Inputs, bound: Mapping[str, KvArray]) -> RowsResult:
        rows = np.zeros((1, self._width), np.int32)
        rows[:, : inputs["logit_rows"].shape[1]] = inputs["logit_rows"]
        given = {**inputs, **bound, "logit_rows": rows}
        for name in self._index.inputs:
            np.save(self._folder / f"{name}.npy", np.ascontiguousarray(given[name]))
        call = [*self._call, *(f"--input=@{self._folder / name}.npy" for name in self._index.inputs)]
        call += [f"--output=@{self._folder / name}.npy" for name in self._index.outputs]
        subprocess.run(call, check=True, capture_output=True)
        made = {name: np.load(self._folder / f"{name}.npy")[0] for name in self._index.outputs}
        names = zip(self.manifest.past_names(), self.manifest.present_names(), strict=True)
        return RowsResult(made["logits"], made.get("hidden_states"), {past: made[new] for past, new in names})


def weights_archive(package: ModelPackage, index: ModuleIndex, folder: Path) -> Path:
    """The package's weights as the program reads them."""
    archive, weights = folder / "weights.irpa", np.memmap(package.path(WEIGHTS_NAME), mode="r")
    if not archive.exists():
        parameters = rt.ParameterIndex()
        for name, (offset, num_bytes) in index.parameters.items():
            parameters.add_buffer(name, np.array(weights[offset : offset + num_bytes]))
        parameters.create_archive_file(str(archive))
    return archive


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("package")
    parser.add_argument("--program", required=True)
    arguments = parser.parse_args()
    package, program = ModelPackage.open(arguments.package), shlex.split(arguments.program)
    check = ModuleCheck(package)
    tree = check.tree(NUM_NODES)
    expected = check.logits(HostRowsRunner(package), tree)
    with tempfile.TemporaryDirectory() as folder:
        runners = [ProgramRunner(package, width, program, Path(folder)) for width in COMPILED_WIDTHS]
        found = [check.logits(runner, tree) for runner in runners]
    for width, logits in zip(COMPILED_WIDTHS, found, strict=True):
        difference, scale = np.abs(logits - expected).max(), np.abs(expected).max()
        num_same = (logits.argmax(axis=1) == expected.argmax(axis=1)).sum()
        print(f"width {width}: {difference:.2e} of {scale:.1f}, best token {num_same} of {NUM_NODES}")
    num_equal = (found[0] == found[1]).all(axis=1).sum()
    print(f"rows with the same bits at both widths: {num_equal} of {NUM_NODES}")


if __name__ == "__main__":
    main()
