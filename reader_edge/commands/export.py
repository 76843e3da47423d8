"""`reader-edge export`: a Hugging Face model or a GGUF file becomes a package."""

import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import click

from reader_edge.commands import options
from reader_edge.terminal.command_help import helpful_command
from reader_edge.terminal.shell_completion import MODEL
from reader_edge_runtime.errors import NoLaterLayersError
from reader_edge_runtime.package.manifest import ATTENTIONS, KV_TYPES, PRECISIONS


class _AdapterPath(click.Path):
    """Of an adapter to merge, which has no name as one beside a model has."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if "=" in str(value) and not os.path.exists(value):
            self.fail(f"{value!r} does not exist. A merged adapter has no name: give its path alone.", param, ctx)
        return super().convert(value, param, ctx)


@dataclass(frozen=True, slots=True)
class ExportArguments:
    """What a user says of ExportOptions.

    precision: 'keep' leaves weights as they are: those of GGUF files in Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K,
      IQ4_NL, IQ4_XS and MXFP4, and experts in MXFP4. 'auto' is 'keep' if most weights are in these types, else 'int8'.
      'int8-a16' is closer to the source than 'int8', and up to twice as slow.
    attention: 'exact', the default, keeps drafting lossless bit for bit. 'fast' is one fused operator. 'portable' is
      standard ONNX operators only, for engines that cannot update a KV cache; 'portable-exact' the same in fp32,
      lossless.
    kv: Type of the KV cache with attention 'exact'. 'int8' takes about a quarter of the memory of 'fp32' and is read
      faster; it is for keep, int8, int8-a16 and int4 only, and their default. 'fp16' takes half.
    max_context: Tokens of prompt and answer together. Default: the model's own limit.
    chat_template: Take the chat template in this Jinja file, for a model without one or in place of its own.
    calibration_text: Text to calibrate int8, int8-a16 and int4 on. Default: bundled texts.
    check: How to compare the package with its source. 'full' measures for a minute or two, and makes the table of
      likely next tokens that drafts come from; 'quick' takes a tenth of the text and makes no table; 'none' compares
      nothing.
    engine: What the package is for besides ONNX Runtime: 'iree' adds MLIR and compiled modules, in fp32 with attention
      'portable-exact'.
    target: What IREE's modules are for: a kind of processor. Default: this machine's processor.
    speculator: Include a trained speculator: a folder of DFlash, DSpark, MLP, EAGLE-3, MTP or Gemma 4's assistant, or
      'auto' for the one that is published for MODEL, where it was fetched, else the layers for later tokens (mtp.*) of
      MODEL itself, as Qwen3.5 has them. Refused for devices, portable graphs and IREE.
    --no-images has_images: Leave out what sees images, of a model of images and texts.
    mmproj: Take what sees images for the model of a GGUF file from this one. Default: the one mmproj*.gguf beside it.
    image_precision: Of what sees images. Default: as the text model's, and 'int8' beside 'int4'.
    adapter: Merge a LoRA or DoRA into the weights: a folder that PEFT wrote, or a GGUF file of an adapter. Of a GGUF
      file's weights, those that it changes do not stay as they are, so that 'auto' is 'int8'.
    takes_adapters: Let the package take LoRA adapters while it runs, each request its own, on CPUs with native kernels
      alone. Passes without one take a percent or two longer for it.
    force: Replace an existing package.
    """

    precision: Annotated[str, ("auto", *PRECISIONS)] = "auto"
    attention: Annotated[str | None, ATTENTIONS] = None
    kv: Annotated[str | None, tuple(KV_TYPES)] = None
    max_context: Annotated[int | None, options.IntegerRange(16)] = None
    chat_template: Annotated[Path | None, options.FILE] = None
    calibration_text: Annotated[Path | None, options.FILE] = None
    check: Annotated[str, ("none", "quick", "full")] = "full"
    engine: Annotated[str, ("onnxruntime", "iree")] = "onnxruntime"
    target: Annotated[str | None, ("x86-64-v4", "x86-64-v3", "aarch64")] = None
    speculator: str | None = None
    has_images: bool = True
    mmproj: Annotated[Path | None, options.FILE] = None
    image_precision: Annotated[str, ("auto", "fp32", "int8", "int8-a16")] = "auto"
    adapter: Annotated[Path | None, _AdapterPath(exists=True, path_type=Path)] = None
    takes_adapters: bool = False
    force: bool = False


@helpful_command("Export a model to a package.", "reader-edge export qwen2.5:0.5b qwen --precision int4")
@click.argument("model", type=MODEL)
@click.argument("out", type=click.Path(path_type=Path))
@options.of(ExportArguments)
@options.grouped(wanted=ExportArguments)
def export(model: str, out: Path, wanted: ExportArguments) -> None:
    """Export MODEL to a package at OUT, and print OUT.

    MODEL is a Hugging Face folder, a GGUF file, or a name (`reader-edge pull --help`).
    """
    from reader_edge.models.exported import show_path
    from reader_edge.models.model_source import find_source
    from reader_edge.models.speculators import found_speculator, nothing_to_take, to_fetch
    from reader_edge.terminal.console import pairs_table, phase_pairs, print_table, work_progress
    from reader_edge.terminal.export_report import (
        adapter_pairs,
        chat_pairs,
        check_pairs,
        end_pairs,
        glossary,
        kept_pairs,
        left_out_pairs,
        sampling_pairs,
    )
    from reader_edge.terminal.formatting import readable_size
    from reader_edge_export.options import ExportOptions, default_attention
    from reader_edge_export.package.package_folder import check_target
    from reader_edge_export.pipeline import export_model
    from reader_edge_export.speculators.formats.find import AUTO

    attention = wanted.attention or default_attention(wanted.engine)
    options = ExportOptions(**asdict(replace(wanted, attention=attention)))
    check_target(out.absolute(), wanted.force)  # before a download
    source = find_source(model)
    show_path(source)
    if options.speculator is not None:
        options = replace(options, speculator=found_speculator(options.speculator, source))
    try:
        with work_progress(f"Exporting {model}") as work:
            report = export_model(
                source.path,
                out,
                options,
                on_phase=work.on_phase,
                name=source.name,
                on_message=work.on_message,
                on_share=work.on_progress,
            )
    except NoLaterLayersError:
        raise NoLaterLayersError(nothing_to_take(source)) from None
    pairs = [
        ("source weights", ", ".join(report.weight_types) or "unknown"),
        ("precision", report.precision),
        *adapter_pairs(report.adapter),
        *left_out_pairs(report.left_out),
        *kept_pairs(report.kept_types, report.other_types),
        ("attention", report.attention),
        *sampling_pairs(report.sampling, report.other_choices),
        ("size", readable_size(report.num_bytes)),
        *end_pairs(report.ends),
        *check_pairs(report.checks),
        *chat_pairs(report.adapted_chats, report.different_chats, report.repaired_chats),
        *phase_pairs(report.phase_seconds),
    ]
    print_table(pairs_table("Exported", pairs))
    click.echo(f"What these words mean: '{glossary()}'.", err=True)
    click.echo("'reader-edge warm' lets it answer some instructions now, to draft from its answers later.", err=True)
    if options.speculator == AUTO and (commands := to_fetch(source)):
        click.echo(f"A speculator is published for this model too: {commands} fetches one.", err=True)
    for warning in filter(None, (report.warning, report.speculator_warning)):
        click.echo(f"Warning: {warning}", err=True)
    click.echo(report.out)
