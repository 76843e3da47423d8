"""The module that transformers built, compared with the second reading of the folder's config.json."""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

import numpy as np
import torch
from transformers import CONFIG_MAPPING, PreTrainedModel

from reader_edge_export.sources.layered_model import LayeredModel
from reader_edge_export.sources.module import vocab_size_of
from reader_edge_export.sources.second.second_gemma4 import Gemma4Reading
from reader_edge_export.sources.second.second_reading import SecondReading
from reader_edge_export.sources.second.second_weights import Tensors, WideTensors
from reader_edge_export.sources.source_model import SourceModel
from reader_edge_export.sources.weights import Weights
from reader_edge_runtime.errors import ParityError

_NUM_TOKENS, _LONGEST = 32, 80
_MIN_LAYERS = 4
_MAX_RELATIVE_ERROR = 1e-3  # of logits in fp32, summed in another order
_MAX_ROUNDINGS = 4  # times what rounding to fp32 changes, in models that let it grow
_MAX_FREQUENCY_ERROR = 1e-5  # of powers in fp32
_QUERY_SCALE = ("llama_4_scaling_beta", "original_max_position_embeddings")
_EPSILONS = ("variance_epsilon", "eps")
_ACTIVATIONS = ("act_fn", "activation_fn", "act")


def second_reading(config: Mapping[str, Any], weights: Tensors) -> SecondReading:
    """The second reading of a config.json, with weights by the names of the module."""
    reading = {"gemma4_text": Gemma4Reading}.get(config["model_type"], SecondReading)
    config_class = CONFIG_MAPPING[config["model_type"]]
    supposed = {each.name: each.default for each in fields(config_class) if each.default is not MISSING}
    rope = getattr(config_class(), "rope_parameters", {}) or {}
    full, local = rope.get("full_attention", rope), rope.get("sliding_attention", {})
    supposed |= {name: full.get(name) for name in ("rope_theta", "partial_rotary_factor")}
    return reading(config, supposed | {"rope_local_base_freq": local.get("rope_theta")}, weights)


def check_reading(model: SourceModel, config: Mapping[str, Any]) -> None:
    """Raise ParityError where a module is not what its config.json says, naming what differs.

    Logits are compared behind the first layers, as many as there are kinds of, and never fewer than _MIN_LAYERS.
    """
    reading = second_reading(config, WeightTensors(model))
    _check_numbers(model.skeleton, reading)
    _check_rotary(model.skeleton, reading)
    windows = [window for layer in range(reading.num_layers) if (window := reading.window(layer)) is not None]
    context = int(config.get("max_position_embeddings") or config["n_positions"])
    num_tokens = min(max([_NUM_TOKENS, *(window + 8 for window in windows)]), _LONGEST, context)
    token_ids = [(7919 * i + 13) % vocab_size_of(model.skeleton) for i in range(num_tokens)]
    num_layers = _num_compared(reading)
    expected = reading.logits(token_ids, num_layers)
    (computed,) = LayeredModel(model, num_layers).logits([token_ids])
    error, scale = float((expected - computed).abs().max()), max(1.0, float(expected.abs().max()))
    if error <= _MAX_RELATIVE_ERROR * scale:
        return
    wide = second_reading(config, WideTensors(WeightTensors(model))).logits(token_ids, num_layers)
    if not error <= _MAX_ROUNDINGS * float((wide - expected).abs().max()):
        raise reading_error("logits", f"{error:.2g} of {scale:.2g}")


def _num_compared(reading: SecondReading) -> int:
    layers = range(reading.num_layers)
    asked = (reading.states, reading.layer_type, reading.has_positions, reading.has_experts)
    kinds = [(str([question(each) for question in asked]), reading.shares(each) is None) for each in layers]
    first_of_kind = max(kinds.index(kind) for kind in set(kinds)) + 1
    return min(reading.num_layers, max(_MIN_LAYERS, first_of_kind))


class WeightTensors(Tensors):
    """The parameters of a model by their names, each read when it is asked for, those of experts when indexed."""

    def __init__(self, model: SourceModel) -> None:
        self._weights = model.weights
        self._names = {name for name, _ in model.skeleton.named_parameters()}
        self._of_experts = {each.name for experts in model.experts.values() for each in (experts.up, experts.down)}

    def __getitem__(self, name: str) -> Any:
        if name in self._of_experts:
            return _ExpertWeights(self._weights, name)
        return torch.from_numpy(self._weights.read(name))

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def rows(self, name: str, indices: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(self._weights.rows(name, indices.numpy()))


@dataclass(frozen=True, slots=True)
class _ExpertWeights:
    """A parameter (X, ...) of which one expert's part is read at a time."""

    weights: Weights
    name: str

    def __getitem__(self, expert: int) -> torch.Tensor:
        return torch.from_numpy(self.weights.read_expert(self.name, expert))


def _check_numbers(model: PreTrainedModel, reading: SecondReading) -> None:
    values = torch.linspace(-4, 4, 65)
    expected = reading.activation(values)
    if reading.query_scale is not None:  # in a text as short as this check's, no query need be scaled
        beta, step = (model.config.rope_parameters.get(key) for key in _QUERY_SCALE)
        if (beta, step) != reading.query_scale:
            raise reading_error("growth of queries", f"{(beta, step)} instead of {reading.query_scale}")
    for name, module in model.named_modules():
        for attribute in _EPSILONS:
            epsilon = getattr(module, attribute, None)
            if epsilon is not None and not np.isclose(epsilon, reading.epsilon, rtol=1e-6):
                raise reading_error(f"epsilon of {name}", f"{epsilon} instead of {reading.epsilon}")
        for attribute in _ACTIVATIONS:
            activation = getattr(module, attribute, None)
            if activation is not None and not torch.allclose(activation(values), expected, atol=1e-5):
                raise reading_error(f"activation of {name}", str(activation))


def _check_rotary(model: PreTrainedModel, reading: SecondReading) -> None:
    """Frequencies by their values: in a short text, long waves that are wrong would hardly be seen."""
    for name, layer_type, frequencies, magnitude in _rotaries(model):
        rotary = reading.rotary(layer_type)
        if rotary is None or frequencies.shape != rotary.inverse_frequencies.shape:
            raise reading_error(f"number of frequencies of {name}", str(len(frequencies)))
        expected = rotary.inverse_frequencies
        error = np.abs(frequencies.double().numpy() - expected) / np.where(expected == 0, 1, expected)
        if not error.max() <= _MAX_FREQUENCY_ERROR:
            raise reading_error(f"frequencies of {name}", f"{error.max():.2g} of them")
        if not np.isclose(magnitude, rotary.magnitude, rtol=1e-6):
            raise reading_error(f"magnitude of {name}", f"{magnitude} instead of {rotary.magnitude}")


def _rotaries(model: PreTrainedModel) -> Iterator[tuple[str, str, torch.Tensor, float]]:
    """(name, type of the layers that rotate by it, frequencies, magnitude) of each rotary embedding."""
    for name, module in model.named_modules():
        if hasattr(module, "inv_freq"):
            yield name, "full_attention", module.inv_freq, module.attention_scaling
        for layer_type in ("full_attention", "sliding_attention"):
            frequencies = getattr(module, f"{layer_type}_inv_freq", None)
            if frequencies is not None:
                magnitude = getattr(module, f"{layer_type}_attention_scaling")
                yield f"{layer_type} in {name}", layer_type, frequencies, magnitude


def reading_error(what: str, how: str) -> ParityError:
    return ParityError(
        f"The model as transformers builds it is not what its config.json says: the {what} differ ({how}). "
        "Please report it."
    )
