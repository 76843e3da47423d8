"""What a network begins with: to say what the target said of the token before, which a layer on top of it corrects."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from reader_edge_export.heads.vocabulary_rows import hear, least_squares
from reader_edge_export.speculators.eagle3_module import Eagle3Module
from reader_edge_runtime.target import Target

_FIRST = 4  # places at a text's beginning, whose states are far larger than all others


def begin(
    module: Eagle3Module,
    target: Target,
    texts: Sequence[npt.NDArray[np.int32]],
    ids: npt.NDArray[np.int32],
    columns: Sequence[int],
) -> torch.Tensor:
    """Give a network its first weights. Returns the scale of states, float32 (J * E,), by which training divides them.

    ids: the target's, of the network's own vocabulary. columns: of the target's states, those that the network reads.
    """
    joined_size = module.fc.in_features
    heard = hear(target, texts, ids, joined_size, wants_layer_states=True)
    is_usual = heard.positions >= _FIRST
    states = heard.layer_states[list(columns)][:, is_usual].swapaxes(0, 1).reshape(-1, joined_size)
    hidden_states, logits = heard.hidden_states[is_usual], heard.logits[is_usual]
    scale = np.maximum(states.std(0), 1e-3 * states.std())
    gains = np.sqrt(np.square(hidden_states).mean(0))
    gains = np.maximum(gains, 1e-3 * gains.max())
    with torch.no_grad():
        module.lm_head.weight.copy_(torch.from_numpy(least_squares(hidden_states, logits)))
        module.norm.weight.copy_(torch.from_numpy(gains))
        module.fc.weight.copy_(torch.from_numpy(least_squares(states / scale, hidden_states / gains)))
        first: Any = module.layers[0]
        for last in (first.self_attn.o_proj, first.mlp.down_proj):
            torch.nn.init.zeros_(last.weight)
    return torch.from_numpy(scale.astype(np.float32))
