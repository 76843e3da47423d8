"""A model that says the same with some inputs of its products larger, and the weights that multiply these smaller.

Large models grow such inputs by themselves, of one number in a hundred or so, several times the others
(LLM.int8(), arXiv 2208.07339).
"""

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

SHARE = 100  # one number in so many

_NORMS_OF_ONE_MORE = ("gemma", "gemma2", "gemma3_text")  # they multiply by 1 + weight; Gemma 4 does not

_ATTENTION_NORMS, _MLP_NORMS = ("input_layernorm", "ln_1"), ("pre_feedforward_layernorm", "ln_2")
_ATTENTION: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "qkv_proj", "c_attn")
_MLP: tuple[str, ...] = ("gate_proj", "up_proj", "gate_up_proj", "fc1", "c_fc")


def enlarge_outliers(model: PreTrainedModel, factor: float) -> None:
    """Make one in SHARE of the inputs of products `factor` times larger, in place; in exact numbers nothing changes.

    Behind norms; in gated MLPs also between up and down, which is all there is where norms come after the products.
    """
    drawn = torch.Generator().manual_seed(1)
    shift = 1 if model.config.model_type in _NORMS_OF_ONE_MORE else 0
    with torch.no_grad():
        for layer in _layers(model):
            for norm, readers in _norms(layer):
                enlarged = dict(norm.named_parameters())
                chosen = _choose(len(enlarged["weight"]), drawn)
                enlarged["weight"][chosen] = (enlarged["weight"][chosen] + shift) * factor - shift
                if "bias" in enlarged:
                    enlarged["bias"][chosen] *= factor
                for reader in readers:
                    _weight(reader)[chosen] /= factor
            products = dict(_named_products(layer))
            if "down_proj" in products:
                down = _weight(products["down_proj"])
                up = _weight(products["up_proj" if "up_proj" in products else "gate_up_proj"])
                chosen = _choose(len(down), drawn)
                up[:, -len(down) :][:, chosen] *= factor
                down[chosen] /= factor


def _layers(model: PreTrainedModel) -> nn.ModuleList:
    return next(module for module in model.modules() if isinstance(module, nn.ModuleList))


def _norms(layer: nn.Module) -> list[tuple[nn.Module, list[nn.Module]]]:
    """Norms of a layer whose outputs products alone read, and these."""
    norms, products = dict(layer.named_children()), dict(_named_products(layer))
    is_post_norm = "post_feedforward_layernorm" in norms
    names: dict[str, tuple[str, ...]] = dict.fromkeys(_ATTENTION_NORMS, _ATTENTION) | dict.fromkeys(_MLP_NORMS, _MLP)
    if not is_post_norm:
        names["post_attention_layernorm"] = _MLP
        if "post_attention_layernorm" not in norms:  # Phi: one norm for both
            names["input_layernorm"] = _ATTENTION + _MLP
    return [
        (norms[name], [products[reader] for reader in readers if reader in products])
        for name, readers in names.items()
        if name in norms
    ]


def _named_products(layer: nn.Module) -> list[tuple[str, nn.Module]]:
    return [(name.split(".")[-1], part) for name, part in layer.named_modules() if isinstance(part, nn.Linear | Conv1D)]


def _weight(product: nn.Module) -> torch.Tensor:
    """As (K, J), to be changed in place."""
    weight = product.get_parameter("weight")
    return weight if isinstance(product, Conv1D) else weight.T


def _choose(size: int, drawn: torch.Generator) -> torch.Tensor:
    return torch.randperm(size, generator=drawn)[: -(-size // SHARE)]
