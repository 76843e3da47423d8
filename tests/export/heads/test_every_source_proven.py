"""The proof with every source of drafts together, and with heads that mean ill: they change nothing but speed."""

import math
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from reader_edge import DraftConfig, Engine, EngineConfig, GenerationConfig
from reader_edge.eval_prompt import EvalPrompt
from reader_edge.model_source import further_sources
from reader_edge.own_answers import answer_all
from reader_edge.proof import ways
from reader_edge.proof.proof import prove
from reader_edge_export.heads.rounded_head import rounded_head
from reader_edge_runtime import DraftSources
from reader_edge_runtime.arrays import Float32Array, Int64Array
from reader_edge_runtime.drafting.kernel_loader import KernelLoader
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.drafting.sources.head_file import NUM_FIRST, NUM_GUESSES, NUM_SECOND, HeadFile, HeadGuesses
from reader_edge_runtime.drafting.sources.head_sizes import HeadSizes
from reader_edge_runtime.drafting.sources.head_source import HeadSource
from reader_edge_runtime.errors import ProviderError
from reader_edge_runtime.package.manifest import SUCCESSORS_NAME
from tests.export.heads.test_heads import HIDDEN, all_ids, untrained
from tests.tiny_models import VOCAB_SIZE

QUESTIONS = [EvalPrompt("the cat"), EvalPrompt("tides rise and fall"), EvalPrompt("def add(a, b): return")]
UNMEASURED = EngineConfig(is_calibrated=False)
MAX_TOKENS = 10


class HostileHead:
    """Says of every text what no trained head would; the same seed says the same. kind: of what is wrong with it."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._random = np.random.default_rng(0)
        self.num_asked = 0

    def guess(self, hidden_states: Float32Array, pending: Int64Array) -> HeadGuesses:
        self.num_asked += 1
        if self._kind == "failing" and self.num_asked > 3:
            raise ProviderError("ONNX Runtime failed in the head.")
        first, second = (len(pending), NUM_FIRST), (len(pending), NUM_GUESSES, NUM_SECOND)
        return HeadGuesses(self._shares(first), self._numbers(first), self._shares(second), self._numbers(second))

    def _shares(self, shape: tuple[int, ...]) -> Float32Array:
        shares = self._random.random(shape, np.float32)
        if self._kind == "no numbers":
            shares[..., ::2] = self._random.choice([math.nan, math.inf, -math.inf, -1.0, 2.0], shares[..., ::2].shape)
        return np.ones_like(shares) if self._kind == "sure" else shares

    def _numbers(self, shape: tuple[int, ...]) -> Int64Array:
        numbers = self._random.integers(0, VOCAB_SIZE, shape)
        if self._kind == "no tokens":
            numbers[..., ::2] = self._random.choice([-1, -(2**62), VOCAB_SIZE, 2**31, 2**62], numbers[..., ::2].shape)
        return np.full_like(numbers, 5) if self._kind == "sure" else numbers


@pytest.fixture(scope="module")
def package(exported: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One with hidden states, a table of successors and own answers."""
    KernelLoader.shared().wait()  # until then nothing is drafted
    folder = tmp_path_factory.mktemp("every source") / "package"
    shutil.copytree(exported("llama", "int8", "exact"), folder)
    engine = Engine.load(folder, UNMEASURED)
    answer_all(engine, QUESTIONS[:1], GenerationConfig(max_tokens=30), 100).write(engine.package)
    return folder


def _head_source(model: HostileHead) -> HeadSource:
    return HeadSource(HeadFile(HeadSizes(HIDDEN, VOCAB_SIZE), all_ids(), {}), model, VOCAB_SIZE)


@pytest.mark.long
def test_every_source_together_changes_nothing(
    package: Path, exported: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ways, "DRAFTERS", ("none",))
    engine = Engine.load(package, UNMEASURED)
    assert SUCCESSORS_NAME in engine.package.manifest.files
    module = untrained()
    module.vocabulary.bias.data[5] = 10  # always sure of the same token
    head = tmp_path / "sure.head"
    rounded_head(module, all_ids()).write(head, engine.package.manifest)
    report = prove(
        engine,
        QUESTIONS,
        MAX_TOKENS,
        further=further_sources(engine, DraftSources(head=head, draft_model=exported("llama", "fp32", "exact"))),
    )
    assert report.counts.divergences == 0
    assert report.logit_rows_bit_equal
    assert report.is_promise_kept
    together = [run for run in report.runs if run.setting.drafter == "all sources + head + draft model"]
    assert {run.setting.way for run in together} == {*ways.WAYS, *ways.ARRIVAL_WAYS}
    nodes = set().union(*(run.nodes_by_source for run in together))
    assert nodes >= {"context", "history", "datastore", "logits", "head", "draft model"}


@pytest.mark.parametrize("kind", ["random", "sure", "no numbers", "no tokens", "failing"])
@pytest.mark.filterwarnings("ignore:ONNX Runtime failed in the head")
def test_a_hostile_head_changes_nothing_but_speed(package: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways, "DRAFTERS", ())
    monkeypatch.setattr(ways, "ARRIVAL_DRAFTERS", ())
    model = HostileHead(kind)
    report = prove(Engine.load(package, UNMEASURED), QUESTIONS, MAX_TOKENS, further=[_head_source(model)])
    assert model.num_asked > 3
    assert report.counts.tokens_compared > 6 * len(QUESTIONS) * MAX_TOKENS
    assert report.counts.divergences == 0
    assert report.is_promise_kept


@pytest.mark.parametrize("kind", ["random", "sure", "no numbers", "no tokens"])
def test_an_engine_with_a_hostile_head_says_what_it_says_without(package: Path, kind: str) -> None:
    drafter = RetrievalDrafter(DraftConfig(), [_head_source(HostileHead(kind))]).wait()
    config = GenerationConfig(max_tokens=40, ignores_eos=True)
    said = [Engine.load(package, UNMEASURED, drafter=each).generate("the cat", config) for each in (None, drafter)]
    assert said[0].token_ids == said[1].token_ids
