"""Modules for a device compared with ONNX Runtime: how far the logits of a tree are, where a pass has no rows to spare.

python -m benchmarks.passes.iree_devices PACKAGE --visible 256 1024; PACKAGE: of `export --engine iree --target vulkan`.
"""

import argparse

import numpy as np

from reader_edge_runtime.execution.iree.device_modules import DeviceModules
from reader_edge_runtime.execution.iree.device_runner import DeviceRunner
from reader_edge_runtime.execution.iree.module_check import ModuleCheck
from reader_edge_runtime.execution.iree.module_index import DEVICE_WIDTHS, LEAST_VISIBLE, ModuleIndex
from reader_edge_runtime.execution.iree.target_machine import TARGETS
from reader_edge_runtime.execution.onnxruntime.host.host_rows_runner import HostRowsRunner
from reader_edge_runtime.package.model_package import ModelPackage


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("package")
    parser.add_argument("--visible", type=int, nargs="+", default=[LEAST_VISIBLE])
    arguments = parser.parse_args()
    package = ModelPackage.open(arguments.package)
    index = ModuleIndex.of(package)
    target = TARGETS[index.target]
    modules, reference = DeviceModules(package, index, target), HostRowsRunner(package, threads=1)
    print(*modules.runner.pass_facts)
    for num_visible in arguments.visible:
        for width in DEVICE_WIDTHS:
            runner = DeviceRunner(package.manifest, index, modules.device, modules.module, (width,), num_visible)
            check = ModuleCheck(package, num_visible - width)
            tree = check.tree(width)
            found, expected = check.logits(runner, tree), check.logits(reference, tree)
            num_equal = (found.argmax(axis=1) == expected.argmax(axis=1)).sum()
            print(
                f"{width} nodes, {num_visible} rows: {np.abs(found - expected).max():.1e} from ONNX Runtime's, whose "
                f"largest is {np.abs(expected).max():.1f}; best token the same in {num_equal} of {len(tree)}"
            )


if __name__ == "__main__":
    main()
