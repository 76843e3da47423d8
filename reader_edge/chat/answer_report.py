"""What `--stats` and `--json` tell about an answer."""

from dataclasses import asdict, fields

from rich.table import Table

from reader_edge.terminal.console import pairs_table
from reader_edge_runtime import Engine, GenerationStats, SamplingConfig
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.drafting.speculators.speculated_tree import NAME as SPECULATOR
from reader_edge_runtime.machine.processor import num_usable_cores
from reader_edge_runtime.stats import STEP_PARTS

_DERIVED = ("acceptance_length", "acceptance_rate", "perplexity", "tokens_per_s")


def stats_fields(engine: Engine, stats: GenerationStats, sampling: SamplingConfig | None) -> dict[str, object]:
    """The statistics of an answer and the circumstances it was made in, ready for JSON."""
    return {
        **{name: getattr(stats, name) for name in (*(field.name for field in fields(stats)), *_DERIVED)},
        "sampling": asdict(sampling or SamplingConfig()),
        "provider": engine.decoder.target.provider,
        "threads": num_threads(engine),
        "is_native": engine.decoder.target.is_native,
        "instructions": engine.decoder.target.instructions,
        "is_width_invariant": None if engine.width_report is None else engine.width_report.is_invariant,
        "drafts": engine.draft_permission.scope,
        "drafts_reason": engine.draft_permission.reason,
        "speculator": _speculator_use(engine),
    }


def stats_table(engine: Engine, stats: GenerationStats, sampling: SamplingConfig | None) -> Table:
    """The statistics as a table to read."""
    drafted, parts = sorted(stats.drafted_by_source.items()), ("prefill_s", *STEP_PARTS)
    by_source = ", ".join(f"{source} {_share(stats.accepted_by_source[source], n)}" for source, n in drafted)
    by_part = ", ".join(f"{part.removesuffix('_s')} {_milliseconds(getattr(stats, part))}" for part in parts)
    pairs = [
        ("prompt tokens", f"{stats.num_prompt_tokens} ({stats.num_reused_tokens} reused)"),
        ("tokens", f"{stats.num_tokens} in {stats.num_steps} steps"),
        ("tokens/s", f"{stats.tokens_per_s:.1f}"),
        *_perplexity(stats),
        ("time to first token", _milliseconds(stats.prefill_s)),
        ("acceptance length", f"{stats.acceptance_length:.2f} tokens a step"),
        ("acceptance rate", _share(stats.num_accepted_tokens, stats.num_drafted_tokens)),
        ("accepted by source", by_source or "nothing drafted"),
        *_speculator_rows(engine, stats),
        ("accepted by depth", ", ".join(f"{d}: {n}" for d, n in sorted(stats.accepted_by_depth.items())) or "none"),
        ("calibration", _calibration(stats) or "nothing drafted"),
        ("tree sizes", ", ".join(f"{width} x{n}" for width, n in sorted(stats.steps_by_width.items())) or "no steps"),
        ("drafting", _drafting(engine, stats)),
        ("pass times", _pass_times(engine, stats)),
        ("time by part", by_part),
        ("sampling", str(sampling or SamplingConfig())),
        ("runs on", f"{engine.decoder.target.provider}, {num_threads(engine)} threads"),
        ("native kernels", engine.decoder.target.instructions or "off"),
        ("width probe", width_sentence(engine)),
        ("near-tie guard", _near_tie_guard(engine, stats)),
    ]
    return pairs_table("Answer", pairs)


def num_threads(engine: Engine) -> int:
    """Threads that the model runs on."""
    usable = num_usable_cores()
    return min(engine.decoder.config.threads, usable) or usable


def width_sentence(engine: Engine) -> str:
    """What the width probe found at load."""
    report = engine.width_report
    if report is None or not report.num_rows:
        return "not run"
    if report.is_invariant:
        paired = ", one node getting a second" if engine.decoder.target.min_rows > 1 else ""
        widths = "at every width tried" if report.max_rows is None else f"up to {report.max_rows} nodes a pass"
        return f"bit-equal {widths}{paired} ({report.num_rows} logit rows)"
    return (
        f"{report.num_equal} of {report.num_rows} logit rows bit-equal, largest difference {report.max_difference:.2g}:"
        f" drafting {'may change a near tie' if engine.draft_permission.is_on else 'is off'}"
    )


