"""Scorers that give logits for token ids: the source module, a package of ours, a GGUF file in llama.cpp."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from benchmarks.peers.runtimes import THREADS, Contender
from benchmarks.peers.worker_process import WorkerProcess
from reader_edge_export.sources.source import Source
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.package.model_package import ModelPackage
from tests.export.source_models import chain_logits, load_model, logits_after

Float32Array = npt.NDArray[np.float32]

_TOKENS_A_PASS = 64  # as many as a prompt's pass has at least; the bits do not depend on it


class LogitScorer(Protocol):
    """A loaded model: logits (N, V) after each of N tokens from the beginning of a text."""

    def __call__(self, token_ids: Sequence[int]) -> Float32Array: ...


@contextmanager
def source_scorer(source: Source) -> Iterator[LogitScorer]:
    """The source module in fp32."""
    model = load_model(source)
    yield lambda token_ids: chain_logits(model, list(token_ids)).numpy()


@contextmanager
def package_scorer(folder: Path) -> Iterator[LogitScorer]:
    """A package on the CPU."""
    target = HostTarget.open(ModelPackage.open(folder), threads=THREADS)
    yield lambda token_ids: logits_after(target, [], list(token_ids), _TOKENS_A_PASS)


@contextmanager
def llama_cpp_scorer(
    llama_cpp: Contender, file: Path, max_length: int, is_cache_rounded: bool = False
) -> Iterator[LogitScorer]:
    """A GGUF file in llama.cpp's environment, for texts of up to `max_length` tokens.

    fp32 files keep an fp32 cache, others one of fp16, or of Q8_0 where it is rounded.
    """
    log, logits = file.with_suffix(".log"), file.with_suffix(".npy")
    worker = WorkerProcess(llama_cpp.python, "llama_cpp_logits_worker.py", log, llama_cpp.environment)

    def score(token_ids: Sequence[int]) -> Float32Array:
        worker.ask("logits", token_ids=list(token_ids), out=str(logits))
        scored: Float32Array = np.load(logits)
        return scored

    try:
        worker.ask(
            "load", model=f"{file}:kv-q8_0" if is_cache_rounded else str(file), threads=THREADS, max_length=max_length
        )
        yield score
    finally:
        worker.close()
        logits.unlink(missing_ok=True)
