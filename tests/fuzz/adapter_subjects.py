"""Spoilt adapters: beside a model and merged as they are, or refused in a sentence."""

import json
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save

from reader_edge_export.libraries import quiet_libraries
from reader_edge_export.sources.adapters.adapter import factors_of, find_adapter
from reader_edge_export.sources.adapters.merged_weights import merged
from reader_edge_export.sources.find import find_source
from reader_edge_export.sources.source import Source
from reader_edge_export.sources.source_model import SourceModel
from reader_edge_runtime.adapters.adapted_modules import module_factors, open_adapter
from reader_edge_runtime.adapters.peft_folder import CONFIG_NAME, WEIGHTS_NAME
from reader_edge_runtime.errors import ReaderEdgeError
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.package.package_parts import LowRankPart, LowRankProduct
from tests.export.source_models import load_folder
from tests.export.sources.adapters.adapter_files import (
    Factors,
    draw_factors,
    gguf_factors,
    matrices,
    peft_config,
    peft_tensors,
    write_gguf_adapter,
)
from tests.fake_target import make_manifest
from tests.fuzz.mutation import Subject, mutated, mutated_json
from tests.fuzz.other_subjects import spoil_header
from tests.tiny_models import build_tiny_model

_MATRICES = ("model.layers.0.self_attn.k_proj", "model.layers.1.mlp.down_proj")


_ROOT = tempfile.TemporaryDirectory()  # weights of the model are read from its folder when they are needed


@cache
def _model() -> tuple[Source, SourceModel, bytes, bytes]:
    """A text model, and the weights of an adapter for it, as PEFT and as llama.cpp's converter write them."""
    root = Path(_ROOT.name)
    with quiet_libraries():
        tiny = build_tiny_model("llama", root / "tiny")
        module = load_folder(tiny)
        factors: Factors = {name: pair for name, pair in draw_factors(module).items() if name in _MATRICES}
        stored = write_gguf_adapter(root / "adapter", "llama", gguf_factors(module, "llama", factors))
        source, weights = find_source(tiny, None), save(peft_tensors(factors), {"format": "pt"})
        return source, source.open_model(), weights, stored.read_bytes()


def _folder(path: Path, config: bytes, weights: bytes) -> Path:
    folder = path.parent / "adapter"
    folder.mkdir(exist_ok=True)
    (folder / CONFIG_NAME).write_bytes(config)
    (folder / WEIGHTS_NAME).write_bytes(weights)
    return folder


@cache
def _manifest() -> Manifest:
    """Of a package whose products by the same matrices take adapters."""
    module = load_folder(Path(_ROOT.name) / "tiny")
    shapes = {name: each.shape for name, each in matrices(module).items() if name in _MATRICES}
    products = tuple(LowRankProduct(shape[1], (LowRankPart(name, shape[0]),)) for name, shape in shapes.items())
    return replace(make_manifest(), adapted_products=products)


def _take(path: Path) -> None:
    """Whatever fits is beside the model."""
    refusal: ReaderEdgeError | None = None
    _model()
    try:
        for up, down in module_factors(open_adapter(path), _manifest()).values():
            assert np.isfinite(up).all()
            assert np.isfinite(down).all()
    except ReaderEdgeError as error:
        refusal = error
    _merge(path)
    if refusal is not None:
        assert "\n" not in str(refusal)
        raise refusal


def _merge(path: Path) -> None:
    """Whatever fits is in the weights."""
    source, model, *_ = _model()
    adapter = find_adapter(path, source)
    changed, num_changed, _ = merged(model, adapter)
    names = list(factors_of(adapter, model.skeleton))
    assert num_changed in (0, len(names))
    assert all(torch.from_numpy(changed.weights.read(name)).isfinite().all() for name in names)


_CONFIG = json.dumps(peft_config()).encode()
ADAPTER_SUBJECTS = {
    "adapter's config": Subject(
        lambda _: [_CONFIG], mutated_json, lambda path: _take(_folder(path, path.read_bytes(), _model()[2]))
    ),
    "adapter's weights": Subject(
        lambda _: [_model()[2]], spoil_header, lambda path: _take(_folder(path, _CONFIG, path.read_bytes()))
    ),
    "adapter in gguf": Subject(lambda _: [_model()[3]], mutated, _take),
}
