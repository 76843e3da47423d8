"""Every architecture in int8 beside llama.cpp's Q8_0 of the same model, against the model in fp32; prints Markdown.

    python -m benchmarks.rounding_proof CACHE [--outliers 8]

Models are random, of two layers and 256 numbers, with one number in a hundred made larger behind every norm, as trained
models have them. CACHE keeps llama.cpp's environment, nothing else.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from benchmarks.measuring import say
from benchmarks.prepare import install, run
from benchmarks.runtimes import ROOT, Contender, contenders
from benchmarks.scorers import Scorer, llama_cpp_scorer, package_scorer
from benchmarks.tables import table
from reader_edge_export import ExportOptions, export_model
from reader_edge_export.divergence import Divergence
from reader_edge_export.quiet import quiet_libraries
from reader_edge_export.sources.module import chain_logits
from tests.export.gguf_models import GGUF_MODELS, build_source, write_model

PRECISIONS = (("int8", "fp32"), ("int8", "int8"), ("int8-a16", "int8"))
NUM_TEXTS, NUM_TOKENS = 8, 120
_SIZES = {"hidden_size": 256, "intermediate_size": 512}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cache", type=Path)
    parser.add_argument("--outliers", type=float, default=8, help="how many times larger one input in a hundred is")
    options = parser.parse_args()
    llama_cpp = next(c for c in contenders(options.cache.resolve()) if c.name == "llama.cpp f32")
    install(llama_cpp)
    header = ["model", "llama.cpp q8_0", *(f"{precision}, KV {kv}" for precision, kv in PRECISIONS)]
    with quiet_libraries(), tempfile.TemporaryDirectory(dir=options.cache) as folder:
        print("\n".join(table(header, rows(llama_cpp, options.outliers, Path(folder)))))


def rows(llama_cpp: Contender, outliers: float, folder: Path) -> Iterator[list[str]]:
    """Mean KL divergence of each model's forms, in nats."""
    texts = np.random.default_rng(0).integers(2, 300, (NUM_TEXTS, NUM_TOKENS)).tolist()
    for model_type in GGUF_MODELS:
        model = _model(model_type, outliers, folder / model_type)
        expected = [chain_logits(model, token_ids).numpy() for token_ids in texts]
        file, rounded = folder / f"{model_type}-f32.gguf", folder / f"{model_type}-q8_0.gguf"
        write_model(model, folder / model_type, file)
        run([llama_cpp.python, ROOT / "benchmarks" / "gguf_converter.py", file, rounded, "q8_0"], folder, {})
        with llama_cpp_scorer(llama_cpp, rounded, 2 * NUM_TOKENS) as score:
            strayed = [_mean_kl(score, texts, expected)]
        for precision, kv in PRECISIONS:
            out = folder / f"{model_type}-{precision}-{kv}"
            export_model(file, out, ExportOptions(precision, kv=kv))
            with package_scorer(out) as score:
                strayed.append(_mean_kl(score, texts, expected))
        say(f"{model_type}: {strayed}")
        yield [model_type, *(f"{each:.2g}" for each in strayed)]


def _model(model_type: str, outliers: float, folder: Path) -> PreTrainedModel:
    changes: dict[str, Any] = {"n_embd": 256} if model_type == "gpt2" else dict(_SIZES)
    if model_type == "phi3":  # llama.cpp leaves Phi-3's window and its partial rotation out
        changes |= {"sliding_window": None, "partial_rotary_factor": 1.0}
    if model_type == "phi":
        changes["intermediate_size"] = 4 * 256
    model = build_source(model_type, folder, **changes)
    shift = 1 if model_type.startswith("gemma") else 0  # its norms multiply by one more than their weights
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1 and name.endswith("weight"):
                chosen = torch.randperm(len(parameter), generator=random)[: len(parameter) // 100]
                parameter[chosen] = (parameter[chosen] + shift) * outliers - shift
    model.save_pretrained(folder)
    return model


def _mean_kl(score: Scorer, texts: list[list[int]], expected: list[np.ndarray]) -> float:
    divergence = Divergence()
    for token_ids, logits in zip(texts, expected, strict=True):
        divergence.add(logits, score(token_ids))
    return divergence.figures()["mean_kl_nats"]


if __name__ == "__main__":
    main()
