"""One export from a source to the files of a package. Imports PyTorch and its company: see `pipeline`."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata
from itertools import chain
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from reader_edge_export.calibration import Calibration, calibrate, max_calibration_tokens
from reader_edge_export.chat_check import ChatCheck, check_chats
from reader_edge_export.commit_graph import write_commit_graph
from reader_edge_export.graph import TOP_K, write_graph
from reader_edge_export.kept_types import KeptTypes
from reader_edge_export.layered_model import LayeredModel
from reader_edge_export.options import CALIBRATED, ExportOptions
from reader_edge_export.parity import TreeCase, check_greedy, check_tree_against_decoding, check_tree_logits
from reader_edge_export.quality import check_quality, max_quality_tokens, source_figures
from reader_edge_export.quantize.half import write_widened
from reader_edge_export.sensitivity import measure_sensitivity
from reader_edge_export.sources.chat_templates import special_tokens_of
from reader_edge_export.sources.module import hidden_size_of, vocab_size_of
from reader_edge_export.sources.source import Source
from reader_edge_export.sources.source_model import SourceModel
from reader_edge_export.sources.tokenizer import check_chat_template, text_tokenizer, write_tokenizer
from reader_edge_export.stages import Stages
from reader_edge_export.successors import measure_successors, num_table_tokens
from reader_edge_export.texts.text_set import MAX_SEQUENCE, TextSet
from reader_edge_export.tracing import AttentionLayer
from reader_edge_export.tree_config import sliding_window_of, trace_model
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.package.manifest import (
    COMMIT_NAME,
    GRAPH_NAME,
    HALF_PRECISIONS,
    QUANTIZED_PRECISIONS,
    SUCCESSORS_NAME,
    FileEntry,
    Manifest,
    file_entry,
    write_manifest,
)
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.text.tokenizer import Tokenizer

_MIN_QUICK_TOKENS = 128
_VERSIONS = ("torch", "transformers", "optimum", "onnx", "onnxruntime", "reader-edge")


class PackageExport:
    """One export of a checked source into an empty folder; calibration: what rounding may learn from.

    other_types: after `run`, how many matrices of each type could not stay as they are, where others do. chats: after
    `run`, how the chat template was found to render conversations.
    """

    def __init__(
        self, source: Source, options: ExportOptions, calibration: TextSet, folder: Path, stages: Stages
    ) -> None:
        self._source = source
        self._options = options
        self._calibration = calibration
        self._folder = folder
        self._stages = stages
        self.other_types: Mapping[str, int] = {}
        self.chats = ChatCheck()

    def run(self) -> Manifest:
        with self._stages.enter("reading the source"):
            model = self._source.open_model()
            tokenizer = self._source.load_tokenizer(vocab_size_of(model.skeleton))
            text = text_tokenizer(tokenizer)
            check_chat_template(text, self._source.max_context)
            self.chats = check_chats(tokenizer, text)
        kept = KeptTypes.of(model) if self._options.precision == "keep" else KeptTypes()
        self.other_types = kept.num_others
        with self._stages.enter("tracing"):
            traced = self._folder / "trace" / "traced.onnx"
            traced.parent.mkdir()
            layers = trace_model(model, self._source.max_context, traced)
            self._source.check_layers(layers)
        with (traced.parent / "moments").open("w+b") as moments:
            calibration = Calibration(moments)
            if self._options.precision in QUANTIZED_PRECISIONS and kept.needs_calibration:
                with self._stages.enter("calibrating"):
                    self._calibrate(model, text, calibration)
            with self._stages.enter("rounding" if self._options.precision in CALIBRATED else "storing"):
                files = write_graph(traced, self._folder, self._options, calibration, model)
        shutil.rmtree(traced.parent)
        with self._stages.enter("writing the package"):
            write_tokenizer(tokenizer, self._folder)
            if self._options.is_for_devices:
                layer = layers[0]
                write_commit_graph(
                    self._folder / COMMIT_NAME, self._options.kv_dtype, layer.num_kv_heads, layer.head_dim
                )
            manifest = self._manifest(model, tokenizer, layers, kept, files)
        if self._options.check != "none":
            manifest = self._checked(manifest, model, text)
        write_manifest(self._folder, manifest)
        return manifest

    def _checked(self, manifest: Manifest, model: SourceModel, text: Tokenizer) -> Manifest:
        with self._stages.enter("checking against the source"):
            target = self._checked_target(ModelPackage(self._folder, manifest))
            manifest = replace(manifest, checks=self._check(target, model, text) | self.chats.figures())
        if self._options.check == "quick":
            return manifest
        with self._stages.enter("asking for likely successors"):
            path = self._write_successors(target, text, model.num_parameters)
        return replace(manifest, files={**manifest.files, path.name: file_entry(path)})

    def _calibrate(self, model: SourceModel, text: Tokenizer, calibration: Calibration) -> None:
        max_tokens = max_calibration_tokens(model.num_parameters)
        sequences = self._sequences(self._calibration, text, max_tokens)
        layered = LayeredModel(model)
        calibrate(layered, sequences, calibration)
        if self._options.precision == "int4":
            measure_sensitivity(layered, sequences, calibration)

    def _manifest(
        self,
        model: SourceModel,
        tokenizer: PreTrainedTokenizerFast,
        layers: list[AttentionLayer],
        kept: KeptTypes,
        files: Mapping[str, FileEntry],
    ) -> Manifest:
        eos_token_ids, bos_token_id = self._source.special_token_ids(tokenizer)
        return Manifest(
            architecture=self._source.architecture,
            num_heads=layers[0].num_heads,
            num_kv_heads=layers[0].num_kv_heads,
            head_dim=layers[0].head_dim,
            num_layers=len(layers),
            vocab_size=vocab_size_of(model.skeleton),
            top_k=min(TOP_K, vocab_size_of(model.skeleton)),
            max_context=self._source.max_context,
            sliding_window=sliding_window_of(layers),
            precision=self._options.precision,
            attention=self._options.attention,
            kv_dtype=self._options.kv_dtype,
            eos_token_ids=eos_token_ids,
            bos_token_id=bos_token_id,
            special_tokens=special_tokens_of(tokenizer),
            source_name=self._source.short_name,
            source_fingerprint=self._source.fingerprint(),
            exported_with={name: _version(name) for name in _VERSIONS},
            checks={},
            files={path.name: files.get(path.name) or file_entry(path) for path in sorted(self._folder.iterdir())},
            kept_types=kept.num_kept,
            hidden_size=None if self._options.is_for_devices else hidden_size_of(model.skeleton),
        )

    def _check(self, target: HostTarget, source: SourceModel, text: Tokenizer) -> dict[str, float]:
        model = LayeredModel(source)
        max_tokens = max_quality_tokens(source.num_parameters)
        if self._options.check == "quick":
            max_tokens = max(_MIN_QUICK_TOKENS, max_tokens // 10)
        sequences = self._sequences(TextSet.bundled("held_out"), text, max_tokens)
        case = TreeCase.draw(target.manifest, list(chain.from_iterable(sequences)))
        checks = check_tree_against_decoding(target, case)
        if self._options.precision in ("fp32", *HALF_PRECISIONS):
            checks |= check_tree_logits(target, model, case)
        if self._options.precision == "fp32" and self._options.kv_dtype == "float32":
            checks |= check_greedy(target, model, case.prompts[0])
        else:
            checks |= check_quality(target, model, sequences)
            checks |= source_figures(self._source.weight_types)
        return checks

    def _write_successors(self, target: HostTarget, text: Tokenizer, num_parameters: int) -> Path:
        num_tokens = num_table_tokens(target.manifest.vocab_size, num_parameters)
        path = self._folder / SUCCESSORS_NAME
        measure_successors(target, text, num_tokens).write(path, text.fingerprint())
        return path

    def _sequences(self, texts: TextSet, text: Tokenizer, max_tokens: int) -> list[list[int]]:
        """Token ids of texts as the model meets them, none longer than its context."""
        max_length = min(MAX_SEQUENCE, self._source.max_context)
        return texts.token_sequences(text, max_length, max_tokens)

    def _checked_target(self, package: ModelPackage) -> HostTarget:
        """The package on the CPU provider; a bf16 one by its fp32 twin, since that provider multiplies no bf16."""
        if self._options.precision != "bf16":
            return HostTarget.open(package)
        twin = self._folder / "twin"
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
