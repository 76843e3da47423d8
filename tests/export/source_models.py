"""Opens sources as an export does, with all weights in memory, and computes their logits."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from reader_edge_export.package.pass_chain import PassChain, WholePackage
from reader_edge_export.sources.find import find_source
from reader_edge_export.sources.folder.folder_files import read_json
from reader_edge_export.sources.folder.folder_weights import open_folder
from reader_edge_export.sources.folder.hugging_face import HuggingFaceSource
from reader_edge_export.sources.layered_model import LayeredModel
from reader_edge_export.sources.source import Source
from reader_edge_export.sources.source_model import SourceModel, check_finite
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.target import Target
from tests.reference_model.reference_check import check_module


def whole(model: SourceModel) -> PreTrainedModel:
    """A model with all of its weights, for good; experts as their module computes them."""
    weights = {
        key: torch.nn.Parameter(torch.from_numpy(model.weights.read(name)), requires_grad=False)
        for key, name in model.names.items()
    }
    modules: list[Any] = list(model.skeleton.modules())
    for module in modules:
        for name, parameter in module._parameters.items():
            module._parameters[name] = weights.get(id(parameter), parameter)
        if hasattr(module, "layer_experts"):
            module.config._experts_implementation = "eager"
    return model.skeleton


def load_model(source: Source) -> PreTrainedModel:
    """A source's model in fp32; that of a folder is what its config.json says. Raises ExportError as `open_model`."""
    model = source.open_model()
    if isinstance(source, HuggingFaceSource):
        check_module(model, source.config)
    return whole(model)


def chain_logits(model: PreTrainedModel, token_ids: list[int]) -> torch.Tensor:
    """Logits (N, V) after each of N tokens, of a model with all of its weights. Raises ExportError if not finite."""
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([token_ids]), use_cache=False).logits[0]
    check_finite(logits)
    return logits


def logits_after(target: Target, prompt: Sequence[int], token_ids: Sequence[int], num_a_pass: int) -> Float32Array:
    """Logits (N, V) after each of N tokens that follow a prompt, so many tokens a pass."""
    results = WholePackage(target).results([PassChain.of_text(prompt, token_ids, num_a_pass)])
    return np.concatenate([result.wanted_logits[0].copy() for result in results])


def open_source(path: Path) -> SourceModel:
    """Of a folder or file that can be exported."""
    return find_source(path, None).open_model()


def layered(path: Path) -> LayeredModel:
    """The same, to be run a layer at a time."""
    return LayeredModel(open_source(path))


def load_folder(folder: Path) -> PreTrainedModel:
    """The model in a folder, which needs no tokenizer, with all of its weights."""
    return whole(open_folder(folder, read_json(folder / "config.json")))
