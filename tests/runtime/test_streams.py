"""Several streams of one engine: each is whole, whichever thread decodes; one that nobody reads takes no place."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import onnxruntime as ort
import pytest

from reader_edge_runtime import Engine, EngineConfig, GenerationChunk, GenerationConfig
from reader_edge_runtime.answer import Answer
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.errors import CapacityError, PromptError, ReaderEdgeError
from reader_edge_runtime.execution.onnxruntime.host.host_graph import PassTensors
from reader_edge_runtime.forward_result import ForwardResult
from reader_edge_runtime.target import Pass
from reader_edge_runtime.text.output_format import OutputFormat
from reader_edge_runtime.text.thinking import ThinkingTags

CONFIG = GenerationConfig(max_tokens=40, ignores_eos=True)
Whole = tuple[str, tuple[int, ...], str | None]
PROMPTS = ("# tar", "# git commit", "# curl")


def whole(chunks: list[GenerationChunk]) -> Whole:
    return "".join(each.text for each in chunks), sum((each.token_ids for each in chunks), ()), chunks[-1].finish_reason


@pytest.fixture
def alone(engine: Engine) -> dict[str, Whole]:
    """What each prompt is answered alone."""
    answers = {prompt: whole(list(engine.stream(prompt, CONFIG))) for prompt in PROMPTS}
    engine.forget()
    return answers


def test_a_stream_is_refused_or_queued_when_its_first_chunk_is_read(engine: Engine) -> None:
    stream = engine.stream("# tar", CONFIG)
    stream.close()
    del stream
    unread = engine.stream("# curl", CONFIG)
    assert not engine.decoder.waiting
    assert len(engine.generate("# git commit", CONFIG).token_ids) == 40
    assert len(whole(list(unread))[1]) == 40
    with pytest.raises(PromptError, match="empty"):
        engine.stream("", CONFIG)


def test_a_stream_that_can_never_run_ends_in_a_sentence(demo_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = EngineConfig(is_calibrated=False, is_probed=False, max_kv_bytes=2_000_000)
    engine = Engine.load(demo_folder, config)
    first = engine.stream("# tar", CONFIG)
    begun = next(first)
    monkeypatch.setattr(engine.decoder, "check", lambda request: None)  # as before the bound came to be too low
    monkeypatch.setattr(engine.decoder.kv_budget, "_max_bytes", 1_000)
    with pytest.raises(CapacityError, match=r"^[^\n]+max_kv_bytes \(--kv-bytes\)\.$"):
        list(engine.stream("# git commit", CONFIG))
    assert len(whole([begun, *first])[1]) == 40


@pytest.mark.parametrize("num_at_once", [1, 5])
def test_streams_read_in_turn_are_whole(engine: Engine, alone: dict[str, Whole], num_at_once: int) -> None:
    streams = {prompt: engine.stream(prompt, CONFIG) for prompt in PROMPTS}
    chunks: dict[str, list[GenerationChunk]] = {prompt: [] for prompt in PROMPTS}
    while streams:
        for prompt in list(streams):
            for _ in range(num_at_once):
                chunk = next(streams[prompt], None)
                if chunk is None:
                    del streams[prompt]
                    break
                chunks[prompt].append(chunk)
    assert {prompt: whole(each) for prompt, each in chunks.items()} == alone


def test_a_stream_that_others_finished_still_gives_its_text(engine: Engine, alone: dict[str, Whole]) -> None:
    slow = engine.stream("# tar", CONFIG)
    first = next(slow)
    engine.generate("# curl", replace(CONFIG, max_tokens=100))  # decodes the other one to its end
    assert whole([first, *slow]) == alone["# tar"]


def test_threads_wait_for_each_other_and_each_gets_its_own_answer(engine: Engine, alone: dict[str, Whole]) -> None:
    found: dict[str, Whole] = {}

    def read(prompt: str) -> None:
        found[prompt] = whole(list(engine.stream(prompt, CONFIG)))

    threads = [threading.Thread(target=read, args=(prompt,)) for prompt in PROMPTS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == alone


def test_a_failing_request_leaves_the_others_alone(
    engine: Engine, alone: dict[str, Whole], monkeypatch: pytest.MonkeyPatch
) -> None:
    emit, prompt = Request.emit, engine.encode_prompt("# curl")

    def failing(request: Request, token_id: int) -> bool:
        if request.token_ids[: request.num_prompt_tokens] == prompt and request.num_output_tokens == 9:
            raise ValueError("what a callback may do")
        return emit(request, token_id)

    monkeypatch.setattr(Request, "emit", failing)
    results = engine.generate_batch(PROMPTS, CONFIG)
    others = [(each.text, each.token_ids, each.finish_reason) for each in results[:-1]]
    assert others == [alone[each] for each in PROMPTS[:-1]]
    assert results[-1].finish_reason == "error"
    assert str(results[-1].error) == "what a callback may do"
    assert results[-1].token_ids == alone["# curl"][1][:9]
    with pytest.raises(ValueError, match="callback"):
        engine.generate("# curl", CONFIG)
    stream = engine.stream("# curl", CONFIG)
    read: list[GenerationChunk] = []
    with pytest.raises(ValueError, match="callback"):
        read.extend(stream)  # keeps what came before the error
    assert not engine.decoder.running


def test_a_stream_finalised_in_a_step_harms_no_other(
    engine: Engine, alone: dict[str, Whole], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the garbage collector may do, in whatever thread and line it runs."""
    forgotten = engine.stream("# curl", CONFIG)
    next(forgotten)
    forward = engine.decoder.target.forward

    def collecting(cache: Cache, wanted: Pass) -> ForwardResult:
        forgotten.close()
        return forward(cache, wanted)

    monkeypatch.setattr(engine.decoder.target, "forward", collecting)
    assert whole(list(engine.stream("# tar", CONFIG))) == alone["# tar"]
    assert not engine.decoder.running


