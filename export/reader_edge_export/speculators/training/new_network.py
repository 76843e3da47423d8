"""An untrained EAGLE-3 network for a package: one layer with heads of the target's sizes."""

import torch
from transformers import LlamaConfig

from reader_edge_export.speculators.eagle3_module import Eagle3Config, Eagle3Module
from reader_edge_runtime.arrays import Float32Array, Int32Array
from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.package.manifest import Manifest

ROPE_THETA = 10_000.0

_INNER = 2  # numbers between the two products of its MLP, for each of a state: three gain nothing
_EPSILON = 1e-6


def usual_state_ids(manifest: Manifest) -> tuple[int, ...]:
    """The three states that EAGLE-3 reads. Raises ExportError where a package does not report them."""
    last = manifest.num_layers
    wanted = tuple(sorted({min(2, last), last // 2, max(last - 3, 0)}))
    if manifest.hidden_size is None or not set(wanted) <= set(manifest.state_ids):
        raise ExportError(
            f"The package of '{manifest.source_name}' does not report the states {', '.join(map(str, wanted))}, which "
            "a speculator reads: export the model again, for the CPU."
        )
    return wanted


def new_eagle3(manifest: Manifest, ids: Int32Array, embedding: Float32Array, num_states: int) -> Eagle3Module:
    """ids: int32 (Vd,), that it can name, in ascending order. embedding: (V, E), which is not trained."""
    size = embedding.shape[1]
    layer = LlamaConfig(
        vocab_size=manifest.vocab_size,
        hidden_size=size,
        intermediate_size=_INNER * size,
        num_hidden_layers=1,
        num_attention_heads=manifest.num_heads,
        num_key_value_heads=manifest.num_kv_heads,
        head_dim=manifest.head_dim,
        max_position_embeddings=manifest.max_context,
        rms_norm_eps=_EPSILON,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    module = Eagle3Module(Eagle3Config(layer, len(ids), num_states, size))
    module.embed_tokens.weight = torch.nn.Parameter(torch.from_numpy(embedding.astype("float16")), requires_grad=False)
    if module.d2t is not None and module.t2d is not None:
        module.d2t.copy_(torch.from_numpy(ids) - torch.arange(len(ids)))
        module.t2d[torch.from_numpy(ids).long()] = True
    return module
