"""One answer on standard output, as it comes or as JSON."""

import io
import json
import sys
import warnings
from collections.abc import Mapping
from typing import Any

import click

from reader_edge.chat.answer_report import given_up_sentence, stats_fields, stats_table
from reader_edge.terminal.console import print_table
from reader_edge.terminal.control_characters import visible
from reader_edge_runtime import Conversation, Engine, GenerationConfig, GenerationStats, Message
from reader_edge_runtime.errors import PromptError
from reader_edge_runtime.text.conversation import Encodable, Prompt


def build_prompt(engine: Engine, text: str, system: str | None, is_raw: bool) -> Prompt:
    """What the engine is asked: messages where the model has a chat template, the plain text otherwise.

    Raises PromptError for an empty text, and as `check_messages_options`.
    """
    if not text:
        raise PromptError("The prompt is empty: give some text with -p or on standard input.")
    if is_raw or not engine.tokenizer.has_chat_template:
        check_messages_options(engine, system, is_raw)
        return text
    return [*system_messages(system), {"role": "user", "content": text}]


def with_template_args(prompt: Prompt, args: Mapping[str, Any]) -> Encodable:
    """A prompt whose chat template is given more. Raises PromptError where there is none."""
    if not args:
        return prompt
    if isinstance(prompt, str):
        raise PromptError("No chat template is used here, which --template-arg is for: leave it out.")
    return Conversation(prompt, (), args)


def check_messages_options(engine: Engine, system: str | None, is_raw: bool) -> None:
    """Raise PromptError for what is asked of messages where a plain text is answered."""
    if engine.tokenizer.has_chat_template and not is_raw:
        return
    reason = "--raw takes the prompt as it is" if is_raw else "This model has no chat template"
    if system is not None:
        raise PromptError(f"{reason}, so a system message has no place: leave -s out.")
    if engine.decoder.config.is_text_literal:
        raise PromptError(f"{reason}, so control tokens in a text are read as such: leave --text-is-text out.")


def system_messages(system: str | None) -> list[Message]:
    """The messages a conversation starts with."""
    return [] if system is None else [{"role": "system", "content": system}]


def print_text(engine: Engine, prompt: Encodable, config: GenerationConfig, shows_stats: bool) -> str:
    """Write the answer as it comes, and return it."""
    pieces: list[str] = []
    stats = print_answer(engine, prompt, config, pieces, ends_line=sys.stdout.isatty())
    if shows_stats:
        start_line("".join(pieces))
        print_table(stats_table(engine, stats))
    return "".join(pieces)


def print_json(engine: Engine, prompt: Encodable, config: GenerationConfig) -> str:
    """Print answer and statistics as one JSON object; returns the answer."""
    result = engine.generate(prompt, config)
    fields = {
        "text": result.text,
        "token_ids": result.token_ids,
        "finish_reason": result.finish_reason,
        "stats": stats_fields(engine, result.stats),
        **({"given_up": result.given_up} if result.given_up else {}),
    }
    click.echo(json.dumps(fields))
    return result.text


def print_answer(
    engine: Engine, prompt: Encodable, config: GenerationConfig, pieces: list[str], ends_line: bool
) -> GenerationStats:
    """Write an answer as it comes, then warnings, what a lossy engine gave up, and whether the context cut it.

    pieces: takes its text, which so outlives an interruption.
    """
    chunks = engine.stream(prompt, config)
    stats = GenerationStats()
    given_up: Mapping[str, object] = {}
    is_cut = False
    try:
        with warnings.catch_warnings(record=True) as held:
            for chunk in chunks:
                pieces.append(chunk.text)
                write(chunk.text)
                stats = chunk.stats or stats
                given_up = chunk.given_up
                is_cut = chunk.finish_reason == "context"
    finally:
        text = "".join(pieces)
        if ends_line and not text.endswith("\n"):
            click.echo()
        if (held or is_cut or given_up) and not ends_line:
            start_line(text)
        for warning in held:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        if is_cut:
            tell_context_end(engine)
        if given_up:
            click.echo(given_up_sentence(given_up), err=True)
    return stats


def tell_context_end(engine: Engine) -> None:
    """Say why an answer ended before its time."""
    click.echo(
        f"The answer ended at the model's context of {engine.package.manifest.max_context} tokens.",
        err=True,
    )


def start_line(text: str) -> None:
    """Keep what follows off the last word of `text`, all that standard output gets where it is no terminal."""
    if not sys.stdout.isatty() and not text.endswith("\n"):
        click.echo(err=True)


def write(text: str) -> None:
    """Write text of a model to standard output: as it is, but on a terminal without control over it."""
    click.echo(visible(text) if sys.stdout.isatty() else text, nl=False, color=True)  # else click strips colours


def accept_any_text() -> None:
    """Let standard output replace characters that its encoding lacks: models write what they like."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
