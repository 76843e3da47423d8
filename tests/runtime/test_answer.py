"""What an answer tells of its tokens, the same however they are taken."""

import pytest

from reader_edge_runtime import Engine, GenerationConfig
from reader_edge_runtime.answer import Answer
from reader_edge_runtime.text.output_format import OutputFormat
from reader_edge_runtime.text.thinking import ThinkingForm

THINK = ThinkingForm("<think>", "</think>")


@pytest.mark.parametrize("num_taken", [1, 3, 1000])
@pytest.mark.parametrize(
    ("is_open", "thought", "said"),
    [(True, "Hm, so.</think>", " Yes."), (False, "", "Yes, it is."), (True, "Hm, and then", "")],
    ids=["both", "said alone", "cut within a thought"],
)
def test_tokens_of_thoughts_are_counted_with_the_mark_that_ends_them(
    engine: Engine, is_open: bool, thought: str, said: str, num_taken: int
) -> None:
    prompt, *parts = (engine.tokenizer.encode(text) for text in ("What is tar?", thought, said))
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
    assert "".join(chunk.text for chunk in chunks if chunk) == said.strip()
