"""`reader-edge demo`: one answer, plainly and drafted, each as it comes."""

import sys
from dataclasses import replace

import click

from reader_edge.commands import options
from reader_edge.terminal.command_help import helpful_command
from reader_edge.terminal.shell_completion import MODEL

_BUNDLED, _CHAT = "# ssh", "Explain what the command tar does."


@helpful_command("Watch drafting at work.", "reader-edge demo", "reader-edge demo smollm2:135m")
@click.argument("model", type=MODEL, required=False)
@click.option("-p", "--prompt", help="The prompt. Default: one that suits the model.")
@options.max_tokens(200)
def demo(model: str | None, prompt: str | None, max_tokens: int) -> None:
    """Answer a prompt plainly, then drafted, greedily, and show both speeds.

    On a terminal, what was drafted and confirmed by the model is tinted. MODEL is as in `run`; without it the bundled
    demo answers, which repeats itself. `reader-edge run --compare` measures in several rounds. The exit code is 1 where
    the tokens differ.
    """
    from reader_edge.bench.comparison import wait_for_drafter
    from reader_edge.chat.answer import build_prompt
    from reader_edge.chat.watched_answer import watch_answer
    from reader_edge.models.model_source import load_engine
    from reader_edge.terminal.model_text import accept_any_text
    from reader_edge_runtime import EngineConfig, GenerationConfig, SamplingConfig

    accept_any_text()
    engine = load_engine(model, EngineConfig())
    suited = _CHAT if engine.tokenizer.has_chat_template else _BUNDLED
    whole = build_prompt(engine, suited if prompt is None else prompt, None, is_raw=False)
    wait_for_drafter(engine)
    config = GenerationConfig(max_tokens=max_tokens, sampling=SamplingConfig())
    text, plain, plain_s = watch_answer("plain", engine, whole, replace(config, is_drafted=False))
    _, drafted, drafted_s = watch_answer("drafted", engine, whole, config)
    if not sys.stdout.isatty():
        click.echo(text)
    if plain != drafted:
        raise click.ClickException(options.DIFFERENT_TOKENS)
    faster = f", {plain_s / drafted_s:.2f} times as fast with drafting in this round" if drafted_s else ""
    click.echo(f"{len(plain)} tokens, the same{faster}; `reader-edge run --compare` measures several.", err=True)
