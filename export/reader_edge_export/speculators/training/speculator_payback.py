"""Whether a speculator can pay on a target: what a step of it takes beside a pass, and what it would have to bring."""

import tempfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from reader_edge_export.calibration.calibration import Calibration
from reader_edge_export.calibration.moments import InputMoments
from reader_edge_export.heads.payback import MOST_PAST, timed_in_turn
from reader_edge_export.options import ExportOptions
from reader_edge_export.sources.module_weights import ModuleWeights
from reader_edge_export.sources.source_model import SourceModel
from reader_edge_export.speculators.speculator_graph import TOP_K, speculator_options, write_speculator
from reader_edge_export.speculators.trace_speculator import trace_speculator
from reader_edge_export.speculators.training.trained_format import TrainedFormat
from reader_edge_export.stages import Stages
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.sources.speculator.payoff import (
    PASS_NODES,
    STEP_NODES,
    TOKENS_A_PASS,
    USUALLY_ADDED,
    asking_seconds,
    can_pay,
    needed_tokens,
)
from reader_edge_runtime.drafting.sources.speculator.speculator import TreeStep
from reader_edge_runtime.execution.onnxruntime.host.host_speculator import HostSpeculator
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.package.speculator_part import SpeculatorPart
from reader_edge_runtime.target import Pass, Target


@dataclass(frozen=True, slots=True)
class SpeculatorPayback:
    """asking_s: seconds that asking a speculator takes in a step. pass_s: of a pass of its target with drafts."""

    asking_s: float
    pass_s: float

    @property
    def can_pay(self) -> bool:
        """Whether an engine would ask it."""
        return can_pay(self.asking_s, self.pass_s)

    def sentence(self) -> str:
        """The figures, and what follows of them."""
        needed = needed_tokens(self.asking_s, self.pass_s)
        return (
            f"Asking a speculator takes {self.asking_s / self.pass_s:.2f} of a pass of the model over {PASS_NODES} "
            f"nodes. At {TOKENS_A_PASS:g} tokens a pass it pays if it adds {needed:.2f} tokens to a pass; speculators "
            f"usually add {USUALLY_ADDED:g}."
        )


def measure_payback(target: Target, form: TrainedFormat) -> SpeculatorPayback:
    """Time an untrained speculator of a format beside its target."""
    manifest = target.manifest
    assert manifest.hidden_size is not None
    with tempfile.TemporaryDirectory() as folder:
        speculator = _opened(form, manifest, Path(folder))
    kept = speculator.new_cache(1, MOST_PAST + 2 * max(STEP_NODES))
    kept.fill(0, min(MOST_PAST, manifest.max_context - 2 * max(STEP_NODES)))
    steps = []
    for num_nodes in STEP_NODES:
        states = np.zeros((num_nodes, manifest.hidden_size), np.float32)
        steps.append(partial(speculator.step, kept, 0, [TreeStep(DraftTree.chain([0] * (1 + num_nodes)), 1, states)]))
    wanted = Pass(0, [DraftTree.chain([0] * PASS_NODES)], [range(PASS_NODES)], wants_layer_states=True)
    step_s, pass_s = timed_in_turn(target, wanted, steps)
    return SpeculatorPayback(asking_seconds(dict(zip(STEP_NODES, step_s, strict=True)).__getitem__), pass_s)


def _opened(form: TrainedFormat, target: Manifest, folder: Path) -> HostSpeculator:
    """An untrained one, as a package would have it beside such a target."""
    module, state_ids = form.untrained(target), form.state_ids(target)
    source = SourceModel(module, ModuleWeights(module))
    traced = folder / "traced.onnx"
    assert target.hidden_size is not None
    (layer,) = trace_speculator(source, len(state_ids) * target.hidden_size, traced)
    calibration = Calibration()  # of inputs that are all alike: times do not depend on values
    for name in source.names.values():
        width = module.get_parameter(name).shape[1]
        moments = InputMoments.none(width)
        moments.add(torch.eye(width))
        calibration.add_inputs([name], moments)
    options = speculator_options(ExportOptions(target.precision))
    files = write_speculator(traced, folder, options, calibration, source, Stages(), is_beside_target=False)
    sizes = layer.num_heads, layer.num_kv_heads, layer.head_dim, module.config.hidden_size
    num_ids = len(module.lm_head.weight)
    part = SpeculatorPart(form.name, 1, *sizes, num_ids, min(TOP_K, num_ids), state_ids)
    return HostSpeculator.open(ModelPackage(folder, replace(target, speculator=part, files=files)))
