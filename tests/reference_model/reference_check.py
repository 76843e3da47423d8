"""The module that transformers built, and the layers that were traced of it, compared with the reference model."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import CONFIG_MAPPING, PreTrainedModel

from reader_edge_export.sources.architectures import LATENT
from reader_edge_export.sources.layered_model import LayeredModel
from reader_edge_export.sources.source_model import SourceModel, vocab_size_of
from reader_edge_export.trace.tracing import TracedLayer
from tests.reference_model.gemma3n import Gemma3nModel
from tests.reference_model.gemma4 import Gemma4Model
from tests.reference_model.hybrids import FalconH1Model, NemotronHModel
from tests.reference_model.latent import LatentModel
from tests.reference_model.muse_glimmer import MuseGlimmerModel
from tests.reference_model.reference_model import ReferenceModel

_NUM_TOKENS, _LONGEST = 32, 80
_MAX_RELATIVE_ERROR = 1e-3  # of logits in fp32, summed in another order
_MAX_FREQUENCY_ERROR = 1e-5  # of powers in fp32
_QUERY_SCALE = ("llama_4_scaling_beta", "original_max_position_embeddings")
_EPSILONS = ("variance_epsilon", "eps")
_ACTIVATIONS = ("act_fn", "activation_fn", "act")


def reference_model(config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> ReferenceModel:
    """The reference model of a config.json, with weights by the names of the module, tied ones by their first."""
    model_classes = {
        "muse_glimmer_text": MuseGlimmerModel,
        "gemma4_text": Gemma4Model,
        "gemma3n_text": Gemma3nModel,
        "falcon_h1": FalconH1Model,
        "nemotron_h": NemotronHModel,
        **dict.fromkeys(LATENT, LatentModel),
    }
    model_class = model_classes.get(config["model_type"], ReferenceModel)
    config_class = CONFIG_MAPPING[config["model_type"]]
    defaults = {each.name: each.default for each in fields(config_class) if each.default is not MISSING}
    rope = getattr(config_class(), "rope_parameters", {}) or {}
    full, local = rope.get("full_attention", rope), rope.get("sliding_attention", {})
    defaults |= {name: full.get(name) for name in ("rope_theta", "partial_rotary_factor")}
    return model_class(config, defaults | {"rope_local_base_freq": local.get("rope_theta")}, weights)


def check_module(model: SourceModel, config: Mapping[str, Any]) -> None:
    """Raise AssertionError where a module is not what its config.json says, naming what differs."""
    names = [name for name, _ in model.skeleton.named_parameters()]
    reference = reference_model(config, {name: torch.from_numpy(model.weights.read(name)) for name in names})
    _check_numbers(model.skeleton, reference)
    _check_rotary(model.skeleton, reference)
    windows = [window for layer in range(reference.num_layers) if (window := reference.window(layer)) is not None]
    context = int(config.get("max_position_embeddings") or config["n_positions"])
    num_tokens = min(max([_NUM_TOKENS, *(window + 8 for window in windows)]), _LONGEST, context)
    token_ids = [(7919 * i + 13) % vocab_size_of(model.skeleton) for i in range(num_tokens)]
    expected = reference.logits(token_ids)
    (computed,) = LayeredModel(model).logits([token_ids])
    error, scale = float((expected - computed).abs().max()), max(1.0, float(expected.abs().max()))
    assert error <= _MAX_RELATIVE_ERROR * scale, f"logits: {error:.2g} of {scale:.2g}"


def check_layers(layers: Sequence[TracedLayer], config: Mapping[str, Any], max_context: int) -> None:
    """Raise AssertionError where what the traced layers attend to, or keep, is not what config.json says.

    max_context: windows at least this wide are none.
    """
    reference = reference_model(config, {})
    for index, layer in enumerate(layers):
        states, attention = layer.states, layer.attention
        assert states == (reference.states(index) or {}), f"states of layer {index}"
        assert (attention is not None) == reference.attends(index), f"attention in layer {index}"
        if attention is None:
            continue
        window = reference.window(index)
        expected = replace(
            attention,
            num_heads=reference.num_heads,
            num_kv_heads=reference.num_kv_heads_of(index),
            head_dim=reference.head_dim_of(index),
            sliding_window=window if window is not None and window < max_context else None,
            shares=reference.shares(index),
            is_latent=reference.keeps_latent(index),
        )
        numbers = reference.scale(index), reference.softcap
        is_scaled = np.allclose((attention.scale, attention.softcap), numbers, rtol=1e-6)
        is_same = attention == expected and is_scaled
        assert is_same, f"attention in layer {index}: {attention}, not {expected} by {numbers}"


def _check_numbers(model: PreTrainedModel, reference: ReferenceModel) -> None:
    values = torch.linspace(-4, 4, 65)
    if reference.query_scale is not None:  # in a text as short as this check's, no query need be scaled
        beta, step = (model.config.rope_parameters.get(key) for key in _QUERY_SCALE)
        assert (beta, step) == reference.query_scale, "growth of queries"
    for name, module in model.named_modules():
        for attribute in _EPSILONS:
            epsilon = getattr(module, attribute, None)
            wanted = reference.epsilon_of(name)
            if epsilon is not None and not isinstance(epsilon, Tensor):  # as xIELU's is
                assert np.isclose(epsilon, wanted, rtol=1e-6), f"epsilon of {name}"
        for attribute in _ACTIVATIONS:
            activation = getattr(module, attribute, None)
            has_own = hasattr(activation, "alpha_p")  # xIELU, whose slopes are each layer's
            expected = reference.activation_in(name, values)
            is_same = activation is None or has_own or torch.allclose(activation(values), expected, atol=1e-5)
            assert is_same, f"activation of {name}"


def _check_rotary(model: PreTrainedModel, reference: ReferenceModel) -> None:
    """Frequencies by their values: in a short text, long waves that are wrong would hardly be seen."""
    for name, layer_type, frequencies, magnitude in _rotaries(model):
        rotary = reference.rotary(layer_type)
        assert rotary is not None, f"positions of {name}"
        expected = rotary.inverse_frequencies
        assert frequencies.shape == expected.shape, f"number of frequencies of {name}"
        error = np.abs(frequencies.double().numpy() - expected) / np.where(expected == 0, 1, expected)
        assert error.max() <= _MAX_FREQUENCY_ERROR, f"frequencies of {name}"
        assert np.isclose(magnitude, rotary.magnitude, rtol=1e-6), f"magnitude of {name}"


def _rotaries(model: PreTrainedModel) -> Iterator[tuple[str, str, Tensor, float]]:
    """(name, type of the layers that rotate by it, frequencies, magnitude) of each rotary embedding."""
    for name, module in model.named_modules():
        if hasattr(module, "inv_freq"):
            yield name, "full_attention", module.inv_freq, module.attention_scaling
        for layer_type in ("full_attention", "sliding_attention"):
            frequencies = getattr(module, f"{layer_type}_inv_freq", None)
            if frequencies is not None:
                magnitude = getattr(module, f"{layer_type}_attention_scaling")
                yield f"{layer_type} in {name}", layer_type, frequencies, magnitude
