"""A model of transformers without weights yet: first without memory, so that no size is allocated unseen."""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.modeling_utils import no_init_weights

from reader_edge_export.sources.memory import free_bytes
from reader_edge_runtime.errors import ExportError

_MAX_BUFFER_BYTES = 1 << 30  # tables that a module computes for itself


def outline_of(config: Mapping[str, Any], source: str, error: type[ExportError] = ExportError) -> PreTrainedModel:
    """The model without memory for its weights; it has the config that `blank_model` takes.

    config: of `built_config`. source: the file or folder, for errors, which are `error`.
    """
    try:
        built = built_config(config)
        with torch.device("meta"):
            outline = blank_model(built)
    except Exception as reason:  # transformers and PyTorch raise many classes for sizes that cannot be
        said = (str(reason).strip() or type(reason).__name__).splitlines()[0]
        raise error(f"'{source}' describes a model that cannot be built ({said:.200}).") from reason
    if sum(buffer.nbytes for buffer in outline.buffers()) > _MAX_BUFFER_BYTES:
        raise error(f"'{source}' describes a model whose tables alone take more than a gigabyte: fetch it again.")
    return outline


def built_config(form: Mapping[str, Any]) -> PretrainedConfig:
    """The config of its class. form: the class's own arguments, as `class_form` gives them."""
    given = dict(form)
    scaling = given.pop("rope_scaling", None)
    config: PretrainedConfig = AutoConfig.for_model(**given)
    if scaling is not None:
        config.rope_scaling = scaling  # past the class, which takes fewer types than its module computes
    return config


def blank_model(config: PretrainedConfig) -> PreTrainedModel:
    """The model in fp32 with plain attention; its weights hold whatever the memory held."""
    with no_init_weights():
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation="eager"
        )
    model.tie_weights()
    return model


def check_memory(outline: PreTrainedModel, source: str, error: type[ExportError] = ExportError) -> None:
    """Raise `error` where a model's weights in fp32 take more memory than is free."""
    # Few bytes can stand for many: two bits of a weight become 32, and what a disk never wrote reads as nought.
    needed, free = sum(parameter.nbytes for parameter in outline.parameters()), free_bytes()
    if free is not None and needed > free:
        raise error(
            f"'{source}' takes {needed / 2**30:.1f} GiB of memory in fp32, of which {free / 2**30:.1f} are free: "
            "end other programs, or export it on a larger machine."
        )
