"""`reader-edge export`: a Hugging Face model or a GGUF file becomes a package."""

from pathlib import Path

import click

from reader_edge.commands import options
from reader_edge.terminal.command_help import helpful_command
from reader_edge.terminal.shell_completion import MODEL


@helpful_command("Export a model to a package.", "reader-edge export qwen2.5:0.5b qwen --precision int4")
@click.argument("model", type=MODEL)
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--precision",
    type=click.Choice(["auto", "keep", "fp32", "fp16", "bf16", "int8", "int8-a16", "int4"]),
    default="auto",
    show_default=True,
    help="'keep' leaves weights as they are: those of GGUF files in Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K and "
    "MXFP4, and experts in MXFP4. 'auto' is 'keep' if most weights are in these types, else 'int8'. 'int8-a16' is "
    "closer to the source than 'int8', and up to twice as slow.",
)
@click.option(
    "--attention",
    type=click.Choice(["exact", "fast", "portable", "portable-exact"]),
    help="'exact', the default, keeps drafting lossless bit for bit. 'fast' is one fused operator. 'portable' is "
    "standard ONNX operators only, for engines that cannot update a KV cache; 'portable-exact' the same in fp32, "
    "lossless.",
)
@click.option(
    "--kv",
    type=click.Choice(["fp32", "fp16", "int8"]),
    help="Type of the KV cache with attention 'exact'. 'int8' takes about a quarter of the memory of 'fp32' and is "
    "read faster; it is for keep, int8, int8-a16 and int4 only, and their default. 'fp16' takes half.",
)
@click.option(
    "--max-context",
    type=options.IntegerRange(16),
    help="Tokens of prompt and answer together. Default: the model's own limit.",
)
@click.option(
    "--calibration-text",
    type=options.FILE,
    help="Text to calibrate int8, int8-a16 and int4 on. Default: bundled texts.",
)
@click.option(
    "--check",
    type=click.Choice(["none", "quick", "full"]),
    default="full",
    show_default=True,
    help="How to compare the package with its source. 'full' measures for a minute or two, and makes the table of "
    "likely next tokens that drafts come from; 'quick' takes a tenth of the text and makes no table; 'none' compares "
    "nothing.",
)
@click.option(
    "--engine",
    type=click.Choice(["onnxruntime", "iree"]),
    default="onnxruntime",
    show_default=True,
    help="What the package is for besides ONNX Runtime: 'iree' adds MLIR and compiled modules, in fp32 with attention "
    "'portable-exact'.",
)
@click.option(
    "--target",
    type=click.Choice(["x86-64-v4", "x86-64-v3", "aarch64"]),
    help="What IREE's modules are for: a kind of processor. Default: this machine's processor.",
)
@click.option(
    "--speculator",
    help="Include a trained speculator: a folder of EAGLE-3 or MTP, or 'auto' for the layers for "
    "later tokens (mtp.*) of MODEL itself, as Qwen3.5 has them. Refused for devices, portable graphs and IREE.",
)
@click.option("--force", is_flag=True, help="Replace an existing package.")
def export(
    model: str,
    out: Path,
    precision: str,
    attention: str | None,
    kv: str | None,
    max_context: int | None,
    calibration_text: Path | None,
    check: str,
    engine: str,
    target: str | None,
    speculator: str | None,
    force: bool,
) -> None:
    """Export MODEL to a package at OUT, and print OUT.

    MODEL is a Hugging Face folder, a GGUF file, or a name (`reader-edge pull --help`).
    """
    from reader_edge.exported import tell_place
    from reader_edge.model_source import find_source
    from reader_edge.terminal.checks import (
        chat_pairs,
        check_pairs,
        end_pairs,
        glossary,
        kept_pairs,
        left_out_pairs,
        sampling_pairs,
    )
    from reader_edge.terminal.console import pairs_table, print_table, stage_pairs, work_progress
    from reader_edge.terminal.sizes import readable_size
    from reader_edge_export.options import ExportOptions, default_attention
    from reader_edge_export.package.package_folder import check_target
    from reader_edge_export.pipeline import export_model

    options = ExportOptions(
        precision=precision,
        attention=attention or default_attention(engine),
        max_context=max_context,
        force=force,
        calibration_text=calibration_text,
        kv=kv,
        check=check,
        engine=engine,
        target=target,
        speculator=speculator,
    )
    check_target(out.absolute(), force)  # before a download
    source = find_source(model)
    tell_place(source)
    with work_progress(f"Exporting {model}") as work:
        report = export_model(
            source.path,
            out,
            options,
            on_stage=work.on_stage,
            name=source.name,
            tell=work.tell,
            on_share=work.on_progress,
        )
    pairs = [
        ("source weights", ", ".join(report.weight_types) or "unknown"),
        ("precision", report.precision),
        *left_out_pairs(report.left_out),
        *kept_pairs(report.kept_types, report.other_types),
        ("attention", report.attention),
        *sampling_pairs(report.sampling, report.other_choices),
        ("size", readable_size(report.num_bytes)),
        *end_pairs(report.ends),
        *check_pairs(report.checks),
        *chat_pairs(report.suited_chats, report.different_chats, report.mended_chats),
        *stage_pairs(report.stage_seconds),
    ]
    print_table(pairs_table("Exported", pairs))
    click.echo(f"What these words mean: '{glossary()}'.", err=True)
    click.echo("'reader-edge warm' lets it answer some instructions now, to draft from its answers later.", err=True)
    for warning in filter(None, (report.warning, report.speculator_warning)):
        click.echo(f"Warning: {warning}", err=True)
    click.echo(report.out)
