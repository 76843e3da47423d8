"""The rotary embedding of a model in a GGUF file: how much of a head rotates, and what stretches its positions."""

import math
from typing import Any

from reader_edge_export.sources.gguf.gguf_file import GgufFile
from reader_edge_export.sources.gguf.metadata import Metadata
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.errors import UnsupportedArchitectureError

FREQUENCY_FACTORS = "rope_freqs.weight"  # what each frequency is divided by, as Llama 3.1 needs it
_LONG_FACTORS, _SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
_MAX_FACTORS = 1 << 12
_STILL = 1e20
_BETAS = {"beta_fast": 32.0, "beta_slow": 1.0}

ROPE_TENSORS = {  # those of an architecture that are no weights
    "llama": (FREQUENCY_FACTORS,),
    "granite": (FREQUENCY_FACTORS,),
    "exaone4": (FREQUENCY_FACTORS,),
    "arcee": (FREQUENCY_FACTORS,),
    "gemma4": (FREQUENCY_FACTORS,),
    "apertus": (FREQUENCY_FACTORS,),
    "phi3": (_LONG_FACTORS, _SHORT_FACTORS),
    "phimoe": (_LONG_FACTORS, _SHORT_FACTORS),
    "minicpm3": (_LONG_FACTORS, _SHORT_FACTORS),
}


def base_of(file: GgufFile, values: Metadata) -> float:
    """The base of the frequencies: 10000 where a file says nothing, as llama.cpp has it.

    Raises GgufError where Ollama's converter did not find it: it writes 0 then, or nothing beside a key of its own.
    """
    usual = 0.0 if values.has("attention.head_dim") else 10000.0
    if not values.number("rope.freq_base", usual):
        raise file.error("does not give the base of its positions (rope.freq_base), which its converter did not find")
    return values.positive("rope.freq_base", usual)


def rotary_share(file: GgufFile, values: Metadata, head_dim: int) -> float:
    """Which part of a head rotates, in pairs: such that transformers finds the same number of values."""
    num_rotated = values.size("rope.dimension_count", head_dim)
    factors = file.tensors.get(_LONG_FACTORS)
    if factors is not None and num_rotated == head_dim:  # Ollama's converter says so of each model of Phi
        num_rotated = min(num_rotated, 2 * factors.shape[0])
    share = num_rotated / head_dim
    if num_rotated % 2 or int(head_dim * share) != num_rotated or share > 1:
        raise file.error(f"rotates {num_rotated} of {head_dim} values of a head")
    return share


def scaling_of(file: GgufFile, values: Metadata) -> dict[str, Any] | None:
    """transformers' `rope_scaling`, but for frequency factors. Raises UnsupportedArchitectureError for other kinds."""
    factor = values.positive_or_zero("rope.scaling.factor", 1.0)
    original = original_context_of(values)  # of no use but with YaRN, as the next
    betas = {key: values.positive_or_zero(f"rope.scaling.yarn_{key}", usual) for key, usual in _BETAS.items()}
    if (attention_factor := values.number("rope.scaling.attn_factor", 1.0)) != 1:
        raise UnsupportedArchitectureError(
            f"'{file.path}' scales attention by {attention_factor:g}, which cannot be exported from GGUF."
        )
    match values.text("rope.scaling.type", "linear"):
        case "none" | "default" | "":
            return None
        case "linear":
            return None if factor == 1 else {"rope_type": "linear", "factor": factor}
        case "yarn":
            _check_stretches(file, original)
            scaling = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original, **betas}
            return scaling | _yarn_attention(file, values)
        case kind:
            raise _unknown(file, kind)


def original_context_of(values: Metadata) -> int:
    """Tokens of the context that is stretched, that of the model where nothing is."""
    context = values.size("context_length")
    return values.size("rope.scaling.original_context_length", context, least=0) or context


def _yarn_attention(file: GgufFile, values: Metadata) -> dict[str, float]:
    """What attention is scaled by, where that does not follow from the other numbers."""
    if values.number("rope.scaling.yarn_ext_factor", 1.0) != 1:
        raise UnsupportedArchitectureError(f"'{file.path}' mixes YaRN with plain positions, which cannot be exported.")
    if not values.has("rope.scaling.yarn_attn_factor"):
        return {}
    return {"attention_factor": values.positive("rope.scaling.yarn_attn_factor")}


def longrope_of(file: GgufFile, values: Metadata, original_context: int) -> dict[str, Any] | None:
    """Phi-3's `rope_scaling` from two tensors of factors, None where there are none.

    transformers computes by itself how much attention is scaled; a file that says otherwise is refused.
    """
    if (kind := values.text("rope.scaling.type", "longrope")) != "longrope":
        raise _unknown(file, kind)
    given = values.number("rope.scaling.attn_factor", 1.0)
    computed = 1.0
    scaling = None
    if _LONG_FACTORS in file.tensors and _SHORT_FACTORS in file.tensors:
        ratio = values.size("context_length") / original_context
        if ratio > 1:
            _check_stretches(file, original_context)
            computed = math.sqrt(1 + math.log(ratio) / math.log(original_context))
        long, short = (factors_of(file, name).tolist() for name in (_LONG_FACTORS, _SHORT_FACTORS))
        scaling = {"type": "longrope", "long_factor": long, "short_factor": short}
    if abs(given - computed) > 1e-4:
        raise file.error(f"scales attention by {given:g} instead of {computed:g}")
    return scaling


def _check_stretches(file: GgufFile, original_context: int) -> None:
    if original_context == 1:
        raise file.error("stretches positions from a context of one token")


def rotated_share(file: GgufFile, head_dim: int) -> float:
    """Which share of the pairs of a head turns, where the others' factors leave them all but still (Gemma 4)."""
    if FREQUENCY_FACTORS not in file.tensors:
        return 1.0
    factors = factors_of(file, FREQUENCY_FACTORS)
    num_rotated = int((factors == 1).sum())
    is_known = (factors[:num_rotated] == 1).all() and (factors[num_rotated:] >= _STILL).all()
    if not is_known or len(factors) != head_dim // 2:
        raise file.error(f"has factors of {len(factors)} frequencies that are neither 1 nor so large that they stand")
    return num_rotated / len(factors)


def factors_of(file: GgufFile, name: str) -> Float32Array:
    """A tensor of positive factors, one a frequency. Raises GgufError."""
    tensor = file.tensors[name]
    if len(tensor.shape) != 1 or tensor.shape[0] > _MAX_FACTORS:
        raise file.error(f"has {name} of the shape {tensor.shape}, and not one row of factors")
    factors = file.values(name)
    if not (factors > 0).all():
        raise file.error(f"has factors in {name} that are not positive")
    return factors


def _unknown(file: GgufFile, kind: str) -> UnsupportedArchitectureError:
    return UnsupportedArchitectureError(
        f"'{file.path}' stretches positions by {kind!r:.80}, which cannot be exported from GGUF."
    )
