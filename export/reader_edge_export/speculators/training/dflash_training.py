"""Training of DFlash: a small one, whose blocks are as deep as other formats' chains are."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from transformers import Qwen3Config

from reader_edge_export.speculators.block_networks import BlockConfig, BlockModule
from reader_edge_export.speculators.speculator_module import SpeculatorModule
from reader_edge_export.speculators.training.batches import DEPTH
from reader_edge_export.speculators.training.trained_format import (
    TrainedFormat,
    TrainingInputs,
    embed,
    few_tokens,
    middle_state_ids,
    name_ids,
    new_layer,
    silence,
    state_sample,
)
from reader_edge_export.speculators.training.vocabulary_tables import embedding_rows, logit_head_rows
from reader_edge_runtime.arrays import Float32Array, Int32Array
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.package.package_parts import DFLASH

_NUM_LAYERS = 2
_FIRST_GAIN = 0.25  # of the last norm: first guesses are unsure


class DflashTraining(TrainedFormat):
    """With a vocabulary and a logit head of its own, which begins as the target's at another scale."""

    name = DFLASH

    def state_ids(self, manifest: Manifest) -> tuple[int, ...]:
        return middle_state_ids(manifest)

    def untrained(self, manifest: Manifest) -> SpeculatorModule:
        return _new(*few_tokens(manifest), len(self.state_ids(manifest)))

    def begin(self, inputs: TrainingInputs) -> tuple[SpeculatorModule, torch.Tensor]:
        package, states = inputs.package, state_sample(inputs)
        module = _new(package.manifest, inputs.ids, embedding_rows(package), len(inputs.columns))
        with torch.no_grad():
            head = torch.from_numpy(logit_head_rows(package)[inputs.ids])
            head = head - head.mean(0)
            module.lm_head.weight.copy_(head / head.std() / head.shape[1] ** 0.5)
            module.norm.weight.fill_(_FIRST_GAIN)
        return module, states.std(0) + 1e-3 * states.std()

    def reads(
        self, module: SpeculatorModule, states: torch.Tensor, ids: torch.Tensor, places: torch.Tensor
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Blocks behind places, which see the states up to theirs; see `TrainedFormat.reads`."""
        (num_texts, num_places), block = states.shape[:2], module.block
        assert block is not None
        rows = torch.full((num_texts, len(places), block.size), block.mask_token_id, device=ids.device)
        rows[..., 0] = ids[:, places]
        ahead = places[:, None] + 1 + torch.arange(block.size, device=ids.device)
        positions = torch.cat([torch.arange(num_places, device=ids.device), ahead.flatten()])[None]
        attend = _BlocksAttention(num_places, places, block.size)
        read = module.step(rows.flatten(1), positions, module.joined(states), attend).read
        read = read.unflatten(1, (len(places), -1))
        for step in range(DEPTH):
            yield places + step, read[:, :, 1 + step]

    def config(self, module: SpeculatorModule, state_ids: Sequence[int]) -> Mapping[str, Any]:
        assert isinstance(module, BlockModule)
        return {
            "architectures": ["DFlashDraftModel"],
            "block_size": module.block_config.block_size,
            "mask_token_id": module.block_config.mask_token_id,
            "draft_vocab_size": len(module.lm_head.weight),
            "target_hidden_size": module.block_config.state_size,
            "aux_hidden_state_layer_ids": list(state_ids),
        }


class _BlocksAttention:
    """An `Attend` of many blocks at once, each of which sees the context up to its place, and itself.

    num_context: C, rows before those of the blocks. places: int64 (n,), the last row of the context that each sees.
    """

    def __init__(self, num_context: int, places: torch.Tensor, block_size: int) -> None:
        self._num_context = num_context
        block = torch.arange(len(places), device=places.device).repeat_interleave(block_size)
        context = torch.arange(num_context, device=places.device)[None] <= places[block][:, None]
        self._seen = torch.cat([context, block[:, None] == block[None]], 1)

    def __call__(self, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        query = query[:, :, self._num_context :].to(value.dtype)
        group = query.shape[1] // key.shape[1]
        key, value = (each.to(value.dtype).repeat_interleave(group, dim=1) for each in (key, value))
        found = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=self._seen, scale=module.scaling
        )
        dropped = found.new_zeros(*found.shape[:2], self._num_context, found.shape[3])
        return torch.cat([dropped, found], 2).transpose(1, 2)


def _new(manifest: Manifest, ids: Int32Array, embedding: Float32Array, num_states: int) -> BlockModule:
    """ids: int32 (Vd,), that it can name, in ascending order. embedding: (V, E)."""
    size = embedding.shape[1]
    layer = new_layer(Qwen3Config, manifest, size)
    layer.num_hidden_layers, layer.layer_types = _NUM_LAYERS, ["full_attention"] * _NUM_LAYERS
    torch.manual_seed(0)
    module = BlockModule(
        BlockConfig(
            layer=layer,
            draft_vocab_size=len(ids),
            num_states=num_states,
            state_size=size,
            block_size=1 + DEPTH,
            mask_token_id=manifest.eos_token_ids[0] if manifest.eos_token_ids else 0,  # drafts follow it nowhere
            layer_is_causal=(False,) * _NUM_LAYERS,
            windows=(0,) * _NUM_LAYERS,
        )
    )
    embed(module, embedding)
    name_ids(module, ids)
    for decoder in module.layers:
        silence(decoder)
    return module
