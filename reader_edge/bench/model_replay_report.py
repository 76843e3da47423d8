"""What `reader-edge bench replay --model` measures and prints."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

import click
from rich.console import Console
from rich.table import Table

from reader_edge.bench.model_replay import ModelReplay, ModelReplayer, RehearsalDrafter, choose_stretches
from reader_edge.bench.replay import END_TOKEN_ID, RecordedRequest, first_parameters, read_recording
from reader_edge.tokenizer_source import load_tokenizer
from reader_edge_runtime.drafting.sources.datastore.datastore import open_datastores
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.execution.registry import open_target
from reader_edge_runtime.measuring.cost_cache import load_or_measure
from reader_edge_runtime.measuring.width_probe import settle_width
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.stats import STEP_PARTS
from reader_edge_runtime.text.tokenizer import Tokenizer

NOTE = (
    "A replay: recorded tokens are forced through real passes of this package. It tells what drafting saves on this "
    "machine for such text, and nothing of what this model would write."
)


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """What is replayed on a model, and what the drafter knows of it.

    tokenizer: None takes the package's own. num_stretches: decoded of each file. max_tokens: of a stretch.
    priors: "shipped", "others" (learned from the other files) or "none".
    """

    files: tuple[Path, ...]
    tokenizer: str | None
    num_stretches: int
    max_tokens: int
    is_history_used: bool
    priors: str
    datastores: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ModelReplayReport:
    """By file name, in the plan's order, and what they ran on."""

    package: ModelPackage
    provider: str
    plan: ReplayPlan
    replays: tuple[tuple[str, ModelReplay], ...]

    @property
    def mean_speedup(self) -> float:
        return mean(replay.speedup for _, replay in self.replays)


def replay_on_model(
    package: ModelPackage,
    plan: ReplayPlan,
    threads: int,
    provider: str | None,
    on_progress: Callable[[int, int], None],
) -> ModelReplayReport:
    """Replay each file of a plan. on_progress: told stretches done and in all. Raises ConfigError."""
    tokenizer, end_token_id = _tokenizer(package, plan.tokenizer)
    recordings = [read_recording(path, tokenizer, end_token_id) for path in plan.files]
    manifest = package.manifest
    for path, requests in zip(plan.files, recordings, strict=True):
        _check_vocabulary(path, requests, manifest.vocab_size)
    chosen = [choose_stretches(each, plan.num_stretches, plan.max_tokens, manifest.max_context) for each in recordings]
    datastores = open_datastores(plan.datastores, tokenizer.fingerprint(), manifest.vocab_size)
    target, _ = settle_width(open_target(package, threads, provider))
    cost = load_or_measure(target, threads, 1)
    num_done, num_stretches = 0, sum(len(stretches) for stretches, _ in chosen)

    def on_stretch() -> None:
        nonlocal num_done
        num_done += 1
        on_progress(num_done, num_stretches)

    replays = []
    for which, (path, requests, (stretches, num_left_out)) in enumerate(
        zip(plan.files, recordings, chosen, strict=True)
    ):
        if not stretches:
            raise ConfigError(f"No answer of '{path}' fits this model's context of {manifest.max_context} tokens.")
        parameters = first_parameters(plan.priors, recordings[:which] + recordings[which + 1 :])
        drafter = RehearsalDrafter(plan.is_history_used, parameters, datastores)
        times = ModelReplayer(target, cost, drafter, plan.max_tokens).replay(requests, stretches, on_stretch)
        replays.append((path.stem, ModelReplay(tuple(times), num_left_out)))
    return ModelReplayReport(package, target.provider, plan, tuple(replays))


def _tokenizer(package: ModelPackage, name: str | None) -> tuple[Tokenizer, int]:
    """The tokenizer and the token that closes each recorded answer."""
    if name is not None:
        return load_tokenizer(name), END_TOKEN_ID
    return Tokenizer.open(package), next(iter(package.manifest.eos_token_ids), 0)


