"""The retrieval drafter in the decoder: whatever sources say, the answer is the target's own."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reader_edge_runtime import DraftSources, Engine
from reader_edge_runtime.arrays import Int32Array
from reader_edge_runtime.config import DraftConfig, EngineConfig, GenerationConfig, SamplingConfig
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting import core as drafting_core
from reader_edge_runtime.drafting.drafter import DraftRequest, RequestContext, RequestDrafter
from reader_edge_runtime.drafting.kernel_loader import KernelLoader
from reader_edge_runtime.drafting.kernels import learning, tree
from reader_edge_runtime.drafting.proposals import pack_proposals
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.drafting.sources.count_store import CountStore, History
from reader_edge_runtime.drafting.sources.source import DraftSource
from reader_edge_runtime.errors import DraftError
from tests.conftest import ROOT
from tests.drafted_text import DraftedText, Guess, proposed
from tests.fake_target import FakeTarget, make_manifest
from tests.random_drafter import chosen
from tests.runtime.drafting.integrity import check_integrity, text_ends

VOCAB_SIZE = 8


class ScriptedSource(DraftSource):
    """Proposes what a test gives it, whatever the text."""

    name = "scripted"

    def __init__(self, *guesses: Guess) -> None:
        self.guesses = list(guesses)
        self.text: Sequence[int] = ()

    def begin(self, context: RequestContext) -> RequestDrafter:
        self.text = context.token_ids
        return RequestDrafter(context)

    def propose(self, draft_requests: Sequence[DraftRequest]) -> list[DraftTree]:
        return [proposed(draft_request.request.token_ids[-1], self._next()) for draft_request in draft_requests]

    def _next(self) -> Guess:
        self.guesses.append(self.guesses.pop(0))
        return self.guesses[-1]


def make_drafter(config: DraftConfig | None = None, *sources: ScriptedSource) -> RetrievalDrafter:
    return RetrievalDrafter(config or DraftConfig(max_nodes=24), sources).wait()


def decode(drafter: RetrievalDrafter, prompts: Sequence[Sequence[int]], config: GenerationConfig) -> list[list[int]]:
    target = FakeTarget(make_manifest(VOCAB_SIZE), order=2)
    decoder = Decoder(target, drafter, EngineConfig(max_batch=3, prefill_chunk=7))
    sequences = [decoder.submit(prompt, config) for prompt in prompts]
    decoder.finish(*sequences)
    assert sum(sequence.stats.num_accepted_tokens for sequence in sequences) > 0
    return [sequence.output_token_ids for sequence in sequences]


def plain(prompts: Sequence[Sequence[int]], config: GenerationConfig) -> list[list[int]]:
    from reader_edge_runtime.decoding.sampling.sampler import Sampler

    target = FakeTarget(make_manifest(VOCAB_SIZE), order=2)
    answers = []
    for prompt in prompts:
        sampler = Sampler(config.sampling or SamplingConfig(), VOCAB_SIZE, prompt)
        token_ids = list(prompt)
        for _ in range(config.max_tokens):
            token_ids.append(chosen(sampler, target.logits_after(token_ids), len(token_ids)))
        answers.append(token_ids[len(prompt) :])
    return answers


@pytest.mark.long
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1 << 20),
    temperature=st.sampled_from([0.0, 0.8]),
    max_history_tokens=st.sampled_from([0, 30, 10_000]),
    max_nodes=st.integers(2, 64),
)
def test_shared_history_changes_no_token(
    seed: int, temperature: float, max_history_tokens: int, max_nodes: int
) -> None:
    random = np.random.default_rng(seed)
    prompts = [random.integers(VOCAB_SIZE, size=n).tolist() for n in random.integers(1, 30, size=6)]
    config = GenerationConfig(max_tokens=60, sampling=SamplingConfig(temperature=temperature, seed=seed))
    drafter = make_drafter(DraftConfig(max_nodes=max_nodes, max_history_tokens=max_history_tokens))
    assert decode(drafter, prompts, config) == plain(prompts, config)
    core = drafter.core()
    assert core is not None
    check_integrity(core.history, [text.tolist() for text in core.history.texts()], text_ends(core.history))


def test_proposals_of_a_source_are_drafted_and_trusted_as_they_deserve() -> None:
    config = GenerationConfig(max_tokens=200, sampling=SamplingConfig(temperature=1.5, seed=1))
    nonsense = ScriptedSource(
        ([1, 2, 3, 1], [-1, 0, 1, 2], [1.0, 1.0, 1.0, 1.0]),
        ([], [], []),
        ([7, 6, 5], [-1, -1, -1], [0.0, 0.5, 1.0]),
        ([2, 2, 3, 3, 3], [-1, -1, 0, 1, 1], [0.9, 0.1, 0.9, 0.9, 0.9]),
    )
    drafter = make_drafter(None, nonsense)
    prompts = [[1, 2, 3], [4, 5]]
    answers = decode(drafter, prompts[:1], config)
    assert answers == plain(prompts[:1], config)
    assert nonsense.text == prompts[0] + answers[0]


@pytest.mark.parametrize(
    "guess",
    [
        *(([-1], [-1], [0.9]), ([2**40], [-1], [0.9]), ([1, 1], [-1, 1], [0.9, 0.9]), ([1, 1], [-1, -2], [0.9, 0.9])),
        *(([1], [-1], [1.5]), ([1], [-1], [float("nan")]), ([1, 2], [-1], [0.5, 0.5]), ([VOCAB_SIZE], [-1], [1.0])),
    ],
)
def test_hostile_source_is_named_in_an_error_and_says_no_token(guess: Guess) -> None:
    drafter = make_drafter(None, ScriptedSource(guess))
    with pytest.raises(DraftError, match="scripted"):
        decode(drafter, [[1, 2, 3]], GenerationConfig(max_tokens=20))
    config = GenerationConfig(max_tokens=40)
    assert decode(make_drafter(), [[1, 2, 3]], config) == plain([[1, 2, 3]], config)


def test_a_token_named_again_below_its_parent_is_the_same_node() -> None:
    again = ([2, 2, 3, 3, 4], [-1, -1, 0, 1, 3], [0.9, 0.1, 0.8, 0.2, 0.7])
    packed = pack_proposals([proposed(9, again)])
    once = pack_proposals([proposed(9, ([2, 3, 4], [-1, 0, 1], [0.9, 0.8, 0.7]))])
    assert _paths(*packed) == _paths(*once)


def _paths(nodes: np.ndarray, roots: list[int]) -> list[tuple[tuple[int, ...], int]]:
    """Tokens and class of every path below the first root."""
    found: list[tuple[tuple[int, ...], int]] = []
    waiting: list[tuple[tuple[int, ...], int]] = [((), roots[0])]
    while waiting:
        path, node = waiting.pop()
        child = nodes[node, 1]
        while child:
            found.append(((*path, int(nodes[child, 0])), int(nodes[child, 3])))
            waiting.append((found[-1][0], child))
            child = nodes[child, 2]
    return sorted(found)


def test_requests_before_the_kernels_are_there_draft_nothing_and_catch_up(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = make_drafter()
    loader = KernelLoader.shared()
    monkeypatch.setattr(loader, "is_ready", False)
    request = DraftedText(drafter, [1, 2, 3, 1, 2, 3, 1])
    tree = request.draft(8, 8)
    assert len(tree) == 1
    request.go_on([2, 3])
    monkeypatch.setattr(loader, "is_ready", True)
    tree = request.draft(8, 8)
    assert tree.token_ids[:4] == [3, 1, 2, 3]
    assert set(tree.sources[1:]) == {"context"}


def test_history_helps_the_next_request_until_it_is_forgotten() -> None:
    drafter = make_drafter()
    text = [5, 6, 7, 8, 9, 10, 11]
    for _ in range(2):
        first = DraftedText(drafter, [4])
        first.draft(2, 2)
        first.go_on(text)
        first.finish()
    second = DraftedText(drafter, [4])
    second.draft(2, 2)
    second.go_on([5, 6])
    tree = second.draft(16, 8)
    node = 0
    for token_id in text[2:]:
        node = tree.child(node, token_id)
        assert node > 0
        assert tree.sources[node] == "history"
    drafter.forget()
    assert set(second.draft(8, 8).token_ids) <= {4, 5, 6}
    third = DraftedText(drafter, [4, 5])
    assert 7 not in third.draft(8, 8).token_ids


def test_an_answer_that_never_drafted_is_learned_when_one_next_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    learned: list[int] = []
    add = History.add

    def noted(history: History, token_ids: Int32Array) -> None:
        learned.extend(token_ids)
        add(history, token_ids)

    monkeypatch.setattr(History, "add", noted)
    drafter = make_drafter()
    for _ in range(2):
        silent = DraftedText(drafter, [4])
        silent.go_on([5, 6, 7])
        silent.finish()
    assert learned == []
    assert DraftedText(drafter, [4, 5]).draft(8, 8).token_ids[1] == 6
    assert learned == [4, 5, 6, 7] * 2


def test_position_in_a_forgotten_text_is_not_followed() -> None:
    drafter = make_drafter(DraftConfig(max_nodes=16, max_history_tokens=20))
    first = DraftedText(drafter, [1])
    first.draft(2, 2)
    first.go_on(list(range(100, 115)))
    first.finish()
    running = DraftedText(drafter, [1])
    running.draft(2, 2)
    running.go_on([100, 101, 102, 103, 104, 105])
    assert 106 in running.draft(8, 4).token_ids
    other = DraftedText(drafter, [2])
    other.draft(2, 2)
    other.go_on(list(range(200, 215)))
    other.finish()
    assert set(running.draft(16, 4).token_ids) <= {1, 2, *range(100, 106), *range(200, 215)}


def test_predicted_values_become_true() -> None:
    """Tokens that are right one time in two at random: values near one half are accepted as often."""
    random = np.random.default_rng(0)
    drafter = make_drafter()
    request = DraftedText(drafter, [0])
    predicted, observed = [], []
    for _ in range(3000):
        tree = request.draft(2, 1)
        token = int(random.integers(2))
        if len(tree) == 2:
            predicted.append(tree.values[1])
            observed.append(tree.token_ids[1] == token)
        request.go_on([token])
    assert np.mean(predicted[500:]) == pytest.approx(np.mean(observed[500:]), abs=0.05)


LONG = GenerationConfig(max_tokens=80, ignores_eos=True)
PROMPTS = [f"# tar {number}\nabc {number * 7}" for number in range(6)]


@pytest.fixture
def engine(demo_folder: Path) -> Engine:
    return load_ready(demo_folder)


@pytest.fixture(scope="module")
def wanted(demo_folder: Path) -> list[tuple[int, ...]]:
    """What a fresh engine answers."""
    engine = load_ready(demo_folder)
    return [engine.generate(prompt, LONG).token_ids for prompt in PROMPTS]


def load_ready(demo_folder: Path) -> Engine:
    """An engine that drafts from its first step on."""
    engine = Engine.load(demo_folder, EngineConfig(is_calibrated=False, is_probed=False))
    assert isinstance(engine.decoder.drafter, RetrievalDrafter)
    engine.decoder.drafter.wait()
    return engine


def interrupting(work: Callable[..., Any], every: int) -> Callable[..., Any]:
    """The same, but broken off before every so manieth time."""
    num_calls = 0

    def broken_off(*given: Any) -> Any:
        nonlocal num_calls
        num_calls += 1
        if num_calls % every == 0:
            raise KeyboardInterrupt
        return work(*given)

    return broken_off


@pytest.mark.long
@pytest.mark.parametrize(
    ("owner", "name", "every"),
    [
        *((drafting_core, "packed", 5), (learning, "observe", 40), (tree, "draft", 40), (CountStore, "_grow", 2)),
        *((CountStore, "went_on", 40), (History, "_clear", 3), (History, "_write_behind", 3)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_after_an_interrupt_answers_are_those_of_a_fresh_engine(
    engine: Engine, wanted: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch, owner: object, name: str, every: int
) -> None:
    monkeypatch.setattr(owner, name, interrupting(getattr(owner, name), every))
    num_interrupts = 0
    for _ in range(3):
        for prompt, token_ids in zip(PROMPTS, wanted, strict=True):
            try:
                assert engine.generate(prompt, LONG).token_ids == token_ids
            except KeyboardInterrupt:
                num_interrupts += 1
    assert num_interrupts > 0


def test_an_interrupted_core_is_replaced(demo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = EngineConfig(is_calibrated=False, is_probed=False)
    engine = Engine.load(demo_folder, config, sources=DraftSources(history=tmp_path / "past"))
    drafter = engine.decoder.drafter
    assert isinstance(drafter, RetrievalDrafter)
    before = drafter.loaded_core()
    engine.generate(PROMPTS[0], LONG)
    with monkeypatch.context() as patch:
        patch.setattr(tree, "draft", interrupting(tree.draft, 10))
        with pytest.raises(KeyboardInterrupt):
            engine.generate(PROMPTS[1], LONG)
    after = drafter.loaded_core()
    assert after is not before
    assert len(after.history.texts()) >= 1


def test_the_source_in_the_documentation_drafts(demo_folder: Path) -> None:
    config = GenerationConfig(max_tokens=40)
    plain = Engine.load(demo_folder, EngineConfig(is_drafted=False)).generate("# tar", config)
    text = (ROOT / "docs" / "how-to" / "own-source.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {"path": demo_folder, "token_ids": plain.token_ids[8:14]}
    names["config"] = EngineConfig(is_calibrated=False)
    exec(example.replace("load(path, ", "load(path, config, "), names)  # noqa: S102  # our own text
    engine = names["engine"]
    assert isinstance(engine.decoder.drafter, RetrievalDrafter)
    engine.decoder.drafter.wait()
    drafted = engine.generate("# tar", config)
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.drafted_by_source["sentence"] > 0
