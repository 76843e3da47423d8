"""Measures whether a speculator can pay off on a target: the time of its steps beside that of a pass."""

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from reader_edge_export.calibration.calibration import Calibration, InputMoments
from reader_edge_export.options import ExportOptions
from reader_edge_export.progress import Progress
from reader_edge_export.sources.source_model import ModuleWeights, SourceModel
from reader_edge_export.speculators.speculator_graph import (
    part_of,
    speculator_options,
    trace_speculator,
    write_speculator,
)
from reader_edge_export.speculators.training.trained_format import TrainedFormat
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.speculators.speculator_cost import (
    PASS_NODES,
    STEP_NODES,
    TOKENS_A_PASS,
    USUALLY_ADDED,
    USUALLY_ADDED_BY_BLOCKS,
    asking_seconds,
    block_asking_seconds,
    block_pass,
    needed_tokens,
    pays_off,
    try_pass,
)
from reader_edge_runtime.execution.onnxruntime.host.host_speculator import HostSpeculator
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Pass, Target

_ROUNDS = 15
_MOST_PAST = 128  # rows of the target's cache


@dataclass(frozen=True, slots=True)
class SpeculatorCost:
    """asking_s: seconds that asking a speculator takes in a step. pass_s: of a pass of its target with drafts.

    added: tokens that its kind usually adds to a pass.
    """

    asking_s: float
    pass_s: float
    added: float = USUALLY_ADDED

    @property
    def pays_off(self) -> bool:
        """Whether an engine would ask it."""
        return pays_off(self.asking_s, self.pass_s, self.added)

    def sentence(self) -> str:
        """The figures, and what follows of them."""
        needed = needed_tokens(self.asking_s, self.pass_s)
        return (
            f"Asking a speculator takes {self.asking_s / self.pass_s:.2f} of a pass of the model over {PASS_NODES} "
            f"nodes. At {TOKENS_A_PASS:g} tokens a pass it pays if it adds {needed:.2f} tokens to a pass; speculators "
            f"usually add {self.added:g}."
        )


def measure_cost(target: Target, trained_format: TrainedFormat) -> SpeculatorCost:
    """Time an untrained speculator of a format beside its target."""
    manifest = target.manifest
    assert manifest.hidden_size is not None
    with tempfile.TemporaryDirectory() as folder:
        speculator = opened_untrained(trained_format, manifest, Path(folder))
    kept = speculator.new_cache(1, _MOST_PAST + 2 * max(STEP_NODES))
    kept.fill(0, min(_MOST_PAST, manifest.max_context - 2 * max(STEP_NODES)))
    block = speculator.part.block
    sizes = [(num_nodes, 0) for num_nodes in STEP_NODES] if block is None else [block_pass(block)]
    steps = [partial(try_pass, speculator, kept, *each) for each in sizes]
    wanted = Pass(0, [DraftTree.chain([0] * PASS_NODES)], [range(PASS_NODES)], wants_layer_states=True)
    step_s, pass_s = timed_in_turn(target, wanted, steps)
    if block is not None:
        return SpeculatorCost(block_asking_seconds(step_s[0]), pass_s, USUALLY_ADDED_BY_BLOCKS)
    return SpeculatorCost(asking_seconds(dict(zip(STEP_NODES, step_s, strict=True)).__getitem__), pass_s)


def opened_untrained(trained_format: TrainedFormat, target: Manifest, folder: Path) -> HostSpeculator:
    """An untrained one, as a package would have it beside such a target."""
    module, state_ids = trained_format.untrained(target), trained_format.state_ids(target)
    source = SourceModel(module, ModuleWeights(module))
    traced = folder / "traced.onnx"
    assert target.hidden_size is not None
    trace_speculator(source, len(state_ids) * target.hidden_size, traced)
    calibration = even_calibration(source)
    options = speculator_options(ExportOptions(target.precision))
    files = write_speculator(traced, folder, options, calibration, source, Progress(), is_beside_target=False)
    part = part_of(trained_format.name, module, state_ids)
    return HostSpeculator.open(ModelPackage(folder, replace(target, speculator=part, files=files)))


def even_calibration(source: SourceModel) -> Calibration:
    """Of inputs that are all alike, where only times matter, which do not depend on values."""
    calibration = Calibration()
    for name in source.names.values():
        width = source.skeleton.get_parameter(name).shape[1]
        moments = InputMoments.none(width)
        moments.add(torch.eye(width))
        calibration.add_inputs([name], moments)
    return calibration


def timed_in_turn(target: Target, wanted: Pass, steps: Sequence[Callable[[], object]]) -> tuple[list[float], float]:
    """Median seconds of steps of what drafts, each behind a pass of its own, and of such a pass of one text."""
    num_nodes = len(wanted.trees[0])
    past = min(_MOST_PAST, target.manifest.max_context - num_nodes)
    cache = target.new_cache(1, past + num_nodes)
    cache.fill(0, past)
    found: list[list[float]] = [[] for _ in steps]
    pass_s = []
    for _ in range(_ROUNDS):
        for step_s, step in zip(found, steps, strict=True):
            began = time.perf_counter()
            target.forward(cache, wanted)  # which takes the step's matrices out of the caches of the processor
            between = time.perf_counter()
            step()
            step_s.append(time.perf_counter() - between)
            pass_s.append(between - began)
    return [statistics.median(step_s) for step_s in found], statistics.median(pass_s)
