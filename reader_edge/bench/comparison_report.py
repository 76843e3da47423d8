"""What `run --compare` tells, and the speeds that `bench decode` tells too."""

import json
import sys

import click
from rich.table import Table

from reader_edge.bench.comparison import ROUNDS, Comparison, compare
from reader_edge.chat.answer import start_line, write
from reader_edge.chat.answer_report import stats_fields, stats_table
from reader_edge.terminal.console import count_progress, print_table
from reader_edge_runtime import Engine, GenerationConfig
from reader_edge_runtime.engine import Prompt


def speed_fields(comparison: Comparison) -> dict[str, object]:
    """Speeds and acceptance, ready for JSON."""
    return {
        "identical": comparison.is_identical,
        "plain_tokens_per_s": comparison.plain.tokens_per_s,
        "drafted_tokens_per_s": comparison.drafted.tokens_per_s,
        "speedup": comparison.speedup,
        "acceptance_length": comparison.drafted.stats.acceptance_length,
    }


def speed_cells(comparison: Comparison) -> tuple[str, str, str, str, str]:
    """The same for eyes: plain and drafted tokens/s, speed-up, acceptance length, and whether the tokens are equal."""
    return (
        f"{comparison.plain.tokens_per_s:.1f}",
        f"{comparison.drafted.tokens_per_s:.1f}",
        f"{comparison.speedup:.2f}x",
        f"{comparison.drafted.stats.acceptance_length:.2f}",
        "identical" if comparison.is_identical else "DIFFERENT",
    )


def print_compared(engine: Engine, prompt: Prompt, config: GenerationConfig, as_json: bool, shows_stats: bool) -> bool:
    """Answer plainly and drafted in turn, and tell both speeds; returns whether the tokens were the same."""
    with count_progress("Preparing, then decoding both ways") as on_progress:
        comparison = compare(engine, prompt, config, on_progress=on_progress)
    if as_json:
        click.echo(json.dumps(_fields(engine, comparison)))
        return comparison.is_identical
    text = comparison.plain.answers[0].text
    write(text if text.endswith("\n") or not sys.stdout.isatty() else text + "\n")
    start_line(text)
    print_table(_table(comparison))
    if shows_stats:
        print_table(stats_table(engine, comparison.drafted.answers[-1].stats))
    return comparison.is_identical


def _fields(engine: Engine, comparison: Comparison) -> dict[str, object]:
    """A comparison of one prompt, ready for JSON; the statistics are those of the last drafted round."""
    plain = comparison.plain.answers[0]
    return {
        **speed_fields(comparison),
        "text": plain.text,
        "token_ids": plain.token_ids,
        "finish_reason": plain.finish_reason,
        "rounds": ROUNDS,
        "stats": stats_fields(engine, comparison.drafted.answers[-1].stats),
    }


def _table(comparison: Comparison) -> Table:
    """A comparison of one prompt as a table."""
    title = f"{comparison.plain.num_tokens} tokens, median of {ROUNDS} rounds each, in alternating order"
    table = Table("", "tokens/s", "speed-up", "acceptance length", "tokens", title=title, title_justify="left")
    plain, *drafted = speed_cells(comparison)
    table.add_row("plain", plain, "1.00x", "1.00", "")
    table.add_row("drafted", *drafted)
    return table
