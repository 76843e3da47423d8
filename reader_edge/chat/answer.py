"""One answer on standard output, as it comes."""

import io
import sys

import click

from reader_edge.terminal.control_characters import visible
from reader_edge_runtime import Engine, GenerationConfig, GenerationStats, Message
from reader_edge_runtime.engine import Prompt
from reader_edge_runtime.errors import PromptError


def build_prompt(engine: Engine, text: str, system: str | None, is_raw: bool) -> Prompt:
    """What the engine is asked: messages where the model has a chat template, the plain text otherwise.

    Raises PromptError for an empty text, or a system message that nothing can carry.
    """
    if not text:
        raise PromptError("The prompt is empty: give some text with -p or on standard input.")
    if is_raw or not engine.tokenizer.has_chat_template:
        check_system(engine, system, is_raw)
        return text
    return [*system_messages(system), {"role": "user", "content": text}]


def check_system(engine: Engine, system: str | None, is_raw: bool) -> None:
    """Raise PromptError where a system message is given but has no place."""
    if system is not None and (is_raw or not engine.tokenizer.has_chat_template):
        reason = "--raw takes the prompt as it is" if is_raw else "This model has no chat template"
        raise PromptError(f"{reason}, so a system message has no place: leave -s out.")


def system_messages(system: str | None) -> list[Message]:
    """The messages a conversation starts with."""
    return [] if system is None else [{"role": "system", "content": system}]


def print_answer(
    engine: Engine, prompt: Prompt, config: GenerationConfig, pieces: list[str], ends_line: bool
) -> GenerationStats:
    """Write an answer as it comes; its text also goes into `pieces`, where it outlives an interruption."""
    chunks = engine.stream(prompt, config)
    stats = GenerationStats()
    try:
        for chunk in chunks:
            pieces.append(chunk.text)
            write(chunk.text)
            stats = chunk.stats or stats
    finally:
        if ends_line and not "".join(pieces).endswith("\n"):
            click.echo()
    return stats


def write(text: str) -> None:
    """Write text of a model to standard output: as it is, but on a terminal without control over it."""
    click.echo(visible(text) if sys.stdout.isatty() else text, nl=False, color=True)  # else click strips colours


def accept_any_text() -> None:
    """Let standard output replace characters that its encoding lacks: models write what they like."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
