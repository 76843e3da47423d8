"""Native kernels have the bits of the definitions at every width, tree and batch, here and emulated; repeats too."""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from reader_edge_runtime import Engine, EngineConfig, GenerationConfig
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.execution.onnxruntime.host.host_cache import HostCache
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.execution.onnxruntime.native import instructions_here, native_library
from reader_edge_runtime.machine import processor
from reader_edge_runtime.measuring.cost_cache import cost_path
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Pass
from tests.conftest import ROOT
from tests.runtime.execution.native.kernel_cases import WIDEST, Array, Case, cases, write_cases
from tests.runtime.execution.native_operator import Operator, needs_kernels

pytestmark = needs_kernels
with_instructions = pytest.mark.usefixtures("instructions")
Arrays = Sequence[npt.NDArray[np.generic]]


@pytest.fixture(scope="module")
def targets(demo_folder: Path, instructions: str) -> tuple[HostTarget, HostTarget]:
    """The demo package by its own definitions, and with native kernels."""
    package = ModelPackage.open(demo_folder)
    with pytest.MonkeyPatch.context() as patch:  # pytest's workers have one core
        patch.setattr(processor, "num_usable_cores", lambda: 2)
        pure, native = (HostTarget.open(package, 2, uses_native) for uses_native in (False, True))
    assert not pure.is_native
    assert native.is_native
    assert native.instructions == instructions
    return pure, native


@with_instructions
@pytest.mark.long
@pytest.mark.parametrize(("past", "widths"), [(29, range(1, 65)), (0, (1, 2, 16, 33)), (300, (1, 7, 16, 64))])
def test_bits_are_equal_at_every_width(
    past: int, widths: Sequence[int], targets: tuple[HostTarget, HostTarget]
) -> None:
    rng = np.random.default_rng(past)
    for num_nodes in widths:
        tree = _random_tree(num_nodes, rng)
        _assert_equal(*(_pass_of(target, past, [tree]) for target in targets))


