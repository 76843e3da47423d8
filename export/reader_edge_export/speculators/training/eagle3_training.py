"""Training of EAGLE-3: it begins with the target's own scores of the token before, which its layer corrects."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from transformers import LlamaConfig

from reader_edge_export.speculators.networks import Eagle3Config, Eagle3Module
from reader_edge_export.speculators.speculator_module import SpeculatorModule
from reader_edge_export.speculators.training.trained_format import (
    TrainedFormat,
    TrainingInputs,
    embed,
    few_tokens,
    middle_state_ids,
    name_ids,
    new_layer,
    silence,
)
from reader_edge_export.speculators.training.vocabulary_tables import embedding_rows
from reader_edge_runtime.arrays import Float32Array, Int32Array
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.package.package_parts import EAGLE3
from reader_edge_runtime.target import Pass, Target

_NODES_A_PASS = 128
_RIDGE = 1e-6  # of the mean square, for targets whose states fill no more than a part of their space
_PLACES_A_NUMBER = 2  # that are scored for each unknown of a row
_FIRST = 4  # places at a text's beginning, whose states are far larger than all others


class Eagle3Training(TrainedFormat):
    """With a vocabulary and a logit head of its own."""

    name = EAGLE3

    def state_ids(self, manifest: Manifest) -> tuple[int, ...]:
        return middle_state_ids(manifest)

    def untrained(self, manifest: Manifest) -> SpeculatorModule:
        return _new(*few_tokens(manifest), len(self.state_ids(manifest)))

    def begin(self, inputs: TrainingInputs) -> tuple[SpeculatorModule, torch.Tensor]:
        package, columns = inputs.package, list(inputs.columns)
        module = _new(package.manifest, inputs.ids, embedding_rows(package), len(columns))
        joined_size = module.fc.in_features
        texts = [answer.token_ids for answer in inputs.answers]
        scores = score_texts(inputs.target, texts, inputs.ids, joined_size)
        is_usual = scores.positions >= _FIRST
        states = scores.layer_states[columns][:, is_usual].swapaxes(0, 1).reshape(-1, joined_size)
        hidden_states, logits = scores.hidden_states[is_usual], scores.logits[is_usual]
        scale = np.maximum(states.std(0), 1e-3 * states.std())
        gains = np.sqrt(np.square(hidden_states).mean(0))
        gains = np.maximum(gains, 1e-3 * gains.max())
        with torch.no_grad():
            module.lm_head.weight.copy_(torch.from_numpy(least_squares(hidden_states, logits)))
            module.norm.weight.copy_(torch.from_numpy(gains))
            module.fc.weight.copy_(torch.from_numpy(least_squares(states / scale, hidden_states / gains)))
        silence(module.layers[0])
        return module, torch.from_numpy(scale.astype(np.float32))

    def config(self, module: SpeculatorModule, state_ids: Sequence[int]) -> Mapping[str, Any]:
        assert isinstance(module, Eagle3Module)
        return {
            "architectures": ["Eagle3Speculator"],
            "draft_vocab_size": module.eagle3.draft_vocab_size,
            "target_hidden_size": module.eagle3.state_size,
            "eagle_aux_hidden_state_layer_ids": list(state_ids),
            "norm_before_residual": module.eagle3.norm_before_residual,
        }


def _new(manifest: Manifest, ids: Int32Array, embedding: Float32Array, num_states: int) -> Eagle3Module:
    """ids: int32 (Vd,), that it can name, in ascending order. embedding: (V, E)."""
    size = embedding.shape[1]
    torch.manual_seed(0)
    module = Eagle3Module(Eagle3Config(new_layer(LlamaConfig, manifest, size), len(ids), num_states, size))
    embed(module, embedding)
    name_ids(module, ids)
    return module


class TextScores(NamedTuple):
    """What a target computes at N places of texts, each from its beginning.

    hidden_states: float32 (N, E). logits: float32 (N, ids). layer_states: float32 (J, N, E).
    positions: int64 (N,), of each in its text.
    """

    hidden_states: Float32Array
    logits: Float32Array
    layer_states: Float32Array
    positions: npt.NDArray[np.int64]


def least_squares(known: Float32Array, wanted: Float32Array) -> Float32Array:
    """The matrix (O, I) that makes what is wanted (N, O) of what is known (N, I), beside a constant that is dropped."""
    known = np.concatenate([known.astype(np.float64), np.ones((len(known), 1))], 1)
    squares = known.T @ known
    squares += _RIDGE * np.trace(squares) / len(squares) * np.eye(len(squares))
    found = np.linalg.solve(squares, known.T @ wanted)
    return np.ascontiguousarray(found[:-1].T, np.float32)


def score_texts(
    target: Target, texts: Sequence[npt.NDArray[np.int32]], ids: npt.NDArray[np.int32], num_unknown: int
) -> TextScores:
    """Have a target score texts until there are as many places as so many unknown numbers need, if there are."""
    cache = target.new_cache(1, _NODES_A_PASS)
    left = _PLACES_A_NUMBER * (num_unknown + 1)
    parts: list[TextScores] = []
    for text in texts:
        tree = DraftTree.chain(text[:_NODES_A_PASS].tolist())
        scores = target.forward(
            cache,
            Pass(0, [tree], [range(len(tree))], wants_logits=True, wants_hidden_states=True, wants_layer_states=True),
        )
        assert scores.hidden_states is not None
        assert scores.layer_states is not None
        states, layer_states = scores.hidden_states[0].copy(), scores.layer_states[:, 0].copy()
        parts.append(TextScores(states, scores.wanted_logits[0][:, ids], layer_states, np.arange(len(tree))))
        left -= len(tree)
        if left <= 0:
            break
    hidden_states, logits, layers, positions = zip(*parts, strict=True)
    joined = np.concatenate(hidden_states), np.concatenate(logits), np.concatenate(layers, 1)
    return TextScores(*joined, np.concatenate(positions))
