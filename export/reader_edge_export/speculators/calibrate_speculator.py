"""Calibration of a speculator: it runs over texts as its target heard them, and second moments are summed."""

from collections.abc import Iterable

import torch

from reader_edge_export.calibration.calibrate import LayerInputs, products_of
from reader_edge_export.calibration.calibration import Calibration
from reader_edge_export.calibration.moments import InputMoments
from reader_edge_export.sources.source_model import SourceModel
from reader_edge_export.speculators.dense_attention import DenseAttention
from reader_edge_export.speculators.formats.speculator_weights import SpeculatorWeights
from reader_edge_export.speculators.speculator_module import SpeculatorModule
from reader_edge_export.speculators.target_states import TextStates

NUM_TOKENS = 2048  # of texts: an eighth of a second for a layer of a small model


def calibrate_speculator(source: SourceModel, texts: Iterable[TextStates], target: Calibration) -> Calibration:
    """What is known of the matrices of a speculator, by their names.

    target: of its target, whose logit head it may share: then both are rounded alike, and stored once.
    """
    module, calibration = source.skeleton, Calibration()
    assert isinstance(module, SpeculatorModule)
    assert isinstance(source.weights, SpeculatorWeights)
    head = source.names[id(module.lm_head.weight)]
    products = {each: name for each, name in products_of([module], source).items() if each is not module.lm_head}
    inputs = LayerInputs(products, list(source.experts.values()))
    read = InputMoments.none(module.lm_head.weight.shape[1])
    with source.filled([module]), torch.no_grad():
        for text in texts:
            for heard in _two_steps(module, text):
                read.add(heard.flatten(end_dim=-2))
    inputs.add_to(calibration)
    lender = source.weights.lent.get("lm_head.weight")
    is_known = lender is not None and target.has_inputs_of(lender)
    calibration.add_inputs([head], target.inputs_of(lender) if lender is not None and is_known else read)
    return calibration


def _two_steps(module: SpeculatorModule, text: TextStates) -> list[torch.Tensor]:
    """What the logit head reads behind states of the target, and behind the speculator's own."""
    ids = torch.tensor([text.token_ids])
    positions = torch.arange(ids.shape[1])[None]
    states, read = module.joined(text.states), []
    for step in range(1, min(3, ids.shape[1])):
        states = states[:, : ids.shape[1] - step]
        heard = module.step(ids[:, step:], positions[:, step:], states, DenseAttention.causal(states.shape[1]))
        states = heard.next_states
        read.append(heard.read)
    return read
