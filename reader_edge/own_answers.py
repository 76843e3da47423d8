"""A model's own answers: what it says, greedily, to instructions that nobody waits for, several at a time."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from reader_edge.prompt_file import FilePrompt, read_prompts
from reader_edge.question import Question
from reader_edge_export.heads.instructions import instructions
from reader_edge_runtime import Engine, GenerationConfig
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.drafting.drafter import PROMPT_TAIL
from reader_edge_runtime.drafting.kernels.arrays import Int32Array
from reader_edge_runtime.drafting.sources.own_answers import OwnAnswers

INSTRUCTIONS = Path(__file__).with_name("instructions.txt")


def bundled_instructions(most: int) -> list[FilePrompt]:
    """Varied ones first, then forms of words with topics: thousands in all."""
    topical = [FilePrompt((text,), "", f"'{text}'") for text in instructions()]
    prompts = {prompt.turns: prompt for prompt in (*read_prompts(INSTRUCTIONS), *topical)}  # some forms ask the same
    return list(prompts.values())[:most]


def answer_all(
    engine: Engine,
    questions: Sequence[Question],
    config: GenerationConfig,
    num_tokens: int,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> OwnAnswers:
    """Answer questions, begun in their order, until the model has said `num_tokens` tokens: no more are kept.

    on_progress: told tokens said and tokens at most. Raises what made an answer fail.
    """
    prompts = [engine.encode_prompt(question.prompt) for question in questions]
    most = min(num_tokens, len(prompts) * config.max_tokens)
    with engine.working() as decoder:
        requests = [decoder.submit(prompt, config) for prompt in prompts]
        num_said = 0
        while num_said < most and any(request.is_running for request in requests):
            decoder.step()
            num_said = sum(request.num_output_tokens for request in requests)
            on_progress(min(num_said, most), most)
        for request in requests:
            decoder.cancel(request)
    return OwnAnswers(list(_texts(requests, num_tokens)))


def _texts(requests: Sequence[Request], room: int) -> Iterator[Int32Array]:
    """Each answer behind the end of its prompt, until `room` tokens are full."""
    for request in requests:
        if request.error is not None:
            raise request.error
        if request.num_output_tokens and room:
            begin = max(0, request.num_prompt_tokens - PROMPT_TAIL)
            text = np.array(request.token_ids[begin:][:room], np.int32)
            room -= len(text)
            yield text
