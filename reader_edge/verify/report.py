"""What `verify` prints: a table, sentences, JSON."""

from dataclasses import asdict

from rich.table import Table

from reader_edge.terminal.export_report import glossary
from reader_edge.terminal.formatting import visible
from reader_edge.verify.plain_answers import usual_sampling
from reader_edge.verify.result import Counts, Divergence, ProofReport, ProofRun
from reader_edge.verify.variants import Variant
from reader_edge_runtime import Engine
from reader_edge_runtime.package.manifest import EXACT_ATTENTIONS


def proof_fields(engine: Engine, report: ProofReport) -> dict[str, object]:
    """A proof, ready for JSON."""
    num_whole, num_part, num_none = coverage(report)
    return {
        "seconds": round(report.seconds, 1),
        "is_interrupted": report.is_interrupted,
        "settings_covered": num_whole,
        "settings_covered_in_part": num_part,
        "settings_not_covered": num_none,
        **asdict(report.counts),
        "longest_text": report.longest_text,
        "logit_rows_bit_equal": report.logit_rows_bit_equal,
        "ways": [{"way": variant.name, **asdict(part.counts)} for variant, part in report.by_variant().items()],
        "categories": {category: _answer_fields(counts) for category, counts in report.by_category().items()},
        "refusal": report.refusal,
        "sampling": asdict(usual_sampling(engine.package.manifest)),
        "is_promise_kept": report.is_promise_kept,
        "provider": report.provider,
        "attention": report.attention,
        "precision": report.precision,
        "runs": [_run_fields(run) for run in report.runs],
        "first_divergences": [_divergence_fields(engine, *each) for each in report.first_divergences()],
    }


def proof_table(report: ProofReport) -> Table:
    """One row for each run that compared something; the others are counted by `not_covered_sentence`."""
    columns = ("drafter", "way", "batch", "prompts", "nodes", "acceptance length", "tokens", "divergences")
    title = f"Drafted against plain decoding ({report.provider}, {report.precision}, {report.attention} attention). "
    title += f"'{glossary()}' explains the words"
    table = Table(*columns, "rows bit-equal", title=title, title_justify="left")
    for run in report.runs:
        if not run.is_covered:
            continue
        setting, counts = run.setting, run.counts
        num_begun = sum(answer.tokens_compared > 0 for answer in run.answers.values())
        prompts = f"{run.num_whole} of {len(report.questions)}" if run.num_whole else f"part of {num_begun}"
        row = [setting.drafter, setting.variant.name, str(setting.batch_size), prompts]
        row += [str(sum(run.nodes_by_source.values())), f"{run.acceptance_length:.2f}"]
        row += [str(counts.tokens_compared), str(counts.divergences)]
        row += [
            f"{counts.logit_rows_equal} of {counts.logit_rows}" if setting.variant.reads_logits else "none compared"
        ]
        table.add_row(*row)
    return table


def not_covered_sentence(report: ProofReport) -> str:
    """How many runs the table leaves out; "" where it has them all."""
    num_none = coverage(report)[2]
    if not num_none:
        return ""
    ways = "1 further way was" if num_none == 1 else f"{num_none} further ways were"
    return f"{ways} not covered: --minutes 0 compares everything."


def coverage(report: ProofReport) -> tuple[int, int, int]:
    """Runs that were covered with every prompt, in part, and not at all."""
    num_whole = sum(run.num_whole == len(report.questions) for run in report.runs)
    num_none = sum(not run.is_covered for run in report.runs)
    return num_whole, len(report.runs) - num_whole - num_none, num_none


def is_whole(report: ProofReport) -> bool:
    """Whether everything was compared on every prompt."""
    return coverage(report)[0] == len(report.runs)


def estimate_sentence(seconds: float, limit_s: float) -> str:
    """What a whole proof takes, and what this one does."""
    if seconds <= limit_s:
        return f"The whole proof takes about {in_words(seconds)}."
    return (
        f"Every combination on every prompt would take about {in_words(seconds)}. This proof takes {in_words(limit_s)} "
        "and begins with what users run (--minutes)."
    )


