"""The prompts of a file, conversations played out to one question a turn."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from reader_edge.chat.answer import build_prompt
from reader_edge.prompt_file import FilePrompt
from reader_edge_runtime import Engine, GenerationConfig, Message
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.errors import PromptError
from reader_edge_runtime.text.conversation import Prompt, text_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EvalPrompt:
    """One prompt that gets one answer: a text, or messages with the model's own answers to the turns before."""

    prompt: Prompt
    category: str = ""

    @property
    def text(self) -> str:
        """The last question."""
        return self.prompt if isinstance(self.prompt, str) else text_of(self.prompt[-1])


def play_out(
    engine: Engine,
    prompts: Sequence[FilePrompt],
    config: GenerationConfig,
    is_raw: bool,
    is_over: Callable[[], bool] = lambda: False,
) -> list[EvalPrompt]:
    """A question for each turn of each prompt; the answers between turns are the model's, decoded plainly.

    config: of those answers. is_raw: texts are taken as they are, not as chat messages where the model has a template.
    is_over: once it says so, turns that would wait for an answer are left out.
    Raises PromptError, which names the line, for what the model cannot be given.
    """
    questions = []
    for each in prompts:
        earlier: list[Message] = []
        for number, turn in enumerate(each.turns, start=1):
            prompt = build_prompt(engine, turn, None, is_raw) if isinstance(turn, str) else [*earlier, *turn]
            _check(engine, prompt, config, each.place)
            questions.append(EvalPrompt(prompt, each.category))
            if is_over():
                break
            if number < len(each.turns) and not isinstance(prompt, str):
                answer = engine.generate(prompt, replace(config, is_drafted=False))
                earlier = [*prompt, {"role": "assistant", "content": answer.text}]
    return questions


def by_category(questions: Sequence[EvalPrompt], values: Sequence[T]) -> dict[str, list[T]]:
    """Each question's value, by category as they first come; nothing where no question has a category."""
    groups: dict[str, list[T]] = {}
    for question, value in zip(questions, values, strict=True):
        groups.setdefault(question.category or "none", []).append(value)
    return groups if any(question.category for question in questions) else {}


def _check(engine: Engine, prompt: Prompt, config: GenerationConfig, place: str) -> None:
    """Raise PromptError where the model cannot be given this prompt."""
    try:
        Request(engine.encode_prompt(prompt), config, engine.package.manifest)
    except PromptError as error:
        raise PromptError(f"{place}: {error}") from None