def _check_vocabulary(path: Path, requests: Sequence[RecordedRequest], vocab_size: int) -> None:
    highest = max((max(part, default=0) for each in requests for turn in each.turns for part in turn), default=0)
    if highest >= vocab_size:
        raise ConfigError(
            f"'{path}' holds token id {highest} with this tokenizer, but the model's vocabulary has {vocab_size}: "
            "leave --tokenizer out to take the model's own."
        )


def print_model_json(report: ModelReplayReport) -> None:
    manifest = report.package.manifest
    fields = {
        "note": NOTE,
        "model": manifest.source_name,
        "precision": manifest.precision,
        "attention": manifest.attention,
        "provider": report.provider,
        "max_tokens": report.plan.max_tokens,
        "priors": report.plan.priors,
        "mean_speedup": report.mean_speedup,
        "files": [{"file": file, **_fields(replay)} for file, replay in report.replays],
    }
    click.echo(json.dumps(fields))


def _fields(replay: ModelReplay) -> dict[str, object]:
    stats = replay.stats
    num_steps = max(1, stats.num_steps)
    return {
        "plain_tokens_per_s": replay.plain_tokens_per_s,
        "drafted_tokens_per_s": replay.drafted_tokens_per_s,
        "speedup": replay.speedup,
        "speedup_error": replay.speedup_error if len(replay.times) > 1 else None,
        "speedup_by_task": replay.speedup_by_task(),
        "acceptance_length": stats.acceptance_length,
        "nodes_per_pass": _nodes_per_pass(replay),
        "rested_steps": stats.num_rested_steps,
        "steps": stats.num_steps,
        "step_s_by_part": {part.removesuffix("_s"): getattr(stats, part) / num_steps for part in STEP_PARTS},
        "left_out": replay.num_left_out,
        "stretches": [
            {
                **asdict(each.stretch),
                "past": each.past,
                "plain_s": each.plain_s,
                "plain_tokens": each.plain_tokens,
                "drafted_s": each.drafted_s,
                "drafted_tokens": each.drafted_tokens,
                "acceptance_length": each.stats.acceptance_length,
            }
            for each in replay.times
        ],
    }


def print_model_table(report: ModelReplayReport) -> None:
    """On standard output."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 140
    console.print(_table(report))
    console.print(NOTE)
    for file, replay in report.replays:
        if replay.num_left_out:
            console.print(f"{file}: {replay.num_left_out} stretches are beyond this model's context and left out.")


def _table(report: ModelReplayReport) -> Table:
    manifest, plan = report.package.manifest, report.plan
    table = Table(
        title=f"Replay on {manifest.source_name}, {manifest.precision} {manifest.attention}: decoding only, stretches "
        f"of {plan.max_tokens} tokens, both ways in turn; priors: {plan.priors}",
        title_justify="left",
    )
    table.add_column("recording")
    for name in (
        "stretches",
        "tokens before",
        "plain tokens/s",
        "drafted",
        "speed-up",
        "acceptance length",
        "nodes a pass",
        "rested steps",
    ):
        table.add_column(name, justify="right")
    for file, replay in report.replays:
        stats = replay.stats
        error = f" ± {replay.speedup_error:.2f}" if len(replay.times) > 1 else ""
        table.add_row(
            file,
            str(len(replay.times)),
            f"{mean(each.past for each in replay.times):.0f}",
            f"{replay.plain_tokens_per_s:.1f}",
            f"{replay.drafted_tokens_per_s:.1f}",
            f"{replay.speedup:.2f}x{error}",
            f"{stats.acceptance_length:.2f}",
            f"{_nodes_per_pass(replay):.1f}",
            f"{stats.num_rested_steps / max(1, stats.num_steps):.0%}",
        )
    if len(report.replays) > 1:
        table.add_section()
        table.add_row("mean", "", "", "", "", f"{report.mean_speedup:.2f}x", "", "", "")
    return table


def _nodes_per_pass(replay: ModelReplay) -> float:
    widths = replay.stats.steps_by_width
    return sum(width * count for width, count in widths.items()) / max(1, widths.total())
