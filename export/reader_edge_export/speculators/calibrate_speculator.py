"""Calibration of a speculator's quantization: moments of its layer inputs over texts as its target reads them."""

from collections.abc import Iterable, Sequence

import torch

from reader_edge_export.calibration.calibrate import LayerInputs, products_of
from reader_edge_export.calibration.calibration import Calibration, InputMoments
from reader_edge_export.sources.layered_model import LayeredModel, state_of
from reader_edge_export.sources.source_model import SourceModel
from reader_edge_export.speculators.formats.open_speculator import SpeculatorWeights
from reader_edge_export.speculators.speculator_module import SpeculatorModule, TextStates

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
            for rows in module.reads(text):
                read.add(rows.flatten(end_dim=-2))
    inputs.add_to(calibration)
    lender = source.weights.lent.get("lm_head.weight")
    is_known = lender is not None and target.has_inputs_of(lender)
    calibration.add_inputs([head], target.inputs_of(lender) if lender is not None and is_known else read)
    return calibration


class _WrittenRows:
    """In the place of a layer's cache."""

    rows: tuple[torch.Tensor, torch.Tensor]

    def update(self, key: torch.Tensor, value: torch.Tensor, *_: object) -> tuple[torch.Tensor, torch.Tensor]:
        self.rows = key, value
        return self.rows


def states_of(
    model: LayeredModel, sequences: Sequence[list[int]], state_ids: Sequence[int], lent_layers: Sequence[int] = ()
) -> list[TextStates]:
    """Of each text, the states with these numbers, see `Manifest.state_ids`, and keys and values of these layers.

    Raises ExportError where not finite.
    """
    texts, num_layers = model.begin(sequences), len(model.layers)
    caches = [{number: _WrittenRows() for number in lent_layers} for _ in texts]
    for text, cache in zip(texts, caches, strict=True):
        for number, written in cache.items():
            text.arguments[number]["past_key_values"] = written
    found: dict[int, list[torch.Tensor]] = {}
    for index in model.walk(texts):
        if index in state_ids:
            found[index] = [state_of(model.source.skeleton, text.hidden) for text in texts]
    found[num_layers] = [state_of(model.source.skeleton, text.hidden) for text in texts]
    with model.source.filled(model.last_modules), torch.no_grad():
        found[num_layers + 1] = [model.head_inputs(text) for text in texts]
        best = [model.head_logits(text).argmax(-1) for text in texts]
    joined = [torch.cat(states, -1) for states in zip(*(found[number] for number in state_ids), strict=True)]
    lent = [{number: written.rows for number, written in cache.items()} for cache in caches]
    return [TextStates(*each) for each in zip(sequences, joined, best, lent, strict=True)]
