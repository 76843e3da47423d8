"""What `reader-edge bench replay` prints."""

from collections.abc import Sequence

import click
import numpy as np

from reader_edge.bench.replay.replay import Replays
from reader_edge.terminal.control_characters import visible
from reader_edge_runtime.stats import GenerationStats

_TASK = "  "


def replay_fields(file: str, replays_by_nodes: Replays) -> dict[str, object]:
    """All figures of a file, ready for JSON; those without a node budget in them are of the largest one."""
    replays = {str(n): replay for n, replay in replays_by_nodes.items()}
    largest = replays_by_nodes[max(replays_by_nodes)]
    stats = largest.stats
    return {
        "file": file,
        "acceptance_length": {n: each.stats.acceptance_length for n, each in replays.items()},
        "acceptance_length_by_task": {
            task: {n: each.stats_by_task[task].acceptance_length for n, each in replays.items()}
            for task in sorted(largest.stats_by_task)
        },
        "nodes_per_step": {n: _nodes_per_step(each.stats) for n, each in replays.items()},
        "draft_us_p50": float(np.median(largest.draft_us)),
        "draft_us_p99": float(np.percentile(largest.draft_us, 99)),
        "draft_us_p50_by_nodes": {n: float(np.median(each.draft_us)) for n, each in replays.items()},
        "learn_us_per_token": float(np.median(largest.learn_us)),
        "learn_us_per_token_p99": float(np.percentile(largest.learn_us, 99)),
        "learn_us_per_prompt_token": float(np.median(largest.prompt_us)),
        "drafted_by_source": dict(stats.drafted_by_source),
        "accepted_by_source": dict(stats.accepted_by_source),
        "calibration": _calibration(stats),
        "bytes": largest.num_bytes,
    }


def _nodes_per_step(stats: GenerationStats) -> float:
    return stats.num_drafted_tokens / max(1, stats.num_steps)


def _calibration(stats: GenerationStats) -> list[dict[str, float]]:
    """For each tenth of predicted values that has nodes: its lower end, mean prediction, share accepted, nodes."""
    return [
        {
            "from": tenth / 10,
            "predicted": stats.predicted_by_tenth[tenth] / 1000 / num,
            "observed": stats.accepted_by_tenth[tenth] / num,
            "nodes": num,
        }
        for tenth, num in sorted(stats.drafted_by_tenth.items())
    ]


def print_replays(files: Sequence[tuple[str, Replays]]) -> None:
    """Print the main figures on standard output."""
    budgets = list(files[0][1])
    width = max(len(name) for file, replays in files for name in (file, *(_TASK + task for task in _tasks(replays))))
    header = " ".join(f"{f'{n} nodes':>9}" for n in budgets)
    click.echo(f"{'':{width}} {header}  drafted  draft µs (p99)  learn µs (p99)   MB  accepted from")
    for file, replays in files:
        fields, largest = replay_fields(file, replays), replays[max(budgets)]
        stats = largest.stats
        accepted = ", ".join(f"{name} {count}" for name, count in stats.accepted_by_source.most_common())
        click.echo(
            f"{file:{width}} {_lengths([each.stats for each in replays.values()])}  "
            f"{_nodes_per_step(stats):7.1f}  {fields['draft_us_p50']:7.1f} ({fields['draft_us_p99']:4.0f})  "
            f"{fields['learn_us_per_token']:8.2f} ({fields['learn_us_per_token_p99']:3.0f}) "
            f"{largest.num_bytes / 1e6:4.0f}  {accepted}"
        )
        for task in _tasks(replays):
            by_nodes = [each.stats_by_task[task] for each in replays.values()]
            click.echo(visible(f"{_TASK + task:{width}} {_lengths(by_nodes)}"))


def _lengths(by_nodes: Sequence[GenerationStats]) -> str:
    return " ".join(f"{stats.acceptance_length:9.3f}" for stats in by_nodes)


def _tasks(replays: Replays) -> list[str]:
    """The tasks of a file that has several: each gets a line of its own."""
    tasks = sorted(next(iter(replays.values())).stats_by_task)
    return tasks if len(tasks) > 1 else []
