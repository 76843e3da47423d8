"""GGUF files read by us and by llama.cpp: architectures by their logits, types by their values; prints Markdown.

    python -m benchmarks.gguf CACHE --sources LLAMA_CPP [--families FAMILY,...]
    python -m benchmarks.gguf CACHE --model FILE.gguf

Tiny random models of every family are converted by the converter in LLAMA_CPP, llama.cpp's sources, read, exported, and
run by llama.cpp; the files are compared with those that the tests write (tests/export/gguf_models.py). The real FILE is
stored again in every type by llama.cpp's quantiser; what we read of it is compared with what llama.cpp makes of it in
fp32. CACHE keeps llama.cpp's environment, nothing else.
"""

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import gguf
import numpy as np
import torch

from benchmarks.fidelity.scorers import llama_cpp_scorer
from benchmarks.gguf.families import FAMILIES, converted_model, unlike_tests
from benchmarks.peers.measuring import say
from benchmarks.peers.prepare import StepError, install, run
from benchmarks.peers.runtimes import ROOT, Contender, contenders
from benchmarks.peers.tables import table
from reader_edge_export import ExportOptions, export_model
from reader_edge_export.libraries import quiet_libraries
from reader_edge_export.sources.find import find_source
from reader_edge_export.sources.gguf.gguf_file import GgufFile
from reader_edge_export.sources.gguf.layer_sizes import architecture_of
from reader_edge_runtime.package.model_package import ModelPackage
from tests.export.source_models import chain_logits, load_model

TYPES = (
    *("f16", "bf16", "q8_0", "q6_k", "q5_k_m", "q5_1", "q5_0", "q4_k_m", "q4_1", "q4_0"),
    *("iq4_xs", "iq4_nl", "q3_k_m", "iq3_s", "q2_k", "tq2_0"),
)
NUM_TOKENS = 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cache", type=Path)
    parser.add_argument("--sources", type=Path, help="llama.cpp's, for architectures")
    parser.add_argument("--families", default=",".join(FAMILIES), help="separated by commas")
    parser.add_argument("--model", type=Path, help="the real GGUF file, for types")
    options = parser.parse_args()
    llama_cpp = next(c for c in contenders(options.cache.resolve()) if c.name == "llama.cpp f32")
    install(llama_cpp)
    with quiet_libraries(), tempfile.TemporaryDirectory(dir=options.cache) as folder:
        if options.sources:
            header = [
                "in the file",
                "model",
                "unlike the tests' file",
                "read by us",
                "our package in fp32",
                "llama.cpp",
            ]
            families = options.families.split(",")
            print("\n".join(table(header, architecture_rows(llama_cpp, options.sources, families, Path(folder)))))
        if options.model:
            header = ["requested", "types in the file", "MB", "values", "values that differ"]
            print("\n".join(table(header, type_rows(llama_cpp, options.model, Path(folder)))))


def architecture_rows(
    llama_cpp: Contender, sources: Path, families: Sequence[str], folder: Path
) -> Iterator[list[str]]:
    """How far logits of one text are from those of the module that was converted, at most."""
    token_ids = np.random.default_rng(0).integers(2, 300, NUM_TOKENS).tolist()
    for family in families:
        model, file = converted_model(family, sources, folder)
        expected = chain_logits(model, token_ids)
        loaded = chain_logits(load_model(find_source(file, None)), token_ids)
        out = folder / f"{family}-package"
        export_model(file, out, ExportOptions(precision="fp32", max_context=2 * NUM_TOKENS))
        with llama_cpp_scorer(llama_cpp, file, 2 * NUM_TOKENS) as score:
            theirs = torch.from_numpy(score(token_ids))
        errors = [
            float((loaded - expected).abs().max()),
            ModelPackage.open(out).manifest.checks["tree_logit_error"],
            float((theirs - expected).abs().max()),
        ]
        unlike = ", ".join(unlike_tests(model, file)) or "nothing"
        say(f"{family}: {errors}, {unlike}")
        yield [architecture_of(GgufFile.open(file)), family, unlike, *(f"{error:.1e}" for error in errors)]


def type_rows(llama_cpp: Contender, model: Path, folder: Path) -> Iterator[list[str]]:
    """Values of all tensors as we read them against llama.cpp's own widening of the same file."""
    stored, widened = folder / "stored.gguf", folder / "widened.gguf"
    converter = [llama_cpp.python, ROOT / "benchmarks" / "peers" / "gguf_converter.py"]
    for name in TYPES:
        try:
            run([*converter, model, stored, name], folder, {})
            run([*converter, stored, widened, "f32"], folder, {})
        except StepError as error:
            say(f"{name}: {error}")
            continue
        ours, theirs = GgufFile.open(stored), GgufFile.open(widened)
        assert all(tensor.kind == gguf.GGMLQuantizationType.F32 for tensor in theirs.tensors.values())
        num_values = num_different = 0
        for tensor in ours.tensors:
            values = ours.values(tensor)
            num_values += values.size
            num_different += int((values != theirs.values(tensor)).sum())
        say(f"{name}: {ours.weight_types()}, {num_different} of {num_values} differ")
        megabytes = f"{stored.stat().st_size / 1e6:.0f}"
        yield [name.upper(), ", ".join(ours.weight_types()), megabytes, f"{num_values:,}", f"{num_different:,}"]


if __name__ == "__main__":
    main()
