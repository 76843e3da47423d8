"""Whether the tensors of a folder and the parameters of its config's model are the same set."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

from reader_edge_export.sources.stored_tensors import StoredTensor
from reader_edge_runtime.errors import ExportError

# Tables that models compute for themselves, and that older files hold.
COMPUTED = (".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")
_HEAD = "lm_head.weight"
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight")


def has_own_head(tensors: Mapping[str, StoredTensor]) -> bool:
    """Whether a folder holds an output embedding with other values than its input embedding.

    Then they are two, as transformers 5 has it, even where config.json ties them.
    """
    embedding = next((tensor for name, tensor in tensors.items() if name.endswith(_EMBEDDINGS)), None)
    head = tensors.get(_HEAD)
    if head is None or embedding is None:
        return False
    return head.shape != embedding.shape or not torch.equal(head.read().float(), embedding.read().float())


def check_places(folder: Path, missing: Iterable[str], left_over: Iterable[str]) -> None:
    """Raise ExportError where parameters get no tensor of their shape, or tensors have no parameter."""
    lacking, others = sorted(missing), sorted(name for name in left_over if not name.endswith(COMPUTED))
    if lacking:
        raise ExportError(f"The weights in '{folder}' lack {_first_of(lacking)}: fetch the model again.")
    if others:
        raise ExportError(
            f"'{folder}' holds {_first_of(others)}, for which the model of its config.json has no place, so that "
            "answers would leave it out: correct config.json, or remove what the model does not need from the weights."
        )


def _first_of(names: list[str]) -> str:
    return f"{names[0]:.80}" + (f" and {len(names) - 1} others" if len(names) > 1 else "")
