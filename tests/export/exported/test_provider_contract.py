"""The contract of tests/runtime/execution/test_providers.py, kept by the providers of devices, played on the CPU.

What is not theirs is left: the code of the target, of its cache and of its sessions is that which runs on a GPU.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from reader_edge_runtime.execution.onnxruntime.device.device_target import DeviceTarget
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Target
from tests.export.exported.played_engines import PlayedEngines
from tests.runtime.execution.test_providers import (  # noqa: F401 # collected here with the targets below
    test_best_successors_are_those_of_the_logits,
    test_cache_keeps_the_committed_path_through_growth_swap_and_truncation,
    test_nodes_of_a_tree_see_their_ancestors_alone,
    test_rows_that_were_read_go_on_in_another_slot_of_another_cache,
    test_sequences_of_a_batch_do_not_see_each_other,
)

PLAYED: dict[str, Callable[[ModelPackage], Target]] = {
    "cuda": lambda package: DeviceTarget.open_on(package, "cpu", 1),
    "tensorrt": lambda package: PlayedEngines(package).target(),
}
PACKAGES = {"cuda": [("fp16", "exact"), ("fp32", "fast")], "tensorrt": [("fp16", "fast"), ("fp32", "fast")]}
CASES = [(name, *package) for name, packages in PACKAGES.items() for package in packages]


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def target(request: pytest.FixtureRequest, exported: Callable[..., Path]) -> Target:
    name, precision, attention = request.param
    return PLAYED[name](ModelPackage.open(exported("llama", precision, attention, is_checked=False)))
