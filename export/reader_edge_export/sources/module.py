"""The source module in PyTorch, the truth that every package is measured against."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from reader_edge_export.sources.blank_model import built_config, check_memory, outline_of
from reader_edge_export.sources.config_form import class_form
from reader_edge_export.sources.json_file import read_json
from reader_edge_export.sources.quantized.folder import QuantizedFolder
from reader_edge_export.sources.quantized.formats import Quantization, plain_config
from reader_edge_export.sources.stored_tensors import stored_tensors
from reader_edge_export.sources.weight_places import check_places, check_shapes, has_own_head
from reader_edge_runtime.errors import ExportError


def load_folder(folder: Path) -> PreTrainedModel:
    """The model in a folder of Hugging Face format, in fp32 with plain attention.

    Raises ExportError where its weights do not fit its config or are left over, and where they are not finite.
    """
    tensors = stored_tensors(folder)
    form = class_form(read_json(folder / "config.json"))
    if built_config(form).tie_word_embeddings and has_own_head(tensors):
        form["tie_word_embeddings"] = False
    outline = outline_of(form, str(folder))
    check_shapes(folder, outline, tensors)
    check_memory(outline, str(folder))
    progress_was_shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            config=outline.config,
            dtype=torch.float32,
            attn_implementation="eager",
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except Exception as error:  # transformers and safetensors raise many classes for broken weights
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ExportError(
            f"The weights in '{folder}' cannot be loaded: {reason:.200}; fetch the model again."
        ) from error
    finally:
        if progress_was_shown:
            transformers_logging.enable_progress_bar()
    model, loading = loaded
    mismatched = [str(key[0]) for key in loading["mismatched_keys"]]
    without_values = [name for name, parameter in model.named_parameters() if parameter.is_meta]
    lacking = {*loading["missing_keys"], *mismatched, *without_values}
    check_places(folder, lacking, loading["unexpected_keys"])
    _check_weights(model, folder)
    checked: PreTrainedModel = model.eval()
    return checked


def load_quantized(folder: Path, config: Mapping[str, Any], quantization: Quantization) -> PreTrainedModel:
    """The model in a folder that another tool quantised, widened to fp32, with plain attention. Raises ExportError."""
    model = QuantizedFolder(folder, quantization).load(class_form(plain_config(config)))
    _check_weights(model, folder)
    return model


def _check_weights(model: PreTrainedModel, folder: Path) -> None:
    for name, weight in model.named_parameters():
        if not all(extreme.isfinite() for extreme in weight.detach().aminmax()):  # of which each is NaN if any is
            raise ExportError(
                f"The weights in '{folder}' are not all finite numbers, {name} among them: fetch the model again."
            )


def vocab_size_of(model: PreTrainedModel) -> int:
    """Rows of the logit head."""
    return int(_logit_head(model).shape[0])


def hidden_size_of(model: PreTrainedModel) -> int:
    """Columns of the logit head."""
    return int(_logit_head(model).shape[1])


def _logit_head(model: PreTrainedModel) -> torch.Tensor:
    head = model.get_output_embeddings()
    if head is None:
        raise ExportError(f"The model type {model.config.model_type!r} has no logit head here.")
    weight: torch.Tensor = head.weight
    return weight


def chain_logits(model: PreTrainedModel, token_ids: list[int]) -> torch.Tensor:
    """Logits (N, V) after each of N tokens. Raises ExportError where they are not finite."""
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([token_ids]), use_cache=False).logits[0]
    check_finite(logits)
    return logits


def check_finite(computed: torch.Tensor) -> None:
    """Raise ExportError where what a model computes on the way to its logits is not finite, or they are not."""
    if not computed.isfinite().all():
        raise ExportError(
            "What the model computes is too large for 32-bit numbers: its weights are damaged, or not those of its "
            "config; fetch the model again."
        )
