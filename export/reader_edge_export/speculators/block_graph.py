"""What graphs of networks that draft a block have besides: kinds of masks, and what a token before changes."""

import onnx_ir as ir
import torch

from reader_edge_export.speculators.block_networks import BlockModule
from reader_edge_export.speculators.speculator_module import SpeculatorModule
from reader_edge_runtime.errors import UnsupportedArchitectureError
from reader_edge_runtime.package.package_parts import BlockPart

TOP_K = 16


def block_part(module: BlockModule) -> BlockPart:
    """Raises UnsupportedArchitectureError for layers of more kinds than a graph has masks."""
    kinds = set(zip(module.windows, module.layer_is_causal, strict=True))
    windowed = {kind for kind in kinds if kind[0]}
    if max(len(windowed), len(kinds - windowed)) > 1:
        words = ", ".join(f"{window or 'none'}{', causal' if is_causal else ''}" for window, is_causal in sorted(kinds))
        raise UnsupportedArchitectureError(
            f"The layers of the speculator have windows of several kinds ({words}), and a graph has room for one kind "
            "beside layers without: give a speculator whose windowed layers are alike."
        )
    window, is_window_causal = next(iter(windowed), (None, False))
    return BlockPart(
        size=module.block_size,
        mask_token_id=module.mask_token_id,
        tells_next=module.drafts_from_anchor,
        is_causal=any(is_causal for _, is_causal in kinds - windowed),
        is_window_causal=is_window_causal,
        window=window,
        has_pairs=has_pairs(module),
    )


def has_pairs(module: SpeculatorModule) -> bool:
    """Whether it tells what a token before changes."""
    if not isinstance(module, BlockModule):
        return False
    return module.candidate_selector is not None or module.markov_head is not None


def pair_outputs(
    module: BlockModule, logits: torch.Tensor, states: torch.Tensor, rows: torch.Tensor, pending: torch.Tensor
) -> dict[str, torch.Tensor]:
    """What the graph reports of each row's best tokens, and of these behind those of the row before.

    logits: (B, R, Vd) of these rows, (B, R). states: (B, N, E), what the logit head reads. pending: (B, 1), the token
    before the first row.
    """
    top_k = min(TOP_K, logits.shape[-1])
    top_logits, numbers = logits.topk(top_k)
    token_ids = numbers if module.target_ids is None else module.target_ids[numbers]
    before = torch.cat([pending[:, :, None].expand(-1, -1, top_k), token_ids[:, :-1]], dim=1)

    def looked_up(table: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding(ids.flatten(1), table).reshape(*ids.shape, -1)

    if (selector := module.candidate_selector) is not None:
        read = states.gather(1, rows[:, :, None].expand(-1, -1, states.shape[-1]))
        own = selector.hidden_projection(read)
        left = looked_up(selector.predecessor_codebook.weight, before) * own[:, :, None]
        right = looked_up(selector.successor_codebook.weight, token_ids)
    else:
        assert module.markov_head is not None
        left = looked_up(module.markov_head.markov_w1.weight, before)
        right = looked_up(module.markov_head.markov_w2.weight, numbers)
    pairs = top_logits[:, :, None] + left @ right.transpose(2, 3)
    return {"top_ids": token_ids, "top_logits": top_logits, "pair_logits": pairs}


def declare_pairs(graph: ir.Graph, top_k: int) -> None:
    """Set the sizes of what `pair_outputs` gave, which a trace does not know."""
    sizes = {"top_ids": [top_k], "top_logits": [top_k], "pair_logits": [top_k, top_k]}
    for value in graph.outputs:
        if value.name in sizes:
            value.shape = ir.Shape(["B", "R", *sizes[value.name]])
