"""`reader-edge info`: what a package or a GGUF file is."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from reader_edge.commands import options
from reader_edge.terminal.command_help import helpful_command
from reader_edge.terminal.shell_completion import MODEL

if TYPE_CHECKING:
    from pathlib import Path

    from reader_edge_export.sources.gguf.summary import GgufSummary
    from reader_edge_runtime.drafting.sources.successor_store import SuccessorTable
    from reader_edge_runtime.drafting.sources.warmup_answers import WarmupAnswers
    from reader_edge_runtime.package.manifest import Manifest
    from reader_edge_runtime.package.package_parts import SpeculatorPart


_BITS_OF_KEPT = "exact at every width; with native kernels and without, the last bits of logits differ"


@helpful_command("Show what a package or a GGUF file holds.", "reader-edge info smollm2:135m")
@click.argument("model", type=MODEL, required=False)
@options.as_json
def info(model: str | None, as_json: bool) -> None:
    """Show what a package holds, and check its files against their checksums.

    Without MODEL, info shows what $READER_EDGE_MODEL names, or else the bundled demo.

    MODEL may also be a GGUF file: info reads its header and tells what it holds and whether it can be exported, by all
    that export checks before it reads weights. info never downloads or exports anything.
    """
    from msgspec import to_builtins

    from reader_edge.models.model_source import find_stored, signature_notice
    from reader_edge.terminal.console import byte_progress, print_pairs
    from reader_edge_runtime.drafting.sources.successor_store import SuccessorTable
    from reader_edge_runtime.drafting.sources.warmup_answers import WarmupAnswers
    from reader_edge_runtime.errors import PackageError
    from reader_edge_runtime.package.manifest import MANIFEST_NAME, TOKENIZER_NAME
    from reader_edge_runtime.package.model_package import ModelPackage
    from reader_edge_runtime.text.tokenizer import Tokenizer

    path = find_stored(model)
    if path.is_file():
        summary = _gguf_summary(path)
        if as_json:
            click.echo(json.dumps(asdict(summary)))
        else:
            print_pairs(_gguf_pairs(summary))
        return
    if (path / "config.json").is_file() and not (path / MANIFEST_NAME).exists():
        raise PackageError(f"'{path}' is a model to be exported, not a package: `reader-edge export` makes one of it.")
    package = ModelPackage.open(path)
    with byte_progress("Checking the model") as on_progress:
        package.check_files(on_progress)
    warmup_answers = WarmupAnswers.of_package(package)
    table = None
    if TOKENIZER_NAME in package.manifest.files:  # all but the first stages of a pipeline
        table = SuccessorTable.of_package(package, Tokenizer.open(package).fingerprint())
    if not as_json:
        width = package.manifest.hidden_size
        states = f"{width} numbers a token"
        drafting = [
            ("hidden states", "none: no speculator of train-drafter can read it" if width is None else states),
            ("speculator", _speculator_text(package.manifest.speculator)),
            ("successor table", _table_text(package.manifest, table)),
            ("own answers", _warmup_answers_text(package.folder, warmup_answers)),
            ("tuned", _tuning_text(package.manifest)),
        ]
        signed = [("signature", signature_notice(package) or "none")]
        print_pairs([*_pairs(package.manifest), *drafting, *signed])
        return
    fields = to_builtins(package.manifest) | {
        "folder": str(package.folder),
        "num_bytes": package.manifest.num_bytes,
        "kv_bytes_per_token": package.manifest.kv_row_bytes,
        "state_bytes_per_text": package.manifest.state_bytes,
        "checksums_verified": True,
        "signature": signature_notice(package),
        "is_tuned": package.manifest.is_tuned,
        "num_table_tokens": 0 if table is None else len(table),
        "num_own_answer_tokens": 0 if warmup_answers is None else warmup_answers.num_tokens,
    }
    click.echo(json.dumps(fields))


def _layers_text(manifest: "Manifest") -> str:
    part = manifest.stage
    if part is None:
        return str(manifest.num_layers)
    last = part.first_layer + manifest.num_layers - 1
    return f"{part.first_layer} to {last} of {part.num_model_layers}: stage {part.number} of {part.num_stages}"


def _pairs(manifest: "Manifest") -> list[tuple[str, str]]:
    from reader_edge.terminal.export_report import check_pairs, kept_pairs, sampling_pairs
    from reader_edge.terminal.formatting import readable_size
    from reader_edge_runtime.package.manifest import CHAT_TEMPLATE_NAME

    files = [(f"  {name}", readable_size(entry.num_bytes)) for name, entry in manifest.files.items()]
    checks = [(f"  {name}", value) for name, value in check_pairs(manifest.checks)]
    cached = manifest.cached_layers.values()
    kv_heads, head_sizes = (
        " or ".join(map(str, dict.fromkeys(sizes)))
        for sizes in ((layer.num_kv_heads for layer in cached), (layer.head_dim for layer in cached))
    )
    whole = readable_size(manifest.max_context * manifest.kv_row_bytes)
    versions = [f"{name} {version}" for name, version in manifest.exported_with.items() if version != "unknown"]
    return [
        ("source", manifest.source_name),
        ("fingerprint", manifest.source_fingerprint),
        ("architecture", manifest.architecture),
        ("layers", _layers_text(manifest)),
        *_expert_pairs(manifest.num_experts, manifest.num_experts_per_token),
        ("attention heads", f"{manifest.num_heads}, {kv_heads} for keys and values"),
        ("head size", head_sizes),
        ("vocabulary", str(manifest.vocab_size)),
        ("max context", f"{manifest.max_context} tokens"),
        ("sliding window", "none" if manifest.sliding_window is None else f"{manifest.sliding_window} tokens"),
        ("precision", manifest.precision),
        *kept_pairs(manifest.kept_types),
        *([("bits", _BITS_OF_KEPT)] if manifest.precision == "keep" else []),
        ("attention", manifest.attention),
        ("KV cache", f"{readable_size(manifest.kv_row_bytes)} a token ({manifest.kv_dtype}), {whole} of all context"),
        *([("recurrent states", f"{readable_size(manifest.state_bytes)} a text")] if manifest.has_states else []),
        *([] if manifest.images is None else [("images", f"seen as {manifest.images.rules.family} does")]),
        ("adapters", "each request its own" if manifest.adapted_products else "none"),
        ("chat template", "yes" if CHAT_TEMPLATE_NAME in manifest.files else "no"),
        *sampling_pairs(manifest.sampling),
        *([("exported with", ", ".join(versions))] if versions else []),
        ("size", readable_size(manifest.num_bytes)),
        ("files", "checksums verified"),
        *files,
        ("checks", "measured by the export" if checks else "none"),
        *checks,
    ]


def _speculator_text(part: "SpeculatorPart | None") -> str:
    if part is None:
        return "none"
    names = {"mlp": "MLP", "eagle3": "EAGLE-3", "mtp": "MTP", "dflash": "DFlash", "assistant": "Gemma 4's assistant"}
    name = names[part.format]
    name += "" if part.block is None else f" of {part.block.max_drafts} tokens a pass"
    layers = {0: "no attention", 1: "a layer"}.get(part.num_layers, f"{part.num_layers} layers")
    if part.lent is not None:
        layers = f"keys and values of the model's layers {' and '.join(map(str, part.lent.layers))}"
    return f"{name}, {layers}, {part.draft_vocab_size} tokens, reads states {', '.join(map(str, part.state_ids))}"


def _expert_pairs(num_experts: int | None, num_experts_per_token: int | None) -> list[tuple[str, str]]:
    """Of a mixture; none of other models."""
    is_mixture = num_experts and num_experts_per_token
    return [("experts", f"{num_experts}, {num_experts_per_token} a token")] if is_mixture else []


def _table_text(manifest: "Manifest", table: "SuccessorTable | None") -> str:
    from reader_edge.terminal.formatting import readable_size
    from reader_edge_runtime.package.manifest import SUCCESSORS_NAME

    if table is None:
        return "none"
    size = readable_size(manifest.files[SUCCESSORS_NAME].num_bytes)
    return f"{table.token_ids.shape[1]} successors of {len(table)} tokens, {size} ({SUCCESSORS_NAME})"


def _warmup_answers_text(folder: "Path", warmup_answers: "WarmupAnswers | None") -> str:
    """Of what lies beside the package's own files, and in no manifest."""
    from reader_edge.terminal.formatting import readable_size
    from reader_edge_runtime.drafting.sources.warmup_answers import WARMUP_ANSWERS_NAME

    if warmup_answers is None:
        return "none: `reader-edge warm` writes them"
    size = readable_size((folder / WARMUP_ANSWERS_NAME).stat().st_size)
    return f"{warmup_answers.num_tokens} tokens in {len(warmup_answers.texts)} answers, {size} ({WARMUP_ANSWERS_NAME})"


