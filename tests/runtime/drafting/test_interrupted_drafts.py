"""An interrupt during drafting: nothing that compiled code would write into is used again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reader_edge_runtime import DraftSources, Engine, EngineConfig, GenerationConfig
from reader_edge_runtime.drafting import core as drafting_core
from reader_edge_runtime.drafting.kernels import learning, tree
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.drafting.sources.count_store import CountStore, History

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
        (drafting_core, "packed", 5),
        (learning, "observe", 40),
        (tree, "draft", 40),
        (CountStore, "_grow", 2),
        (CountStore, "went_on", 40),
        (History, "_clear", 3),
        (History, "_write_behind", 3),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_after_an_interrupt_answers_are_those_of_a_fresh_engine(
    engine: Engine,
    wanted: list[tuple[int, ...]],
    monkeypatch: pytest.MonkeyPatch,
    owner: object,
    name: str,
    every: int,
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


def test_an_interrupted_core_is_made_anew_with_what_a_file_has(
    demo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
