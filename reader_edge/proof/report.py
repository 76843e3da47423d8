"""What `verify` tells."""

from dataclasses import asdict

from rich.table import Table

from reader_edge.proof.result import Counts, Divergence, ProofReport, ProofRun, Way
from reader_edge.terminal.control_characters import visible
from reader_edge_runtime import Engine


def proof_fields(engine: Engine, report: ProofReport) -> dict[str, object]:
    """A proof, ready for JSON."""
    return {
        **asdict(report.counts),
        "logit_rows_bit_equal": report.logit_rows_bit_equal,
        "ways": [{"way": way.name, **asdict(part.counts)} for way, part in report.by_way().items()],
        "categories": {category: _answer_fields(counts) for category, counts in report.by_category().items()},
        "refusal": report.refusal,
        "is_promise_kept": report.is_promise_kept,
        "provider": report.provider,
        "attention": report.attention,
        "precision": report.precision,
        "runs": [_run_fields(run) for run in report.runs],
        "first_divergences": [_divergence_fields(engine, *each) for each in report.first_divergences()],
    }


def proof_table(report: ProofReport) -> Table:
    """One row a run."""
    columns = ("drafter", "way", "batch", "nodes", "acceptance length", "tokens", "divergences", "rows bit-equal")
    title = f"Drafted against plain decoding ({report.provider}, {report.precision}, {report.attention} attention)"
    table = Table(*columns, title=title, title_justify="left")
    for run in report.runs:
        table.add_row(
            run.drafter,
            run.way.name,
            str(run.batch_size),
            str(sum(run.nodes_by_source.values())),
            f"{run.acceptance_length:.2f}",
            str(run.counts.tokens_compared),
            str(run.counts.divergences),
            f"{run.counts.logit_rows_equal} of {run.counts.logit_rows}" if run.way.reads_logits else "none compared",
        )
    return table


def proof_verdict(engine: Engine, report: ProofReport) -> list[str]:
    """The result in sentences."""
    counts = report.counts
    lines = [f"{counts.tokens_compared} tokens compared, {counts.divergences} divergences:"]
    lines += [_way_sentence(way, part.counts) for way, part in report.by_way().items()]
    lines += [_category_sentence(category, counts) for category, counts in report.by_category().items()]
    for run, divergence in report.first_divergences():
        lines.append(_divergence_sentence(engine, run, divergence, report.questions[divergence.prompt].text))
    if counts.divergences:
        lines.append("Drafting changes this model's output here.")
    elif report.logit_rows_bit_equal:
        lines.append("Drafting changes nothing here: every token, and every bit it was chosen from, is the same.")
    else:
        lines.append(
            "Every token is the same, but not every bit: another prompt may meet a near tie that tips the other way."
        )
    if counts.divergences == 0 and not report.logit_rows_bit_equal and report.attention == "exact":
        lines.append("This package promises the same bits, and this machine does not keep that: please report it.")
    if counts.top_rows_agreeing != counts.top_rows:
        lines.append("The best ids that the graph names are not those of its logits: please report it.")
    if report.refusal is None:
        lines.append("A source of drafts named token ids outside the vocabulary and was not stopped: please report it.")
    else:
        lines.append(
            f"A source of drafts that names token ids outside the vocabulary, on purpose, was stopped: {report.refusal}"
        )
    return lines


def _run_fields(run: ProofRun) -> dict[str, object]:
    fields = asdict(run)
    counts = fields.pop("counts")
    del fields["answers"]
    return {**fields, **counts, "way": run.way.name}


def _way_sentence(way: Way, counts: Counts) -> str:
    rows = "no logits compared"
    if way.reads_logits:
        rows = (
            f"{counts.logit_rows_equal} of {counts.logit_rows} logit rows bit-equal, "
            f"best ids those of the logits in {counts.top_rows_agreeing} of {counts.top_rows} rows read"
        )
    return f"- {way.name}: {counts.tokens_compared} tokens, {rows}."


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
        "drafter": run.drafter,
        "way": run.way.name,
        "batch_size": run.batch_size,
    }


def _divergence_sentence(engine: Engine, run: ProofRun, divergence: Divergence, prompt: str) -> str:
    gap = "" if divergence.logit_gap is None else f", logit gap {divergence.logit_gap:.3g}"
    return (
        f"Prompt {divergence.prompt + 1} ({prompt.splitlines()[0]:.30}), {run.drafter}, {run.way.name}, "
        f"batch {run.batch_size}, token {divergence.position + 1}: {_token(engine, divergence.drafted_token_id)} "
        f"instead of {_token(engine, divergence.plain_token_id)}{gap}."
    )


def _token(engine: Engine, token_id: int | None) -> str:
    return "the end" if token_id is None else f"{token_id} {_text(engine, token_id)!r}"


def _text(engine: Engine, token_id: int | None) -> str | None:
    return None if token_id is None else engine.tokenizer.decode([token_id])
