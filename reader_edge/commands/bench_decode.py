"""`reader-edge bench decode`: plain and drafted decoding of a model, side by side."""

import json
from pathlib import Path

import click

import reader_edge
from reader_edge.commands import options


@click.command("decode")
@click.argument("model", required=False)
@options.prompts
@click.option("-n", "--max-tokens", default=128, show_default=True, help="New tokens of each answer at most.")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1, 1000), help="Answers each way.")
@options.temperature
@options.top_p
@options.seed
@options.datastores
@options.engine
@click.option(
    "--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw the result: a .png, .svg or .pdf file."
)
@options.as_json
@options.grouped(sampling="SamplingConfig", config="GenerationConfig", engine_config="EngineConfig")
def decode(
    model: str | None,
    prompts: Path | None,
    config: "reader_edge.GenerationConfig",
    rounds: int,
    datastores: tuple[str, ...],
    engine_config: "reader_edge.EngineConfig",
    plot: Path | None,
    as_json: bool,
) -> None:
    """Decode prompts plainly and drafted in turn; tell both speeds and where the time goes.

    Every answer starts with nothing learned from another, by the clock on the wall. Exit code 1 when the tokens differ.
    MODEL is what `run` takes.
    """
    from reader_edge.bench.comparison import bench_decode
    from reader_edge.bench.comparison_report import bench_fields, draw_bench, print_bench
    from reader_edge.bench.plot import check_plot
    from reader_edge.model_source import load_engine
    from reader_edge.prompt_file import VERIFY_PROMPTS, read_prompts
    from reader_edge.terminal.console import count_progress

    check_plot(plot)
    texts = read_prompts(prompts or VERIFY_PROMPTS)
    engine = load_engine(model, engine_config, None, datastores)
    with count_progress("Answers") as on_progress:
        bench = bench_decode(engine, texts, config, rounds, on_progress)
    if as_json:
        click.echo(json.dumps(bench_fields(engine, bench)))
    else:
        print_bench(engine, bench)
    if plot is not None:
        draw_bench(bench, plot)
    if not bench.overall.is_identical:
        raise click.ClickException(options.DIFFERENT_TOKENS)