def test_an_interrupted_start_is_not_decoded_later(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    enqueue = engine.decoder.enqueue

    def interrupted(request: Request) -> None:
        enqueue(request)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(engine.decoder, "enqueue", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.generate("# tar", CONFIG)
        with pytest.raises(KeyboardInterrupt):
            next(engine.stream("# tar", CONFIG))
    assert not engine.decoder.waiting


@pytest.mark.parametrize("place", ["swap", "_swap_contents"])
def test_an_interrupted_swap_costs_no_later_token(
    engine: Engine, alone: dict[str, Whole], monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    engine.generate_batch(PROMPTS, CONFIG)  # three idle slots, each of which a next request may reuse
    real = getattr(engine.decoder.cache, place)

    def interrupted(*arguments: int) -> None:
        real(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(engine.decoder.cache, place, interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.generate_batch(PROMPTS[::-1], CONFIG)
    for prompt in (*PROMPTS, *PROMPTS):
        result = engine.generate(prompt, CONFIG)
        assert (result.text, result.token_ids, result.finish_reason) == alone[prompt]


@pytest.mark.parametrize("num_bound", range(7))
def test_an_interrupted_binding_costs_no_later_token(
    engine: Engine, alone: dict[str, Whole], monkeypatch: pytest.MonkeyPatch, num_bound: int
) -> None:
    bind_to = PassTensors.bind_to

    def interrupted(tensors: PassTensors, binding: ort.IOBinding) -> None:
        bind_to(tensors, HalfBinding(binding, num_bound))

    with monkeypatch.context() as patch:
        patch.setattr(PassTensors, "bind_to", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.generate("# git commit --amend", CONFIG)
    for prompt in PROMPTS:
        result = engine.generate(prompt, CONFIG)
        assert (result.text, result.token_ids, result.finish_reason) == alone[prompt]


class HalfBinding:
    """A binding whose user is interrupted after a number of calls."""

    def __init__(self, binding: ort.IOBinding, num_left: int) -> None:
        self._binding = binding
        self._num_left = num_left

    def _bind(self, kind: str, name: str, value: ort.OrtValue) -> None:
        if self._num_left == 0:
            raise KeyboardInterrupt
        self._num_left -= 1
        getattr(self._binding, kind)(name, value)

    def bind_ortvalue_input(self, name: str, value: ort.OrtValue) -> None:
        self._bind("bind_ortvalue_input", name, value)

    def bind_ortvalue_output(self, name: str, value: ort.OrtValue) -> None:
        self._bind("bind_ortvalue_output", name, value)


@pytest.mark.parametrize(
    ("prompt", "config"),
    [("# tar", {"max_tokens": 3}), ("# tar", GenerationConfig), ("# tar", False), (None, None), (b"# tar", None)],
)
def test_a_prompt_or_config_of_the_wrong_kind_is_one_sentence(engine: Engine, prompt: object, config: object) -> None:
    for call in (engine.generate, engine.stream):
        with pytest.raises(ReaderEdgeError, match=r"^[^\n]+\.$"):
            call(cast(Any, prompt), cast(Any, config))


THINK = ThinkingTags("<think>", "</think>")


@pytest.mark.parametrize("num_taken", [1, 3, 1000])
@pytest.mark.parametrize(
    ("is_open", "thought", "spoken"),
    [(True, "Hm, so.</think>", " Yes."), (False, "", "Yes, it is."), (True, "Hm, and then", "")],
    ids=["both", "answer alone", "cut within a thought"],
)
def test_tokens_of_thoughts_are_counted_with_the_mark_that_ends_them(
    engine: Engine, is_open: bool, thought: str, spoken: str, num_taken: int
) -> None:
    prompt, *parts = (engine.tokenizer.encode(text) for text in ("What is tar?", thought, spoken))
    reading = OutputFormat(thinking=THINK, is_thinking=is_open)
    answer = Answer(prompt, GenerationConfig(100), engine.decoder.target.manifest, engine.tokenizer, reading=reading)
    chunks = []
    for number, token_id in enumerate([*parts[0], *parts[1]], start=1):
        answer.request.emit(token_id)
        if number % num_taken == 0:
            chunks.append(answer.take())
    answer.request.finish_reason = "stop"
    chunks.append(answer.take())
    assert answer.request.stats.num_reasoning_tokens == len(parts[0])
    assert "".join(chunk.reasoning for chunk in chunks if chunk) == thought.removesuffix("</think>")
    assert "".join(chunk.text for chunk in chunks if chunk) == spoken.strip()
