"""Warm-up answers: what a model answers greedily to instructions, several at a time."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from reader_edge.prompts import EvalPrompt, FilePrompt, read_prompts
from reader_edge_export.speculators.training.record_answers import instructions
from reader_edge_runtime import Engine, GenerationConfig
from reader_edge_runtime.arrays import Int32Array
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.drafting.drafter import PROMPT_TAIL
from reader_edge_runtime.drafting.sources.warmup_answers import WarmupAnswers

INSTRUCTIONS = Path(__file__).with_name("instructions.txt")


def bundled_instructions(most: int) -> list[FilePrompt]:
    """Varied ones first, then forms of words with topics: thousands in all."""
    topical = [FilePrompt((text,), "", f"'{text}'") for text in instructions()]
    prompts = {prompt.turns: prompt for prompt in (*read_prompts(INSTRUCTIONS), *topical)}  # some forms ask the same
    return list(prompts.values())[:most]


def answer_all(
    engine: Engine,
    questions: Sequence[EvalPrompt],
    config: GenerationConfig,
    num_tokens: int,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> WarmupAnswers:
    """Answer questions, begun in their order, until answers without a gap hold `num_tokens` tokens: no more are kept.

    So what is kept depends on nothing but the model. on_progress: gets tokens of whole answers, and tokens at most.
    Raises what made an answer fail.
    """
    prompts = [engine.encode_prompt(question.prompt) for question in questions]
    most = min(num_tokens, len(prompts) * config.max_tokens)
    with engine.working() as decoder:
        requests = [decoder.submit(prompt, config) for prompt in prompts]
        num_ended = num_kept = 0
        while num_kept < num_tokens and num_ended < len(requests):
            decoder.step()
            while num_ended < len(requests) and not requests[num_ended].is_running:
                num_kept += len(_text(requests[num_ended]))
                num_ended += 1
            on_progress(min(num_kept, most), most)
        for request in requests:
            decoder.cancel(request)
    return WarmupAnswers(list(_texts(requests, num_tokens)))


def _texts(requests: Sequence[Request], room: int) -> Iterator[Int32Array]:
    """Each answer behind the end of its prompt, until `room` tokens are full."""
    for request in requests:
        if request.error is not None:
            raise request.error
        text = _text(request)[:room]
        if text:
            room -= len(text)
            yield np.array(text, np.int32)


def _text(request: Request) -> list[int]:
    """An answer behind the end of its prompt; nothing where there is none."""
    begin = max(0, request.num_prompt_tokens - PROMPT_TAIL)
    return request.token_ids[begin:] if request.num_output_tokens else []
