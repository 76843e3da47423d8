"""What `run --compare` and `bench decode` print and draw: plain and drafted speeds side by side."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
from rich.table import Table

from reader_edge.bench.comparison import ROUNDS, Comparison, DecodeBench, TimedRounds, compare, together
from reader_edge.bench.fixed_budget import BudgetRun, budget_fields, budget_table
from reader_edge.bench.plot import new_figure, save_plot
from reader_edge.chat.answer_report import num_threads, stats_fields, stats_table, width_sentence
from reader_edge.terminal.console import count_progress, figures_table, print_report, print_table
from reader_edge.terminal.formatting import readable_size
from reader_edge.terminal.model_text import ModelText, report_context_end
from reader_edge_runtime import Engine, GenerationConfig, SamplingConfig
from reader_edge_runtime.text.conversation import Encodable

_EXCERPT = 40


def _speed_fields(comparison: Comparison) -> dict[str, object]:
    """Speeds and acceptance, ready for JSON."""
    return {
        "identical": comparison.is_identical,
        "plain_tokens_per_s": comparison.plain.tokens_per_s,
        "drafted_tokens_per_s": comparison.drafted.tokens_per_s,
        "speedup": comparison.speedup,
        "acceptance_length": comparison.drafted.stats.acceptance_length,
    }


def _speed_cells(comparison: Comparison) -> tuple[str, str, str, str, str]:
    """The same for eyes: plain and drafted tokens/s, speed-up, acceptance length, and whether the tokens are equal."""
    return (
        f"{comparison.plain.tokens_per_s:.1f}",
        f"{comparison.drafted.tokens_per_s:.1f}",
        f"{comparison.speedup:.2f}x",
        f"{comparison.drafted.stats.acceptance_length:.2f}",
        "identical" if comparison.is_identical else "DIFFERENT",
    )


def print_compared(
    engine: Engine, prompt: Encodable, config: GenerationConfig, as_json: bool, shows_stats: bool
) -> bool:
    """Answer plainly and drafted in turn, and tell both speeds; returns whether the tokens were the same."""
    with count_progress("Preparing, then decoding both ways") as on_progress:
        comparison = compare(engine, prompt, config, on_progress=on_progress)
    plain, stats = comparison.plain.answers[0], comparison.drafted.answers[-1].stats  # of the last drafted round
    if as_json:
        fields = {
            **_speed_fields(comparison),
            "text": plain.text,
            "token_ids": plain.token_ids,
            "finish_reason": plain.finish_reason,
            "rounds": ROUNDS,
            "stats": stats_fields(engine, stats, config.sampling),
        }
        click.echo(json.dumps(fields))
        return comparison.is_identical
    text = ModelText()
    text.write(plain.text)
    text.start_line()
    if plain.finish_reason == "context":
        report_context_end(engine.context_length)
    print_table(_table(comparison, config))
    if shows_stats:
        print_table(stats_table(engine, stats, config.sampling))
    return comparison.is_identical


def _table(comparison: Comparison, config: GenerationConfig) -> Table:
    """A comparison of one prompt as a table."""
    title = f"{comparison.plain.num_tokens} tokens ({config.sampling})\n"
    title += f"median of {ROUNDS} rounds each, in alternating order"
    table = Table("", "tokens/s", "speed-up", "acceptance length", "tokens", title=title, title_justify="left")
    plain, *drafted = _speed_cells(comparison)
    table.add_row("plain", plain, "1.00x", "1.00", "")
    table.add_row("drafted", *drafted)
    return table


def bench_fields(
    engine: Engine, bench: DecodeBench, runs: Sequence[BudgetRun], config: GenerationConfig
) -> dict[str, object]:
    """The measurement and its circumstances, ready for JSON."""
    manifest = engine.package.manifest
    return {
        "model": manifest.source_name,
        "precision": manifest.precision,
        "attention": manifest.attention,
        "provider": engine.decoder.target.provider,
        "threads": num_threads(engine),
        "sampling": asdict(config.sampling or SamplingConfig()),
        "identical": bench.overall.is_identical,
        "speedup": bench.overall.speedup,
        "answer_speedup": bench.overall.answer_speedup,
        "rounds": len(bench.overall.plain.rounds[0]),
        "plain": _round_fields(bench.overall.plain),
        "drafted": _round_fields(bench.overall.drafted),
        "prompts": [
            {"prompt": question.text, "category": question.category, **_part_fields(each)}
            for question, each in zip(bench.questions, bench.comparisons, strict=True)
        ],
        "categories": {category: _part_fields(each) for category, each in bench.by_category.items()},
        "source_sets": [
            {
                "sources": names,
                **_part_fields(together(comparisons)),
                "categories": {
                    category: _part_fields(each) for category, each in bench.together_by_category(comparisons).items()
                },
            }
            for names, comparisons in bench.sets.items()
        ],
        "fixed_nodes": budget_fields(bench.questions, runs),
        "package_bytes": bench.package_bytes,
        "kv_bytes": bench.kv_bytes,
        "peak_bytes": bench.peak_bytes,
    }


def _part_fields(comparison: Comparison) -> dict[str, object]:
    return {
        "tokens": comparison.plain.num_tokens,
        "answer_speedup": comparison.answer_speedup,
        **_speed_fields(comparison),
    }


def _round_fields(way: TimedRounds) -> dict[str, object]:
    stats = way.stats
    return {
        "tokens_per_s": way.tokens_per_s,
        "first_token_s": way.first_token_s,
        "acceptance_length": stats.acceptance_length,
        "step_s_by_part": way.parts_s,
        "steps": stats.num_steps,
        "steps_by_width": dict(sorted(stats.steps_by_width.items())),
        "backoff_steps": stats.num_backoff_steps,
    }


def print_bench(engine: Engine, bench: DecodeBench, runs: Sequence[BudgetRun], config: GenerationConfig) -> None:
    """Print the measurement as tables on standard output."""
    rest = bench.peak_bytes - bench.package_bytes - bench.kv_bytes
    print_report(
        _speed_table(bench),
        _parts_table(bench),
        *([_sets_table(bench)] if bench.sets else []),
        *([budget_table(bench.questions, runs)] if runs else []),
        f"Peak memory {readable_size(bench.peak_bytes)}: package {readable_size(bench.package_bytes)}, "
        f"KV cache {readable_size(bench.kv_bytes)}, all else {readable_size(rest)}.",
        f"{engine.decoder.target.provider}, {num_threads(engine)} threads; {config.sampling}; "
        f"width probe: {width_sentence(engine)}.",
    )


def _speed_table(bench: DecodeBench) -> Table:
    rounds = len(bench.overall.plain.rounds[0])
    title = f"Tokens/s after the first token (median; rounds each way: {rounds})"
    name = "category" if bench.by_category else "prompt"
    figures = ("prompts", "tokens", "plain", "drafted", "speed-up", "acceptance length")
    table = figures_table(title, name, *figures)
    table.add_column("tokens are")
    table.add_column("whole answers", justify="right")
    parts = _parts(bench)
    for label, each in [*parts, ("all", bench.overall)]:
        counts = str(len(each.plain.rounds)), str(each.plain.num_tokens)
        table.add_row(_excerpt(label), *counts, *_speed_cells(each), f"{each.answer_speedup:.2f}x")
        if len(table.rows) == len(parts):
            table.add_section()
    return table


def _sets_table(bench: DecodeBench) -> Table:
    """A row for each set of sources; for each category, and for all."""
    figures = ("plain", "drafted", "speed-up", "acceptance length")
    table = figures_table("Tokens/s after the first token, by what is drafted from", "", *figures)
    table.add_column("tokens are")
    table.add_column("whole answers", justify="right")
    table.add_column("drafted from")
    for category in [*bench.by_category, "all"]:
        table.add_section()
        for names, comparisons in bench.sets.items():
            each = {**bench.together_by_category(comparisons), "all": together(comparisons)}[category]
            table.add_row(category, *_speed_cells(each), f"{each.answer_speedup:.2f}x", names)
    return table


def _parts(bench: DecodeBench) -> list[tuple[str, Comparison]]:
    """What has lines of its own: categories, or where there are none, prompts."""
    texts = [question.text for question in bench.questions]
    return list(bench.by_category.items() or zip(texts, bench.comparisons, strict=True))


def _excerpt(prompt: str) -> str:
    line = " ".join(prompt.split())
    return line if len(line) <= _EXCERPT else line[: _EXCERPT - 1] + "…"


def _label(prompt: str) -> str:
    """An excerpt with nothing that matplotlib takes for a formula."""
    return _excerpt(prompt).replace("$", r"\$")


def _parts_table(bench: DecodeBench) -> Table:
    plain, drafted = bench.overall.plain, bench.overall.drafted
    parts = ("time to first token", *plain.parts_s, "step", "per token")
    table = figures_table("Milliseconds of a step, means", "", *parts)
    for name, way in (("plain", plain), ("drafted", drafted)):
        step_s = sum(way.parts_s.values())
        seconds = (way.first_token_s, *way.parts_s.values(), step_s, step_s / max(1.0, way.stats.acceptance_length))
        table.add_row(name, *(f"{1e3 * each:.3f}" for each in seconds))
    return table


def draw_bench(bench: DecodeBench, path: Path) -> None:
    """Draw the speeds of each category or prompt, and how a token's time divides into parts, plain and drafted."""
    labels, comparisons = zip(*_parts(bench), strict=True)
    figure = new_figure(11, 1.6 + 0.3 * len(labels))
    speeds, times = figure.subplots(1, 2)
    places = range(len(labels))
    plain = [each.plain.tokens_per_s for each in comparisons]
    drafted = [each.drafted.tokens_per_s for each in comparisons]
    speeds.barh([place - 0.2 for place in places], plain, 0.4, label="plain")
    speeds.barh([place + 0.2 for place in places], drafted, 0.4, label="drafted")
    speeds.set_yticks(list(places), [_label(each) for each in labels])
    speeds.invert_yaxis()
    speeds.set_xlabel("tokens/s after the first token")
    speeds.set_title(f"{bench.overall.speedup:.2f} times as fast over all")
    speeds.legend()
    ways = (bench.overall.plain, bench.overall.drafted)
    left = [0.0, 0.0]
    for part in bench.overall.plain.parts_s:
        widths = [1e3 * way.parts_s[part] / max(1.0, way.stats.acceptance_length) for way in ways]
        times.barh(["plain", "drafted"], widths, 0.5, left=left, label=part)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    times.invert_yaxis()
    times.set_xlabel("milliseconds of a token")
    times.set_title("where the time goes")
    times.legend()
    save_plot(figure, path)
