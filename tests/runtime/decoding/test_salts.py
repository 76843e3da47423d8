"""Requests with different salts tell each other nothing: neither rows of the cache nor past answers are shared."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reader_edge_runtime import DraftConfig, DraftSources, Engine, EngineConfig, GenerationConfig
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.drafting.drafter import RequestContext, RequestDrafter
from reader_edge_runtime.drafting.retrieval_drafter import _MAX_KEPT, RetrievalDrafter
from reader_edge_runtime.drafting.sources.text_slot import TextSlot, best_slot
from reader_edge_runtime.drafting.sources.tool_source import ToolSource
from reader_edge_runtime.errors import ConfigError
from tests.conftest import make_as_new
from tests.fake_hybrid import FakeHybridTarget, hybrid_manifest
from tests.fake_target import FakeTarget, make_manifest
from tests.random_drafter import RandomDrafter, reference

TARGETS: dict[str, Callable[[], FakeTarget]] = {
    "attention": lambda: FakeTarget(make_manifest(6)),
    "hybrid": lambda: FakeHybridTarget(hybrid_manifest(6)),
}


def salted(salt: str, max_tokens: int = 8) -> GenerationConfig:
    return GenerationConfig(max_tokens=max_tokens, cache_salt=salt)


@pytest.mark.parametrize("kind", TARGETS)
@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    requested=st.lists(
        st.tuples(st.sampled_from(["", "a", "b"]), st.integers(0, 2), st.booleans()), min_size=2, max_size=10
    ),
)
def test_counts_are_those_of_a_request_s_salt(kind: str, seed: int, requested: list[tuple[str, int, bool]]) -> None:
    """Whatever others ask at the same time or before: what is reused is what was requested with that salt."""
    target = TARGETS[kind]()
    decoder = Decoder(target, RandomDrafter(6, 9, seed), EngineConfig(max_batch=4, prefill_chunk=7))
    texts = [np.random.default_rng(number).integers(6, size=30).tolist() for number in range(3)]
    known: set[tuple[str, int]] = set()
    running: list[Request] = []
    for salt, number, waits in requested:
        request = decoder.submit(texts[number], salted(salt))
        running.append(request)
        decoder.step()
        if (salt, number) not in known:
            assert request.stats.num_reused_tokens < 10  # what texts share by chance
        known.add((salt, number))
        if waits:
            decoder.finish(*running)
    decoder.finish(*running)
    for request in running:
        prompt = request.token_ids[: request.num_prompt_tokens]
        assert request.output_token_ids == reference(target.manifest, prompt, request.config, target)


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("is_running", [True, False])
def test_the_same_prompt_is_reused_with_the_same_salt_alone(kind: str, is_running: bool) -> None:
    decoder = Decoder(TARGETS[kind](), RandomDrafter(6, 9, 1), EngineConfig(max_batch=4))
    text = np.random.default_rng(1).integers(6, size=30).tolist()
    first = decoder.submit(text, salted("a", 30))
    decoder.step()
    if not is_running:
        decoder.finish(first)
    others = [decoder.submit(text, salted(salt)) for salt in ("a", "b", "")]
    decoder.finish(*others)
    reused = [each.stats.num_reused_tokens for each in others]
    assert reused[0] > 20
    assert reused[1:] == [0, 0]


def test_answers_are_drafted_from_those_of_the_same_salt_alone_and_their_tokens_are_the_same(engine: Engine) -> None:
    make_as_new(engine)

    def ask(salt: str) -> tuple[tuple[int, ...], int]:
        result = engine.generate("# tar\n\n> Archiving utility.", GenerationConfig(max_tokens=60, cache_salt=salt))
        return result.token_ids, result.stats.accepted_by_source["history"]

    requested = [ask(salt) for salt in ("a", "a", "b", "", "b")]
    assert len({token_ids for token_ids, _ in requested}) == 1
    num_learned = [number for _, number in requested]
    assert (num_learned[0], num_learned[2], num_learned[3]) == (0, 0, 0)
    assert num_learned[1] > 10 < num_learned[4]


def test_a_history_file_is_shared_by_all(demo_folder: Path, tmp_path: Path) -> None:
    sources = DraftSources(history=tmp_path / "history")
    engine = Engine.load(demo_folder, EngineConfig(is_calibrated=False, is_probed=False), sources=sources)
    assert isinstance(engine.decoder.drafter, RetrievalDrafter)
    engine.decoder.drafter.wait()
    for salt in ("a", "b"):
        stats = engine.generate("# tar\n\n> Archiving utility.", GenerationConfig(max_tokens=60, cache_salt=salt)).stats
    assert stats.num_reused_tokens == 0
    assert stats.accepted_by_source["history"] > 10


def test_salts_that_come_and_go_leave_a_bounded_number_of_cores_and_that_without_salt(engine: Engine) -> None:
    drafter = RetrievalDrafter(DraftConfig()).wait()
    own = drafter.core()
    for number in range(3 * _MAX_KEPT):
        drafter.core(str(number))
    assert len(drafter._cores) == _MAX_KEPT
    assert drafter.core() is own
    held = drafter.core("held")
    for number in range(3 * _MAX_KEPT):
        drafter.core(str(number))
    assert drafter.core("held") is held  # as long as a request has it


def test_answers_before_the_kernels_are_loaded_are_learned_with_their_salts() -> None:
    drafter = RetrievalDrafter(DraftConfig()).wait()
    drafter.learn_later([1, 2, 3, 4], "a")
    core, other = drafter.core("a"), drafter.core()
    assert core is not None
    assert other is not None
    assert [text.tolist() for text in core.history.texts()] == [[1, 2, 3, 4]]
    assert other.history.texts() == []


def test_values_of_calls_are_kept_by_salt() -> None:
    source = ToolSource()
    source.learn([("get", {"city": '"Paris"'})], "a")
    source.learn([("get", {"city": '"Rome"'})])
    assert source.pasts["a"] == {"get": {"city": ['"Paris"']}}
    saved = ToolSource()
    saved.restore(source.state())
    assert saved.pasts == {"": {"get": {"city": ['"Rome"']}}}
    for number in range(200):
        source.learn([("get", {"city": "1"})], str(number))
    assert len(source.pasts) < 100


def test_a_drafting_network_goes_on_from_texts_of_the_same_salt_alone() -> None:
    text = [1, 2, 3, 4]
    first, other, again = (RequestDrafter(RequestContext(text, salt=salt)) for salt in ("a", "b", "a"))
    slot = TextSlot(0)
    slot.own(first)
    slot.token_ids += text
    slot.release()
    assert (slot.num_held(other, text), slot.num_held(again, text)) == (0, 3)
    assert best_slot([slot], lambda each: each.num_held(again, text)) is slot
    slot.own(again)
    assert slot.num_known(text) == 3
    slot.release()
    slot.own(other)
    assert slot.num_known(text) == 0


def test_a_session_has_no_text_with_a_salt_which_is_a_text(engine: Engine, tmp_path: Path) -> None:
    make_as_new(engine)
    for salt, prompt in (("a", "tar\n\n"), ("", "# git\n\n")):
        engine.generate(prompt, GenerationConfig(max_tokens=30, cache_salt=salt))
    engine.save_session(tmp_path / "kept")
    engine.forget()
    engine.load_session(tmp_path / "kept")
    stats = engine.generate("tar\n\n", GenerationConfig(max_tokens=30)).stats
    assert (stats.num_reused_tokens, stats.accepted_by_source["history"]) == (0, 0)
    with pytest.raises(ConfigError, match="cache_salt is 3, but must be a text"):
        GenerationConfig(cache_salt=3)  # type: ignore[arg-type]
