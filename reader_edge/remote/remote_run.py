"""`reader-edge run --server`: one answer from afar on standard output, as it comes or as JSON."""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import click

from reader_edge.remote.remote_engine import RemoteEngine
from reader_edge.terminal.console import pairs_table, print_table
from reader_edge.terminal.model_text import ModelText, deviation_sentence
from reader_edge_runtime.config import GenerationConfig, SamplingConfig
from reader_edge_runtime.errors import ConfigError, PromptError, UserFileError
from reader_edge_runtime.stats import GenerationStats
from reader_edge_runtime.text.conversation import Conversation, Encodable
from reader_edge_runtime.untrusted.plain_file import check_secret
from reader_edge_runtime.untrusted.user_input import BYTE_ORDER_MARK, read_bounded

_MAX_KEY_FILE = 1 << 20


@dataclass(frozen=True, slots=True)
class RemotePrompt:
    """The prompt: a text, and how it is put to a model with a chat template, unless it is taken as it is."""

    text: str
    system: str | None
    is_raw: bool
    template_args: dict[str, Any]

    def encodable(self, has_chat_template: bool) -> Encodable:
        """Raises ConfigError for what has no place without a chat template."""
        if not self.text:
            raise PromptError("The prompt is empty: give some text with -p or on standard input.")
        if has_chat_template and not self.is_raw:
            system = [] if self.system is None else [{"role": "system", "content": self.system}]
            return Conversation([*system, {"role": "user", "content": self.text}], (), self.template_args)
        if self.system is not None or self.template_args:
            raise ConfigError("No chat template is used here, which -s and --template-arg are for: leave them out.")
        return self.text


def read_key(path: Path | None) -> str | None:
    """The first key of a file, one a line. Raises UserFileError."""
    if path is None:
        return None
    try:
        lines = read_bounded(path, _MAX_KEY_FILE).removeprefix(BYTE_ORDER_MARK).decode("ascii").split()
    except (OSError, UnicodeDecodeError) as error:
        raise UserFileError(f"No key can be read from '{path}': give the server's key in it, as text.") from error
    if not lines:
        raise UserFileError(f"'{path}' is empty: write the server's key into it.")
    check_secret(path, UserFileError, "ask for another key where they know this one")
    return lines[0]


def run_remotely(
    engine: RemoteEngine,
    prompt: RemotePrompt,
    config: GenerationConfig,
    shows_stats: bool,
    as_json: bool,
    note: str,
) -> None:
    """Print the answer of an engine that is elsewhere, and a note behind it where no statistics say as much.

    Raises what `RemoteEngine.stream` does.
    """
    encodable = prompt.encodable(engine.model.has_chat_template)
    start = time.perf_counter()
    if as_json:
        result = engine.generate(encodable, config)
        stats = {field.name: getattr(result.stats, field.name) for field in fields(result.stats)}
        stats["sampling"] = asdict(result.sampling or SamplingConfig())
        answer = {"text": result.text, "token_ids": result.token_ids, "finish_reason": result.finish_reason}
        lossy = {"deviation": result.deviation} if result.deviation else {}
        click.echo(json.dumps(answer | {"stats": stats, "seconds": time.perf_counter() - start} | lossy))
        return
    text, final = ModelText(), GenerationStats()
    deviation: Mapping[str, object] = {}
    with text.coming():
        for chunk in engine.stream(encodable, config):
            text.write(chunk.text)
            final, deviation = chunk.stats or final, chunk.deviation
    if deviation:
        text.start_line()
        click.echo(deviation_sentence(deviation), err=True)
    if shows_stats:
        text.start_line()
        print_table(pairs_table("Answer", _pairs(final, config, time.perf_counter() - start)))
    elif note:
        text.start_line()
        click.echo(note, err=True)


def _pairs(stats: GenerationStats, config: GenerationConfig, seconds: float) -> list[tuple[str, str]]:
    accepted = ", ".join(f"{source}: {number}" for source, number in sorted(stats.accepted_by_source.items()))
    return [
        ("prompt tokens", f"{stats.num_prompt_tokens} ({stats.num_reused_tokens} reused)"),
        ("tokens", f"{stats.num_tokens} in {stats.num_steps} steps"),
        ("seconds, the way included", f"{seconds:.2f}"),
        ("tokens/s, the way included", f"{stats.num_tokens / seconds:.1f}"),
        ("tokens/s on the server", f"{stats.tokens_per_s:.1f}"),
        ("acceptance length", f"{stats.acceptance_length:.2f} tokens a step"),
        ("accepted by source", accepted or "nothing drafted"),
        ("sampling", str(config.sampling)),
    ]