def _tuning_text(manifest: "Manifest") -> str:
    if not manifest.is_tuned:
        return "not tuned: `reader-edge tune` measures its quality, and lets it draft better"
    if not manifest.is_measured:
        return "yes, but not measured: `reader-edge tune --source` compares it with what it was exported from"
    return "yes"


def _gguf_summary(path: "Path") -> "GgufSummary":
    from reader_edge_export.libraries import check_installation

    check_installation(["gguf"], "Reading GGUF files")
    from reader_edge_export.sources.gguf.summary import summary_of

    return summary_of(path)


def _gguf_pairs(summary: "GgufSummary") -> list[tuple[str, str]]:
    from reader_edge.terminal.export_report import sampling_pairs
    from reader_edge.terminal.formatting import readable_size

    def or_unknown(value: object, unit: str = "") -> str:
        return "not given" if value in (None, "") else f"{value}{unit}"

    tensors = [
        (f"  {kind}", f"{group.num_tensors} tensors, {group.num_values:,} values, {readable_size(group.num_bytes)}")
        for kind, group in summary.tensors.items()
    ]
    return [
        ("name", or_unknown(summary.name)),
        ("licence", or_unknown(summary.licence)),
        ("architecture", or_unknown(summary.architecture)),
        ("parameters", f"{summary.num_parameters:,}"),
        ("layers", or_unknown(summary.num_layers)),
        *_expert_pairs(summary.num_experts, summary.num_experts_per_token),
        ("attention heads", f"{or_unknown(summary.num_heads)}, {or_unknown(summary.num_kv_heads)} for keys and values"),
        ("hidden size", or_unknown(summary.hidden_size)),
        ("vocabulary", or_unknown(summary.vocab_size)),
        ("max context", or_unknown(summary.context, " tokens")),
        ("tokenizer", or_unknown(summary.tokenizer)),
        *sampling_pairs(summary.sampling),
        ("chat template", "yes" if summary.has_chat_template else "no"),
        ("size", readable_size(summary.num_bytes)),
        ("tensors", str(sum(group.num_tensors for group in summary.tensors.values()))),
        *tensors,
        ("can be exported", _exportable(summary)),
    ]


def _exportable(summary: "GgufSummary") -> str:
    if summary.refusal is not None:
        return f"no: {summary.refusal}"
    return "yes" if summary.is_compared else "yes by its header; whether its tensors fit, the extra 'export' finds out"
