"""Prompts of `verify` and `bench`: a line of a file each, or JSON that holds a text, messages or turns, played out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from msgspec import Meta

from reader_edge_runtime import GenerationConfig, Message
from reader_edge_runtime.errors import PromptError
from reader_edge_runtime.text.conversation import Prompt, text_of
from reader_edge_runtime.text.conversation_check import MEDIA, sound_messages
from reader_edge_runtime.untrusted.untrusted_json import Text, converted, decoded
from reader_edge_runtime.untrusted.user_input import as_text, read_bounded, short_repr

if TYPE_CHECKING:  # corpora are read where there is no ONNX Runtime, too
    from reader_edge_runtime import Engine

_MAX_BYTES, _MAX_LINES = 1 << 26, 1 << 20
VERIFY_PROMPTS = Path(__file__).with_name("verify_prompts.jsonl")

_UNREAD = ("tools", "system", *MEDIA)
_WANTED = 'a line is {"prompt": text}, {"messages": [...]} or {"turns": [text, ...]}, with or without a "category"'

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FilePrompt:
    """What one line asks.

    turns: the questions in order, the model's own answers in between: one text as it stands, or for each turn the chat
    messages that it adds. category: empty where none is given. place: the line and its file, for sentences about it.
    """

    turns: tuple[Prompt, ...]
    category: str
    place: str


@dataclass(frozen=True, slots=True)
class PromptLine:
    """A line of a .jsonl file, which holds one of the first three."""

    prompt: Annotated[str, Meta(min_length=1)] | None = None
    messages: Annotated[list[Any], Meta(min_length=1)] | None = None
    turns: Annotated[list[str], Meta(min_length=1)] | None = None
    category: Text | None = None


def read_prompts(path: Path) -> list[FilePrompt]:
    """The prompts of a text file (one a line, empty lines skipped) or of a .jsonl file. Raises PromptError, OSError.

    A JSON object holds a text "prompt"; chat "messages" as `Conversation` has them, the user's at the end; or
    "turns", what the user says in each of several. It may hold a "category".
    """
    try:
        data = read_bounded(path, _MAX_BYTES)
        text = as_text(data)
    except UnicodeDecodeError as error:
        raise PromptError(f"'{path}' is not UTF-8 text (byte {error.start}): save it as UTF-8.") from None
    if data.count(b"\n") > _MAX_LINES:
        raise PromptError(f"'{path}' has more than {_MAX_LINES} lines: split it.")
    lines = text.replace("\r\n", "\n").split("\n")  # not splitlines: a prompt may hold what Unicode calls a line end
    prompts = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            place = f"Line {number} of '{path}'"
            prompts.append(_parsed(line, place) if path.suffix == ".jsonl" else FilePrompt((line,), "", place))
    if not prompts:
        raise PromptError(f"'{path}' holds no prompt: write one a line.")
    return prompts


def _parsed(line: str, place: str) -> FilePrompt:
    fields = decoded(line.encode(), place, PromptError, _WANTED)
    given = converted(fields, PromptLine, place, PromptError, _WANTED)
    unread = next((name for name in _UNREAD if fields.get(name)), None)
    if unread is not None:
        raise PromptError(f'{place} holds "{unread}", which would not reach the model: leave it out.')
    match [each for each in (given.prompt, given.messages, given.turns) if each is not None]:
        case [str(text)]:
            turns: tuple[Prompt, ...] = (text,)
        case [list(messages)] if given.turns is None:
            turns = (_messages(messages, place),)
        case [list(texts)]:
            turns = tuple(_messages([{"role": "user", "content": text}], place) for text in texts)
        case kinds:
            raise PromptError(f"{place} holds {len(kinds)} of what a line may ask, not one: {_WANTED}.")
    return FilePrompt(turns, given.category or "", place)


def _messages(given: list[Any], place: str) -> tuple[Message, ...]:
    """Chat messages that end with the user's."""
    try:
        messages = sound_messages(given)
    except PromptError as error:
        raise PromptError(f"{place}: {error}") from None
    if messages[-1]["role"] != "user" or not text_of(messages[-1]):
        raise PromptError(f"{place} ends with {short_repr(given[-1])}: end it with a text of the user's.")
    return tuple(messages)


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
    engine: "Engine",
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
    from reader_edge.chat.answer import build_prompt

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


def _check(engine: "Engine", prompt: Prompt, config: GenerationConfig, place: str) -> None:
    """Raise PromptError where the model cannot be given this prompt."""
    from reader_edge_runtime.decoding.request import Request

    try:
        Request(engine.encode_prompt(prompt), config, engine.package.manifest)
    except PromptError as error:
        raise PromptError(f"{place}: {error}") from None
