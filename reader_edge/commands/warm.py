"""`reader-edge warm` fills a drafter with a model's own answers; `forget` erases past ones, and prefix caches."""

import time
from dataclasses import replace
from pathlib import Path

import click

import reader_edge
from reader_edge.commands import options
from reader_edge.terminal.command_help import helpful_command
from reader_edge.terminal.shell_completion import MODEL

_MOST_AN_ANSWER = 128
_FEWEST_AN_ANSWER = 64  # on the mean, by which it is reckoned how many instructions are enough
_BATCH = 16


@helpful_command(
    "Let a model answer instructions, and draft from its answers.",
    "reader-edge warm smollm2:135m --prompts prompts.jsonl",
)
@click.argument("model", type=MODEL, required=False)
@click.option(
    "--prompts",
    type=options.FILE,
    help="Prompts of your own, answered before the bundled instructions: a text file with one prompt per line, or a "
    ".jsonl file with a text, chat messages or turns per line.",
)
@click.option(
    "--tokens",
    default=120_000,
    show_default=True,
    type=options.IntegerRange(1, 200_000),
    help="Keep at most this many tokens of answers.",
)
@options.engine
@options.of(options.EngineFlags, "is_calibrated")
@options.grouped(engine_config="EngineConfig")
def warm(model: str | None, prompts: Path | None, tokens: int, engine_config: "reader_edge.EngineConfig") -> None:
    """Let the model answer instructions now, to draft from its answers later.

    The model's greedy answers are written to one file in the package folder, in place of those of an earlier run. Every
    command and `Engine.load` then draft from them. They change speed, never a token. This takes some minutes; an
    interrupted run changes nothing. MODEL is as for `run`.
    """
    from reader_edge.models.model_source import load_engine
    from reader_edge.prompts import play_out, read_prompts
    from reader_edge.terminal.console import count_progress
    from reader_edge.terminal.formatting import readable_size, visible
    from reader_edge.warmup_answers import answer_all, bundled_instructions
    from reader_edge_runtime import GenerationConfig, SamplingConfig
    from reader_edge_runtime.drafting.sources.warmup_answers import WarmupAnswers

    num_bundled = 1 + tokens // _FEWEST_AN_ANSWER
    file_prompts = [*(read_prompts(prompts) if prompts else []), *bundled_instructions(num_bundled)]
    engine = load_engine(model, replace(engine_config, max_batch=_BATCH))
    WarmupAnswers.check_place(engine.package, tokens)  # rather than behind minutes of answers
    config = GenerationConfig(max_tokens=_MOST_AN_ANSWER, sampling=SamplingConfig())
    start = time.perf_counter()
    questions = play_out(engine, file_prompts, config, is_raw=False)
    with count_progress("Tokens written") as on_progress:
        answers = answer_all(engine, questions, config, tokens, on_progress)
    path = answers.write(engine.package)
    size = readable_size(path.stat().st_size)
    seconds = time.perf_counter() - start
    click.echo(
        visible(f"{len(answers.texts)} answers of {answers.num_tokens} tokens in '{path}', {size}, {seconds:.0f} s.")
    )


@helpful_command("Erase past answers, or a prefix cache.", "reader-edge forget past.redg")
@click.argument("path", type=click.Path(path_type=Path), metavar="FILE|DIR")
def forget(path: Path) -> None:
    """Erase FILE, the past answers that `--history` kept, or what `--prefix-cache` kept of texts in DIR.

    Any other kind of file is refused and left unchanged.
    """
    if not path.exists():
        raise click.UsageError(f"There is nothing at {str(path)!r} to erase.")
    if path.is_dir():
        from reader_edge.terminal.formatting import readable_size, visible
        from reader_edge_runtime.decoding.prefix_files import erase_prefixes

        click.echo(visible(f"Erased {readable_size(erase_prefixes(path))} in '{path}'."))
        return

    from reader_edge_runtime.drafting.sources.history_file import erase_history

    erase_history(path)