def _perplexity(stats: GenerationStats) -> list[tuple[str, str]]:
    """Nothing of an answer that was not scored."""
    perplexity = stats.perplexity
    return [] if perplexity is None else [("perplexity", f"{perplexity:.2f} (1 is certain of every token)")]


def _near_tie_guard(engine: Engine, stats: GenerationStats) -> str:
    if margin := engine.decoder.near_tie_margin:
        return f"{stats.num_redecided_tokens} choices below a margin of {margin:.2g} decided again"
    return "not needed" if engine.decoder.config.is_near_tie_guarded else "off"


def _drafting(engine: Engine, stats: GenerationStats) -> str:
    """When there were no drafts, or none worth a wider pass, and what that was decided by."""
    permission = engine.draft_permission
    if not permission.is_on:
        return f"off: {permission.reason}"
    planner = engine.decoder.planner
    times = planner.times.seconds([stats.num_prompt_tokens + stats.num_tokens])
    only = [f"greedy answers alone ({permission.reason})"] if permission.scope == "greedy" else []
    parts = [*only, f"{stats.num_wasted_drafts} drafts wasted", f"backed off for {stats.num_backoff_steps} steps"]
    if stats.num_unready_steps:
        parts.insert(0, f"not loaded yet in {stats.num_unready_steps} steps")
    if planner.times.is_measured:
        step_s = times[1] + planner.overheads.plain_s
        parts.append(f"drafting adds {1e6 * planner.overheads.draft_s:.0f} µs to a step of {1e3 * step_s:.2f} ms")
    return "; ".join(parts)


def _pass_times(engine: Engine, stats: GenerationStats) -> str:
    """The curve that the tree sizes come from."""
    pass_times = engine.decoder.planner.times
    times = pass_times.seconds([stats.num_prompt_tokens + stats.num_tokens])
    curve = ", ".join(
        f"{width}: {times[width] / times[1]:.2f}" for width in (2, 4, 8, 16, 32, 64) if width < len(times)
    )
    if not pass_times.is_measured:
        return f"not measured; assumed relative to one node: {curve}"
    doubt = "; in doubt, as other work ran while they were measured" if pass_times.is_in_doubt else ""
    return f"{1e3 * times[1]:.2f} ms for one node; relative to it {curve}{doubt}"


def _speculator_rows(engine: Engine, stats: GenerationStats) -> list[tuple[str, str]]:
    """How often the package's speculator seemed worth its time."""
    use = _speculator_use(engine)
    if use is None:
        return []
    uses = {
        "used": f"used in {stats.proposed_by_source[SPECULATOR]} of {stats.num_steps} steps",
        "left alone": "left alone: its passes take too long to pay here",
        "left out": "left out (--no-speculator)",
    }
    return [(SPECULATOR, uses[use])]


def _speculator_use(engine: Engine) -> str | None:
    """What becomes of the package's speculator: used where that pays, left alone or left out; None without one."""
    drafter = engine.decoder.drafter
    if not isinstance(drafter, RetrievalDrafter) or engine.package.manifest.speculator is None:
        return None
    if SPECULATOR in drafter.sources.names:
        return "used"
    return "left alone" if SPECULATOR in drafter.disabled_sources else "left out"


def _calibration(stats: GenerationStats) -> str:
    """Predicted against observed acceptance, by the tenth that a draft token's predicted value falls in."""
    return ", ".join(
        f"{stats.predicted_by_tenth[tenth] / 10 / num:.0f}% predicted: {_share(stats.accepted_by_tenth[tenth], num)}"
        for tenth, num in sorted(stats.drafted_by_tenth.items())
    )


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({part / whole:.0%})" if whole else "0 of 0"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"
