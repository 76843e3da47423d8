"""Whether a speculator can pay on a target: what a step of it takes beside a pass, and what it would have to bring."""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from reader_edge_export.calibration.calibration import Calibration
from reader_edge_export.calibration.moments import InputMoments
from reader_edge_export.heads.payback import TOKENS_A_PASS, Payback, timed_in_turn
from reader_edge_export.options import ExportOptions
from reader_edge_export.sources.module_weights import ModuleWeights
from reader_edge_export.sources.source_model import SourceModel
from reader_edge_export.speculators.speculator_graph import TOP_K, speculator_options, write_speculator
from reader_edge_export.speculators.trace_speculator import trace_speculator
from reader_edge_export.speculators.training.trained_format import TrainedFormat
from reader_edge_export.stages import Stages
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.sources.speculator.speculator import TreeStep
from reader_edge_runtime.execution.onnxruntime.host.host_speculator import HostSpeculator
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.package.speculator_part import SpeculatorPart
from reader_edge_runtime.target import Pass, Target


class SpeculatorPayback(Payback):
    """Of a speculator."""

    __slots__ = ()
    most_added = 0.5  # where half of its first guesses are right and nothing else drafts

    def sentence(self) -> str:
        return (
            f"Asking a speculator takes {self.share:.2f} of a pass of the model. At {TOKENS_A_PASS:g} tokens a pass it "
            f"pays if it adds more than {self.needed:.2f} tokens to a pass; good speculators add about "
            f"{self.most_added}."
        )


def measure_payback(target: Target, form: TrainedFormat) -> SpeculatorPayback:
    """Time an untrained speculator of a format beside its target, in turn."""
    manifest = target.manifest
    assert manifest.hidden_size is not None
    with tempfile.TemporaryDirectory() as folder:
        speculator = _opened(form, manifest, Path(folder))
    step = TreeStep(DraftTree.chain([0, 0]), 1, np.zeros((1, manifest.hidden_size), np.float32))

    def step_behind(past: int) -> Callable[[], object]:
        kept = speculator.new_cache(1, past + len(step.tree))
        kept.fill(0, past)
        return lambda: speculator.step(kept, 0, [step])

    return SpeculatorPayback(*timed_in_turn(target, Pass(0, [], [], wants_layer_states=True), step_behind))


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
