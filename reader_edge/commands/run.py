"""`reader-edge run`: answer a prompt, or chat."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

import reader_edge
from reader_edge.chat.prompt_input import PromptInput, dash_alone
from reader_edge.chat.sampling_options import SamplingOptions
from reader_edge.commands import options
from reader_edge.entry_points import rule
from reader_edge.remote.remote_server import RemoteServer
from reader_edge.terminal.command_help import helpful_command
from reader_edge.terminal.shell_completion import MODEL

if TYPE_CHECKING:
    from reader_edge_runtime.decoding.rule_config import RuleConfig


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """What is printed besides the text, and kept of it.

    --session session_file: Continue the conversation in this file. At the end, save it there with its KV cache and what
      drafting learned.
    stats: Show speed and acceptance after the answer, on standard error.
    --json as_json: Print one JSON object instead of the text.
    compare: Answer without and with drafting; show both speeds.
    """

    session_file: Annotated[Path | None, options.FILE_PATH] = None
    stats: bool = False
    as_json: bool = False
    compare: bool = False


@helpful_command(
    "Answer a prompt, or chat.",
    "reader-edge run smollm2:135m",
    'reader-edge run smollm2:135m -p "Explain tar to me." -n 200 --stats',
)
@click.argument("model", type=MODEL, required=False)
@click.argument("dash", required=False, metavar="[-]", callback=dash_alone)
@options.of(PromptInput, "prompt", "system", "images")
@options.max_tokens(512)
@options.reasoning_budget
@options.of(SamplingOptions)
@options.stop
@options.mmproj_file
@options.adapters
@options.engine
@options.of(options.EngineFlags, "is_near_tie_guarded", "is_text_literal", "max_image_tokens")
@options.history
@options.of(OutputOptions, "session_file")
@options.prefix_cache
@options.of(options.EngineFlags, "is_calibrated", "is_drafted")
@options.of(options.Drafts)
@rule
@options.template_args
@options.of(RemoteServer)
@options.of(PromptInput, "raw")
@options.of(OutputOptions, "stats", "as_json", "compare")
# The engine's group comes first: --no-draft is its own, so that nothing is loaded to draft with.
@options.grouped(
    prompt_input=PromptInput,
    remote=RemoteServer,
    engine_config="EngineConfig",
    sources="DraftSources",
    given=SamplingOptions,
    config="GenerationConfig",
    shown=OutputOptions,
)
def run(
    model: str | None,
    mmproj_file: Path | None,
    adapters: dict[str, Path],
    prompt_input: PromptInput,
    remote: RemoteServer,
    given: SamplingOptions,
    config: "reader_edge.GenerationConfig",
    engine_config: "reader_edge.EngineConfig",
    sources: "reader_edge.DraftSources",
    rule: "RuleConfig | None",
    shown: OutputOptions,
) -> None:
    """Answer a prompt; without one, chat on the terminal.

    MODEL is a package, a Hugging Face folder, a GGUF file, or a name such as smollm2:135m or OWNER/NAME
    (`reader-edge pull --help`). A model that is not a package is exported once. Without MODEL, run uses
    $READER_EDGE_MODEL, or else the bundled demo. With '-', or from a pipe, the prompt is read from standard input. With
    -p TEXT, that is read only where '-' is given too: `reader-edge run MODEL -p "Summarise:" - < notes.txt`.

    The first --adapter answers; in a chat, /adapter changes to another.
    """
    model, prompt_input = prompt_input.beside(model)
    _check_together(engine_config, sources, shown.session_file, shown.compare, rule is not None)
    remote.check(model, engine_config, shown.compare or shown.session_file is not None or rule is not None)
    text = prompt_input.read()
    if text is None and (shown.as_json or shown.compare):
        raise click.UsageError("--json and --compare need a prompt: give one with -p.")
    prompt_input.check_images(text)
    if remote.server is not None:
        if mmproj_file is not None:
            raise click.UsageError("With --server the model runs elsewhere: leave --mmproj out.")
        if adapters:
            raise click.UsageError("With --server the model runs elsewhere: leave --adapter out.")
        if text is None:
            raise click.UsageError("--server needs a prompt: give one with -p.")
        config = replace(config, is_drafted=engine_config.is_drafted)
        remote.answer(prompt_input, text, config, given, sources, shown.stats, shown.as_json)
        return

    from reader_edge.bench.comparison_report import print_compared
    from reader_edge.chat.answer import build_prompt, with_template_args
    from reader_edge.models.model_source import load_engine, with_mmproj
    from reader_edge.terminal.model_text import accept_any_text

    accept_any_text()
    prompt_input.check_session(shown.session_file)
    load = partial(load_engine, config=engine_config, sources=sources, rule=rule)
    engine = load(with_mmproj(model, mmproj_file, bool(adapters)), adapters=adapters)
    config = replace(config, adapter=next(iter(adapters), None))
    if not shown.compare:
        prompt_input.answer(engine, text, config, given, shown.session_file, shown.stats, shown.as_json, load)
        return
    assert text is not None
    config = replace(config, is_scored=shown.stats or shown.as_json, sampling=given.chosen(engine.sampling))
    prompt = prompt_input.with_images(build_prompt(engine, text, prompt_input.system, prompt_input.raw), engine)
    whole = with_template_args(prompt, prompt_input.template_args)
    if not print_compared(engine, whole, config, shown.as_json, shown.stats):
        raise click.ClickException(options.DIFFERENT_TOKENS)


def _check_together(
    engine_config: "reader_edge.EngineConfig",
    sources: "reader_edge.DraftSources",
    session_file: Path | None,
    compare: bool,
    has_rule: bool,
) -> None:
    """Raise UsageError for options that exclude each other."""
    if compare and has_rule:
        raise click.UsageError("--compare compares exact answers: leave --rule out.")
    if compare and not engine_config.is_drafted:
        raise click.UsageError("--compare decodes both ways: leave --no-draft out.")
    if compare and (sources.history or session_file or engine_config.prefix_cache):
        raise click.UsageError(
            "--compare starts each round without past answers: leave --history, --session and --prefix-cache out."
        )
    if sources.history and session_file:
        raise click.UsageError("A session keeps past answers itself: leave --history out.")
