"""Replays recorded answers through the drafter, without a model: how many tokens would have been accepted?"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click
import numpy as np

from reader_edge.bench.recording import RecordedRequest, read_recording
from reader_edge.bench.simulator import MAX_DEPTH, ReplayedRequest, Simulator
from reader_edge.models.model_source import load_tokenizer
from reader_edge.terminal.formatting import visible
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.config import DraftConfig
from reader_edge_runtime.drafting.core import DraftingCore
from reader_edge_runtime.drafting.parameters import as_priors, cold_parameters
from reader_edge_runtime.drafting.sources.datastore.datastore import Datastore, open_datastores
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.stats import GenerationStats

Replays = dict[int, Simulator]  # by node budget

# Drafted nodes where an answer is only learned from: about what measured pass times choose.
LEARNING_NODES = 16

_TASK = "  "


def replay_files(
    paths: Sequence[Path],
    tokenizer_name: str,
    sources: Sequence[str],
    datastores: Sequence[str],
    priors: str,
    budgets: Sequence[int],
) -> list[tuple[str, Replays]]:
    """Replays of each file, by its name, with each budget. Raises ConfigError, TokenizerError or DatastoreError.

    sources: "context", and beside it "history" and "logits". datastores: their files. priors: what the drafter starts
    from: "shipped", "others" (learned from the other files) or "none".
    """
    tokenizer = load_tokenizer(tokenizer_name)
    opened = open_datastores(datastores, tokenizer.fingerprint(), tokenizer.vocab_size)
    recordings = [read_recording(path, tokenizer) for path in paths]
    if "logits" in sources:
        _check_successors(paths, recordings)
    files = []
    for which, (path, requests) in enumerate(zip(paths, recordings, strict=True)):
        parameters = _first_parameters(priors, recordings, which)
        replays = {n: replay(requests, _config(sources, n), parameters, opened) for n in budgets}
        files.append((path.stem, replays))
    return files


def replay(
    requests: Sequence[RecordedRequest],
    config: DraftConfig,
    parameters: Float32Array | None = None,
    datastores: Sequence[Datastore] = (),
) -> Simulator:
    """Replay requests in order from an empty history, each step with as many nodes as the config allows.

    parameters: None takes the shipped.
    """
    core = DraftingCore(config, parameters, datastores=datastores)
    simulator = core_simulator(core, config.max_nodes - 1)
    for request in requests:
        simulator.decode(request)
        if simulator.request is not None:
            num_bytes = core.history.num_bytes + simulator.request.num_bytes
            simulator.num_bytes = max(simulator.num_bytes, num_bytes)
    return simulator


def _config(sources: Sequence[str], num_nodes: int) -> DraftConfig:
    return DraftConfig(
        max_nodes=num_nodes + 1,
        max_depth=MAX_DEPTH,
        is_history_used="history" in sources,
        is_logits_used="logits" in sources,
    )


def _check_successors(paths: Sequence[Path], recordings: Sequence[Sequence[RecordedRequest]]) -> None:
    """Raise ConfigError unless all these recordings have the successors that their model found likely."""
    for path, requests in zip(paths, recordings, strict=True):
        if any(turn.successors is None for request in requests for turn in request.turns):
            raise ConfigError(
                f"'{path}' has no likely successors, or was recorded with another tokenizer: leave logits out of "
                "--sources, or record answers with `reader-edge bench record`."
            )


def core_simulator(core: DraftingCore, num_nodes: int = LEARNING_NODES) -> Simulator:
    """Simulates decoding with trees of up to num_nodes drafted nodes, which may hold more than the answer has."""
    return Simulator(partial(ReplayedRequest, core), lambda request, num_left: request.draft(num_nodes + 1))


def _first_parameters(priors: str, recordings: Sequence[Sequence[RecordedRequest]], which: int) -> Float32Array | None:
    """What the mixture starts from to replay recordings[which]; None is what is shipped."""
    if priors == "shipped":
        return None
    if priors == "none":
        return cold_parameters()
    return as_priors(learn_parameters([*recordings[:which], *recordings[which + 1 :]], cold_parameters()))


def learn_parameters(recordings: Sequence[Sequence[RecordedRequest]], start: Float32Array) -> Float32Array:
    """What the mixture learns from several recordings, their requests interleaved, each with a history of its own."""
    config = DraftConfig(max_nodes=LEARNING_NODES + 1, max_depth=MAX_DEPTH)
    cores = [DraftingCore(config, start) for _ in recordings]
    for core in cores:
        core.parameters = cores[0].parameters
    simulators = [core_simulator(core) for core in cores]
    places = [((i + 0.5) / len(r), which, request) for which, r in enumerate(recordings) for i, request in enumerate(r)]
    for _, which, request in sorted(places, key=lambda place: place[:2]):
        simulators[which].decode(request)
    return cores[0].parameters


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