@with_instructions
@pytest.mark.parametrize("num_nodes", [1, 5, 16])
def test_native_bits_equal_pure_bits_in_a_ragged_batch(num_nodes: int, targets: tuple[HostTarget, HostTarget]) -> None:
    rng = np.random.default_rng(num_nodes)
    trees = [_random_tree(num_nodes, rng), _random_tree(max(1, num_nodes // 2), rng)]
    _assert_equal(*(_pass_of(target, 70, trees) for target in targets))


@with_instructions
def test_native_bits_equal_pure_bits_in_a_prefill(targets: tuple[HostTarget, HostTarget]) -> None:
    _assert_equal(*(_pass_of(target, 256, [DraftTree.chain(list(range(200)))]) for target in targets))


@pytest.mark.long
@with_instructions
def test_an_engine_says_whether_kernels_are_native_and_can_leave_them_out(demo_folder: Path) -> None:
    config = EngineConfig(is_calibrated=False, is_probed=False)
    native = Engine.load(demo_folder, config)
    pure = Engine.load(demo_folder, EngineConfig(is_calibrated=False, is_probed=False, uses_native=False))
    assert (native.decoder.target.is_native, pure.decoder.target.is_native) == (True, False)
    answers = [engine.generate("# tar", GenerationConfig(max_tokens=40)).token_ids for engine in (native, pure)]
    assert answers[0] == answers[1]


@with_instructions
def test_pass_times_are_kept_apart(targets: tuple[HostTarget, HostTarget]) -> None:
    assert cost_path(targets[0], 2, 1) != cost_path(targets[1], 2, 1)


def _random_tree(num_nodes: int, rng: np.random.Generator) -> DraftTree:
    tree = DraftTree.root(int(rng.integers(1000)))
    for node in range(1, num_nodes):
        tree.add(int(rng.integers(1000)), int(rng.integers(max(0, node - 5), node)), "")
    return tree


def _pass_of(target: HostTarget, past: int, trees: Sequence[DraftTree]) -> Arrays:
    """What a pass says and what it leaves in the cache, after `past` random rows."""
    num_slots, num_nodes = len(trees), max(map(len, trees))
    cache = HostCache(target.manifest, num_slots, past + num_nodes)
    seed = int(hashlib.sha256(f"{past} {num_slots}".encode()).hexdigest()[:8], 16)
    cache.slab[:] = np.random.default_rng(seed).standard_normal(cache.slab.shape)
    cache.lengths[:] = [past - slot * (past // 2) for slot in range(num_slots)]
    result = target.forward(cache, Pass(0, trees, [range(len(tree)) for tree in trees], wants_logits=True))
    return result.wanted_logits.copy(), result.top_ids, cache.slab


def _assert_equal(left: Arrays, right: Arrays) -> None:
    for ours, theirs in zip(left, right, strict=True):
        np.testing.assert_array_equal(ours, theirs)


CHECK = ROOT / "scripts" / "check_kernels"
ARM_ROOT = os.environ.get("READER_EDGE_ARM_ROOT")
needs_emulator = pytest.mark.skipif(
    ARM_ROOT is None or shutil.which("qemu-aarch64") is None,
    reason="no qemu-aarch64 (apt-get install qemu-user), or READER_EDGE_ARM_ROOT names no folder",
)


@pytest.fixture(scope="module")
def case_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cases")
    write_cases(folder)
    return folder


@pytest.mark.long
def test_every_instruction_set_has_the_bits_of_definitions(case_folder: Path, pytestconfig: pytest.Config) -> None:
    """At widths around those of tiles and registers; test_native.py has a whole model at every width."""
    names = instructions_here()
    assert names
    widths = range(1, 65) if pytestconfig.getoption("--every-combination") else [*range(1, 10), 15, 16, 17, 33, 63, 64]
    for name in names:
        options = ["--widths", *map(str, widths)]
        output = _check([sys.executable], case_folder, native_library(), *options, READER_EDGE_INSTRUCTIONS=name)
        assert output.startswith(f"{name}: {len(widths)} widths\n")


@needs_emulator
@pytest.mark.parametrize(
    ("processor", "expected"), [("cortex-a72", "neon"), ("cortex-a76", "neon-dot"), ("max", "neon-i8mm")]
)
def test_kernels_for_arm_have_the_bits_of_the_definitions(processor: str, expected: str, case_folder: Path) -> None:
    assert ARM_ROOT is not None
    root = Path(ARM_ROOT)
    emulated = ["qemu-aarch64", "-L", str(root), "-cpu", processor, str(root / "usr" / "bin" / "python3")]
    output = _check(emulated, case_folder, root / "reader_edge_native.so", "--widths", "1", "2", "7", "64")
    assert output.startswith(f"{expected}: 4 widths\n")


def _check(python: list[str], case_folder: Path, library: Path | None, *options: str, **environment: str) -> str:
    """What scripts/check_kernels says, which must find nothing that differs."""
    command = [*python, str(CHECK), str(case_folder), str(library), *options]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, env=inherited | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


OF_ROWS = ("int8-1-576", "int8-2-37", "int4-576", "keep-Q8_0", "keep-Q6_K", "keep-Q4_1", "swiglu")
ATTENTION = tuple(
    f"attention-{form}-70-64"
    for form in ("exact-float32", "exact-float16", "integer-float32", "integer-float16", "integer-int8")
)


@pytest.fixture(scope="module")
def all_cases() -> dict[str, Case]:
    return {case.name: case for case in cases()}


@pytest.fixture
def case(all_cases: dict[str, Case], request: pytest.FixtureRequest) -> Case:
    return all_cases[request.param]


def operator_of(case: Case, folder: Path) -> Operator:
    return Operator(folder, case.sizes, case.build, case.attention)


@with_instructions
@pytest.mark.parametrize("case", OF_ROWS, indirect=True)
def test_repeated_rows_have_the_outputs_of_the_row_they_repeat(case: Case, tmp_path: Path) -> None:
    operator = operator_of(case, tmp_path)
    alone = operator.run_native(case.feed)
    rng = np.random.default_rng(0)
    in_runs, all_one = np.sort(rng.integers(0, WIDEST, WIDEST)), np.full(WIDEST, 5)
    padded = np.minimum(np.arange(WIDEST), 2)
    for order in (in_runs, all_one, padded):
        outputs = operator.run_native({name: rows[:, order] for name, rows in case.feed.items()})
        for output, expected in zip(outputs, alone, strict=True):
            np.testing.assert_array_equal(output.view(np.uint8), expected[:, order].view(np.uint8))


@with_instructions
@pytest.mark.parametrize("case", ATTENTION, indirect=True)
def test_repeated_nodes_attend_as_the_node_they_repeat(case: Case, tmp_path: Path) -> None:
    operator = operator_of(case, tmp_path)
    alone = operator.run_native(case.feed)[0]
    lengths = (1, 5, 40, WIDEST)
    feed = {name: np.repeat(array, len(lengths), axis=0) for name, array in case.feed.items()}
    for b, length in enumerate(lengths):
        for name in ("query", "mask"):
            feed[name][b, :, length:] = feed[name][b, :, length - 1 : length]
    output = operator.run_native(feed)[0]
    for b, length in enumerate(lengths):
        np.testing.assert_array_equal(output[b], alone[0][:, np.minimum(np.arange(WIDEST), length - 1)])


@with_instructions
@pytest.mark.parametrize("case", ATTENTION[::2], indirect=True)
def test_nodes_that_see_the_same_but_ask_another_question_attend_for_themselves(case: Case, tmp_path: Path) -> None:
    feed: dict[str, Array] = {name: array.copy() for name, array in case.feed.items()}
    feed["mask"][:, :, 10:] = feed["mask"][:, :, 10:11]
    for head in (0, -1):  # which alone differs
        feed["query"][:, :, 11:] = feed["query"][:, :, 10:11]
        feed["query"][:, head, 20:] = feed["query"][:, head, 9:10]
        output = operator_of(case, tmp_path).check(**feed)[0]
        assert (output[:, head, 19] != output[:, head, 20]).any()
        np.testing.assert_array_equal(output[:, :, 20:], output[:, :, 20:21].repeat(WIDEST - 20, axis=2))
