"""export_model(): load -> trace -> lower -> store -> check -> one package, or none.

Nothing heavy is imported before the source and the target have been checked.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING

from reader_edge_export.calibration import calibration_text
from reader_edge_export.options import ExportOptions, ExportReport
from reader_edge_export.package_folder import check_target, new_package
from reader_edge_export.quiet import quiet_libraries
from reader_edge_export.sources.hugging_face import Source, find_source
from reader_edge_runtime.errors import InstallationError
from reader_edge_runtime.package.checksums import file_entry
from reader_edge_runtime.package.manifest import COMMIT_NAME, GRAPH_NAME, HALF_PRECISIONS, FileEntry, Manifest
from reader_edge_runtime.package.manifest_file import write_manifest
from reader_edge_runtime.package.model_package import ModelPackage

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from reader_edge_export.tracing import AttentionLayer
    from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget

_NEEDED = ("torch", "transformers", "optimum.exporters.onnx", "onnx", "onnx_ir", "onnxruntime")
_VERSIONS = ("torch", "transformers", "optimum", "onnx", "onnxruntime", "reader-edge")
_TRACE_FOLDER = "trace"
_TWIN_FOLDER = "twin"


def export_model(
    source: str | Path,
    out: str | Path,
    options: ExportOptions | None = None,
    on_stage: Callable[[str], None] | None = None,
) -> ExportReport:
    """Export a Hugging Face decoder (a folder, or a hub id like "owner/name") to a model package at `out`.

    on_stage: called with a short description when a stage begins. A failure of any kind leaves nothing behind, and an
    existing package as it was. Raises InstallationError, ExportError (or a child), TokenizerError.
    """
    options = options or ExportOptions()
    folder = Path(os.path.abspath(out))  # also gives "." a name
    check_installation()
    check_target(folder, options.force)
    stages = _Stages(on_stage)
    with quiet_libraries():
        with stages.enter("checking the source"):
            found = find_source(source, options.max_context)
            text = calibration_text(options.calibration_text)
        with new_package(folder, options.force) as partial:
            manifest = _Export(found, options, text, partial, stages).run()
    num_bytes = sum(entry.num_bytes for entry in manifest.files.values())
    return ExportReport(Path(out), num_bytes, options.precision, options.attention, manifest.checks, stages.seconds)


def check_installation() -> None:
    """Raise InstallationError unless the packages of the extra "export" are here."""
    missing = [name for name in _NEEDED if not _is_installed(name)]
    if missing:
        raise InstallationError(f"Exporting needs {missing[0]}, which is missing: pip install 'reader-edge[export]'.")


def _is_installed(name: str) -> bool:
    try:
        return util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


class _Stages:
    """Announces and times the stages of an export."""

    def __init__(self, on_stage: Callable[[str], None] | None) -> None:
        self._on_stage = on_stage
        self.seconds: dict[str, float] = {}

    @contextmanager
    def enter(self, name: str) -> Iterator[None]:
        if self._on_stage is not None:
            self._on_stage(name)
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start


class _Export:
    """One export into an empty folder."""

    def __init__(self, source: Source, options: ExportOptions, text: str, folder: Path, stages: _Stages) -> None:
        self._source = source
        self._options = options
        self._text = text
        self._folder = folder
        self._stages = stages

    def run(self) -> Manifest:
        from reader_edge_export.commit_graph import write_commit_graph
        from reader_edge_export.sources.module import load_model, vocab_size_of
        from reader_edge_export.sources.tokenizer import load_tokenizer, write_tokenizer

        with self._stages.enter("loading the model"):
            model = load_model(self._source)
            tokenizer = load_tokenizer(self._source, vocab_size_of(model))
        layers = self._write_graph(model)
        with self._stages.enter("writing the package"):
            write_tokenizer(tokenizer, self._folder)
            manifest = self._manifest(model, tokenizer, layers)
            if self._options.is_for_devices:
                write_commit_graph(manifest, self._folder / COMMIT_NAME)
                manifest = replace(manifest, files=self._files())
            write_manifest(self._folder, manifest)
        with self._stages.enter("checking against the source"):
            manifest = replace(manifest, checks=self._check(model, tokenizer))
            write_manifest(self._folder, manifest)
        return manifest

    def _write_graph(self, model: PreTrainedModel) -> list[AttentionLayer]:
        from reader_edge_export.graph import write_graph
        from reader_edge_export.tree_config import trace_model

        traced = self._folder / _TRACE_FOLDER / "traced.onnx"
        with self._stages.enter("tracing"):
            traced.parent.mkdir()
            layers = trace_model(model, self._source.max_context, traced)
        with self._stages.enter("lowering"):
            write_graph(traced, self._folder, self._options)
            shutil.rmtree(traced.parent)
        return layers

    def _manifest(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, layers: list[AttentionLayer]
    ) -> Manifest:
        from reader_edge_export.graph import TOP_K
        from reader_edge_export.sources.module import vocab_size_of
        from reader_edge_export.sources.tokenizer import special_token_ids
        from reader_edge_export.tree_config import sliding_window_of

        eos_token_ids, bos_token_id = special_token_ids(self._source, tokenizer)
        return Manifest(
            architecture=self._source.architecture,
            num_heads=layers[0].num_heads,
            num_kv_heads=layers[0].num_kv_heads,
            head_dim=layers[0].head_dim,
            num_layers=len(layers),
            vocab_size=vocab_size_of(model),
            top_k=min(TOP_K, vocab_size_of(model)),
            max_context=self._source.max_context,
            sliding_window=sliding_window_of(layers),
            precision=self._options.precision,
            attention=self._options.attention,
            kv_dtype=HALF_PRECISIONS.get(self._options.precision, "float32"),
            eos_token_ids=eos_token_ids,
            bos_token_id=bos_token_id,
            source_name=self._source.short_name,
            source_fingerprint=self._source.fingerprint(),
            exported_with={name: _version(name) for name in _VERSIONS},
            checks={},
            files=self._files(),
        )

    def _files(self) -> dict[str, FileEntry]:
        return {path.name: file_entry(path) for path in sorted(self._folder.iterdir())}

    def _check(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> dict[str, float]:
        from reader_edge_export.parity import (
            MAX_RELATIVE_ERROR,
            MAX_RELATIVE_ERROR_HALF,
            TreeCase,
            check_greedy,
            check_tree_against_decoding,
            check_tree_logits,
        )
        from reader_edge_export.quality import check_quality

        package = ModelPackage.open(self._folder)
        target = self._checked_target(package)
        text_ids = tokenizer.encode(self._text, add_special_tokens=False)
        case = TreeCase.draw(package, text_ids)
        checks = check_tree_against_decoding(target, case)
        if self._options.precision == "fp32":
            checks |= check_tree_logits(target, model, case, MAX_RELATIVE_ERROR)
            checks |= check_greedy(target, model, case.prompts[0])
        else:
            if self._options.precision in HALF_PRECISIONS:
                checks |= check_tree_logits(target, model, case, MAX_RELATIVE_ERROR_HALF)
            checks |= check_quality(target, model, text_ids)
        return checks

    def _checked_target(self, package: ModelPackage) -> HostTarget:
        """The package on the CPU provider; a bf16 one by its fp32 twin, since that provider multiplies no bf16."""
        from reader_edge_export.widened import write_widened
        from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget

        if self._options.precision != "bf16":
            return HostTarget.open(package)
        twin = self._folder / _TWIN_FOLDER
        twin.mkdir()
        write_widened(package.path(GRAPH_NAME), twin)
        target = HostTarget.open(ModelPackage(twin, replace(package.manifest, kv_dtype="float32")))
        shutil.rmtree(twin)
        return target


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "unknown"
