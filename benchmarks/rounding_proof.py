"""Every architecture in int8 beside llama.cpp's Q8_0 of the same model, each against its own fp32; prints Markdown.

    python -m benchmarks.rounding_proof CACHE [--outliers 8] [--only llama,gemma2,...]

Models are trained here (trained_models.py) and measured on texts that neither training nor calibration has seen; with
--outliers one in a hundred of their inputs is made larger, which changes nothing that they say. CACHE keeps them and
llama.cpp's environment.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.measuring import say
from benchmarks.outliers import enlarge_outliers
from benchmarks.prepare import install, run
from benchmarks.runtimes import ROOT, Contender, contenders
from benchmarks.scorers import Scorer, llama_cpp_scorer, package_scorer
from benchmarks.tables import table
from benchmarks.trained_models import NUM_TOKENS, Texts, TrainedModels
from reader_edge_export import ExportOptions, export_model
from reader_edge_export.divergence import Divergence
from reader_edge_export.quiet import quiet_libraries
from reader_edge_export.sources.module import chain_logits
from tests.export.gguf_models import GGUF_MODELS, write_model

PRECISIONS = (("int8", "fp32"), ("int8", "int8"), ("int8-a16", "int8"))

Logits = list[np.ndarray]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cache", type=Path)
    parser.add_argument("--outliers", type=float, default=1, help="how many times larger one input in a hundred is")
    parser.add_argument("--only", default=",".join(GGUF_MODELS), help="types of models")
    options = parser.parse_args()
    llama_cpp = next(c for c in contenders(options.cache.resolve()) if c.name == "llama.cpp f32")
    install(llama_cpp)
    models = TrainedModels(options.cache / "trained", Texts.of_this_python())
    theirs = [f"llama.cpp q8_0, KV {kv}" for kv in ("fp16", "q8_0")]
    header = ["model", *theirs, *(f"{precision}, KV {kv}" for precision, kv in PRECISIONS)]
    with quiet_libraries(), tempfile.TemporaryDirectory(dir=options.cache) as folder:
        proof = RoundingProof(llama_cpp, models, options.outliers, Path(folder))
        print("\n".join(table(header, map(proof.row, options.only.split(",")))))


class RoundingProof:
    """Mean KL divergences of a model's forms, in nats."""

    def __init__(self, llama_cpp: Contender, models: TrainedModels, outliers: float, folder: Path) -> None:
        self._llama_cpp = llama_cpp
        self._models = models
        self._outliers = outliers
        self._folder = folder
        self._calibration_text = folder / "calibration.txt"
        self._calibration_text.write_text(models.calibration_text, encoding="utf-8")

    def row(self, model_type: str) -> list[str]:
        model, source = self._models.load(model_type)
        enlarge_outliers(model, self._outliers)
        file = write_model(model, source, self._folder / f"{model_type}-f32.gguf")
        strayed = self._kls_of_llama_cpp(file)
        expected = [chain_logits(model, token_ids).numpy() for token_ids in self._models.held_out]
        for precision, kv in PRECISIONS:
            out = self._folder / f"{model_type}-{precision}-{kv}"
            export_model(file, out, ExportOptions(precision, kv=kv, calibration_text=self._calibration_text))
            with package_scorer(out) as score:
                strayed.append(_mean_kl(expected, self._logits(score)))
        say(f"{model_type}: {strayed}")
        return [model_type, *(f"{each:.2g}" for each in strayed)]

    def _kls_of_llama_cpp(self, file: Path) -> list[float]:
        """Of its Q8_0 form, with its KV cache in fp16 and in Q8_0, against the same file in fp32.

        Its functions differ from ours in their last bits, so the reference is its own.
        """
        rounded = file.with_name(file.name.replace("f32", "q8_0"))
        run([self._llama_cpp.python, ROOT / "benchmarks" / "gguf_converter.py", file, rounded, "q8_0"], file.parent, {})
        with llama_cpp_scorer(self._llama_cpp, file, 2 * NUM_TOKENS) as score:
            expected = list(self._logits(score))
        strayed = []
        for is_cache_rounded in (False, True):
            with llama_cpp_scorer(self._llama_cpp, rounded, 2 * NUM_TOKENS, is_cache_rounded) as score:
                strayed.append(_mean_kl(expected, self._logits(score)))
        return strayed

    def _logits(self, score: Scorer) -> Iterator[np.ndarray]:
        return map(score, self._models.held_out)


def _mean_kl(expected: Logits, scored: Iterator[np.ndarray]) -> float:
    divergence = Divergence()
    for rows, logits in zip(expected, scored, strict=True):
        divergence.add(rows, logits)
    return divergence.figures()["mean_kl_nats"]


if __name__ == "__main__":
    main()