def in_words(seconds: float) -> str:
    """A time for people."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 6000 else f"{seconds / 3600:.0f} hours"


def proof_verdict(engine: Engine, report: ProofReport) -> list[str]:
    """The result in sentences."""
    counts = report.counts
    lines = [_coverage_sentence(report), _sampling_sentence(engine)]
    max_context = engine.package.manifest.max_context
    lines.append(f"The longest text has {report.longest_text} tokens of the context's {max_context}.")
    lines += [f"{counts.tokens_compared} tokens compared, {counts.divergences} divergences:"]
    lines += [_variant_sentence(variant, part.counts) for variant, part in report.by_variant().items()]
    lines += [_category_sentence(category, counts) for category, counts in report.by_category().items()]
    if counts.answers_with_images:
        lines.append(f"{counts.answers_with_images} of the answers compared are about images.")
    for run, divergence in report.first_divergences():
        lines.append(_divergence_sentence(engine, run, divergence, report.questions[divergence.prompt].text))
    if report.refusal is not None:
        lines.append(
            "A source of drafts that names token ids outside the vocabulary, as a broken one might, was stopped, as it "
            "should be."
        )
    if counts.divergences:
        lines.append("Drafting changes this model's output here.")
    elif report.logit_rows_bit_equal:
        what = "changes nothing here" if is_whole(report) else "changed nothing of what was compared"
        lines.append(f"Drafting {what}: every token, and every bit it was chosen from, is the same.")
    else:
        lines.append(
            "Every token is the same, but not every bit: another prompt may meet a near tie that tips the other way."
        )
    if counts.divergences == 0 and not report.logit_rows_bit_equal and report.attention in EXACT_ATTENTIONS:
        lines.append("This package promises the same bits, and this machine does not keep that: please report it.")
    if counts.top_rows_agreeing != counts.top_rows:
        lines.append("The best ids that the graph names are not those of its logits: please report it.")
    if report.refusal is None:
        lines.append("A source of drafts named token ids outside the vocabulary and was not stopped: please report it.")
    return lines


def _coverage_sentence(report: ProofReport) -> str:
    """What the time was enough for, and what not."""
    num_whole, num_part, num_none = coverage(report)
    end = "Interrupted after" if report.is_interrupted else "In"
    covered = (
        f"{end} {in_words(report.seconds)}: {num_whole} of {len(report.runs)} combinations compared on every prompt"
    )
    if is_whole(report):
        return f"{covered}; all there are."
    return f"{covered}, {num_part} on some, {num_none} not at all. --minutes 0 compares all."


def _run_fields(run: ProofRun) -> dict[str, object]:
    setting = run.setting
    return {
        "drafter": setting.drafter,
        "way": setting.variant.name,
        "batch_size": setting.batch_size,
        "prompts_compared": run.num_whole,
        "acceptance_length": run.acceptance_length,
        "nodes_by_source": run.nodes_by_source,
        "accepted_by_source": run.accepted_by_source,
        **asdict(run.counts),
    }


def _sampling_sentence(engine: Engine) -> str:
    manifest = engine.package.manifest
    words = str(usual_sampling(manifest)).removesuffix(", seed 0")
    whose = "as the model recommends" if manifest.sampling.get("temperature") else "the model recommends nothing"
    return f"Sampled answers are drawn with {words} ({whose}), each by a seed of its own."


def _variant_sentence(variant: Variant, counts: Counts) -> str:
    if counts.tokens_compared == 0:
        return f"- {variant.name}: not covered."
    rows = "no logits compared"
    if variant.reads_logits:
        rows = (
            f"{counts.logit_rows_equal} of {counts.logit_rows} logit rows bit-equal, "
            f"best ids those of the logits in {counts.top_rows_agreeing} of {counts.top_rows} rows read"
        )
    return f"- {variant.name}: {counts.tokens_compared} tokens, {rows}."


def _answer_fields(counts: Counts) -> dict[str, int]:
    """Without what is counted by passes, in which answers of several categories may have been."""
    return {name: count for name, count in asdict(counts).items() if not name.startswith("top_rows")}


def _category_sentence(category: str, counts: Counts) -> str:
    rows = f"{counts.logit_rows_equal} of {counts.logit_rows} logit rows bit-equal"
    return visible(f"- {category}: {counts.tokens_compared} tokens, {counts.divergences} divergences, {rows}.")


def _divergence_fields(engine: Engine, run: ProofRun, divergence: Divergence) -> dict[str, object]:
    return {
        **asdict(divergence),
        "plain_text": _text(engine, divergence.plain_token_id),
        "drafted_text": _text(engine, divergence.drafted_token_id),
        "drafter": run.setting.drafter,
        "way": run.setting.variant.name,
        "batch_size": run.setting.batch_size,
    }


def _divergence_sentence(engine: Engine, run: ProofRun, divergence: Divergence, prompt: str) -> str:
    setting = run.setting
    gap = "" if divergence.logit_gap is None else f", logit gap {divergence.logit_gap:.3g}"
    return (
        f"Prompt {divergence.prompt + 1} ({prompt.splitlines()[0]:.30}), {setting.drafter}, {setting.variant.name}, "
        f"batch {setting.batch_size}, token {divergence.position + 1}: {_token(engine, divergence.drafted_token_id)} "
        f"instead of {_token(engine, divergence.plain_token_id)}{gap}."
    )


def _token(engine: Engine, token_id: int | None) -> str:
    return "the end" if token_id is None else f"{token_id} {_text(engine, token_id)!r}"


def _text(engine: Engine, token_id: int | None) -> str | None:
    return None if token_id is None else engine.tokenizer.decode([token_id])
