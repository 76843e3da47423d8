"""One export from a source to the files of a package. It imports PyTorch, so `pipeline` imports it late."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from transformers import PreTrainedTokenizerFast

from reader_edge_export.calibration.calibrate import calibrate, expert_input_sizes, input_sizes, max_calibration_tokens
from reader_edge_export.calibration.calibration import Calibration
from reader_edge_export.calibration.sensitivity import gradient_sizes, measure_sensitivity
from reader_edge_export.checks.chat_check import ChatCheck, check_chats
from reader_edge_export.checks.package_check import CachedCheck, PackageCheck, has_checks
from reader_edge_export.images.image_export import ImageExport
from reader_edge_export.journal import MOMENTS_NAME, WORK_NAME, Journal
from reader_edge_export.mlir import NUM_STEPS, check_modules, write_mlir
from reader_edge_export.operators.low_rank import AdaptedProducts
from reader_edge_export.options import IREE, ExportOptions
from reader_edge_export.package.package_size import PackageSize, check_room
from reader_edge_export.package.source_files import version_of
from reader_edge_export.package_graph import TOP_K, write_commit_graph, write_graph
from reader_edge_export.progress import Progress
from reader_edge_export.quantize.gguf_products import StoredTypes
from reader_edge_export.sources.adapters.merged_weights import merged
from reader_edge_export.sources.folder.folder_tokenizer import read_template
from reader_edge_export.sources.image_part import ImagePart
from reader_edge_export.sources.layered_model import LayeredModel
from reader_edge_export.sources.source import Source
from reader_edge_export.sources.source_model import SourceModel, hidden_size_of, vocab_size_of
from reader_edge_export.sources.tokenizer import check_chat_template, special_tokens_of, text_tokenizer, write_tokenizer
from reader_edge_export.speculators.formats.folders import SpeculatorFiles
from reader_edge_export.speculators.speculator_export import SpeculatorExport
from reader_edge_export.texts.text_set import MAX_SEQUENCE, TextSet
from reader_edge_export.trace.tracing import TracedLayer, default_state_ids, package_layers
from reader_edge_export.trace.tree_config import attention_layers, sliding_window_of, trace_model
from reader_edge_runtime.adapters.adapter import Adapter
from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.package.manifest import (
    COMMIT_NAME,
    PRECISIONS,
    SUCCESSORS_NAME,
    FileEntry,
    Manifest,
    file_entry,
)
from reader_edge_runtime.package.manifest_file import write_manifest
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.package.package_parts import ImagesPart, SpeculatorPart
from reader_edge_runtime.text.tokenizer import Tokenizer

_TRACED_NAME = "traced.onnx"
_VERSIONS = ("torch", "transformers", "optimum", "onnx", "onnxruntime", "reader-edge")


class _Opened(NamedTuple):
    """A source that was read. text: its tokenizer as the package has it. kept: its matrices that stay as they are."""

    model: SourceModel
    tokenizer: PreTrainedTokenizerFast
    text: Tokenizer
    kept: StoredTypes


class PackageExport:
    """One export of a checked source into a folder that is empty, or has what a killed export of the same key left.

    calibration: what rounding may learn from. on_message: gets lines that should stay. speculator, images: a trained
    one, and what sees images, that come along. adapter: one that is merged into the source's weights.
    other_types: after `run`, how many matrices of each type could not stay as they are, where others do. chats: after
    `run` with checks, how the chat template was found to render conversations. num_merged: likewise, how many matrices
    the adapter changed.
    """

    def __init__(
        self,
        source: Source,
        options: ExportOptions,
        calibration: TextSet,
        folder: Path,
        progress: Progress,
        key: str,
        on_message: Callable[[str], None],
        speculator: SpeculatorFiles | None = None,
        images: ImagePart | None = None,
        adapter: Adapter | None = None,
    ) -> None:
        self._adapter = adapter
        self._speculator_source = speculator
        self._speculator: SpeculatorExport | None = None
        self._image_part = images
        self._images: ImageExport | None = None
        self._source = source
        self._options = options
        self._precision = PRECISIONS[options.precision]
        self._calibration = calibration
        self._folder = folder
        self._progress = progress
        self._key = key
        self._on_message = on_message
        self.other_types: Mapping[str, int] = {}
        self.chats = ChatCheck()
        self.ends: tuple[str, ...] = ()
        self.num_merged = 0
        self._merged_fingerprint = ""
        self._adapted = AdaptedProducts(options.precision) if options.takes_adapters else None

    def run(self) -> Manifest:
        opened = self._open()
        work = self._folder / WORK_NAME
        with Journal(self._folder, self._key) as journal, (work / MOMENTS_NAME).open("a+b") as moments:
            calibration = Calibration(moments)
            is_calibrated = self._recall(journal, opened.model, calibration)
            check_room(self._folder, self._size(opened.model))
            state_ids = self._state_ids(opened.model)
            layers = self._trace(opened.model, work, state_ids)
            is_rounded = self._precision.num_planes > 0 and opened.kept.needs_calibration
            if is_rounded and not is_calibrated:
                self._calibrate(opened, calibration, journal)
            files = self._store(opened.model, work, calibration, journal)
            own_files, part = self._store_speculator(opened, work, calibration)
            image_files, images = self._store_images(work)
            self._write_for_engines(layers, work)
            with self._progress.enter("naming the files"):
                manifest = self._manifest(opened, layers, {**files, **own_files, **image_files}, state_ids)
                manifest = replace(manifest, speculator=part, images=images)
            manifest = self._checked(manifest, opened, journal)
            write_manifest(self._folder, manifest)
        return manifest

    def _open(self) -> _Opened:
        """The source, checked as far as it can be before anything is computed; its tokenizer is written."""
        with self._progress.enter("checking the tokenizer"):  # its errors come before weights are read
            tokenizer = self._load_tokenizer(self._source.config_vocab_size)
        if self._speculator_source is not None:
            with self._progress.enter("checking the speculator"):
                self._speculator = SpeculatorExport.of(self._speculator_source, self._source, self._options)
        with self._progress.enter("reading the source"):
            model = self._source.open_model()
            if self._adapter is not None:
                model, self.num_merged, self._merged_fingerprint = merged(model, self._adapter)
            vocab_size = vocab_size_of(model.skeleton)
            if vocab_size != self._source.config_vocab_size:
                tokenizer = self._load_tokenizer(vocab_size)
            _check_ids(*self._source.special_token_ids(tokenizer), vocab_size)
            text = text_tokenizer(tokenizer)
            check_chat_template(text, self._source.max_context)
            write_tokenizer(tokenizer, self._folder)
            if self._image_part is not None:
                self._images = ImageExport.of(self._image_part, model)
        kept = StoredTypes.of(model) if self._precision.keeps_blocks else StoredTypes()
        self.other_types = kept.num_others
        return _Opened(model, tokenizer, text, kept)

    def _load_tokenizer(self, vocab_size: int) -> PreTrainedTokenizerFast:
        """The source's tokenizer, with the chat template that the package gets."""
        tokenizer = self._source.load_tokenizer(vocab_size)
        if self._options.chat_template is not None:
            tokenizer.chat_template = read_template(self._options.chat_template)
        return tokenizer

    def _trace(self, model: SourceModel, work: Path, state_ids: tuple[int, ...]) -> list[TracedLayer]:
        with self._progress.enter("tracing"):
            images = None if self._images is None else self._images.rows
            return trace_model(model, self._source.max_context, work / _TRACED_NAME, state_ids, images=images)

    def _store(
        self, model: SourceModel, work: Path, calibration: Calibration, journal: Journal
    ) -> dict[str, FileEntry]:
        """Write the graph and its weights."""
        with self._progress.enter("rounding" if self._precision.is_calibrated else "storing"):
            return write_graph(
                work / _TRACED_NAME,
                self._folder,
                self._options,
                calibration,
                model,
                journal,
                self._progress,
                on_choice=lambda in_eight_bits: check_room(self._folder, self._size(model, in_eight_bits)),
                adapted=self._adapted,
            )

    def _store_speculator(
        self, opened: _Opened, work: Path, calibration: Calibration
    ) -> tuple[Mapping[str, FileEntry], SpeculatorPart | None]:
        if self._speculator is None:
            return {}, None
        with self._progress.enter("storing the speculator"):
            arguments = opened.model, opened.text, self._calibration, calibration, self._folder, work, self._progress
            return self._speculator.write(*arguments)

    def _store_images(self, work: Path) -> tuple[Mapping[str, FileEntry], ImagesPart | None]:
        if self._images is None:
            return {}, None
        with self._progress.enter("storing what sees images"):
            return self._images.write(self._folder, work, self._options.tower_precision, self._progress)

    def _write_for_engines(self, layers: Sequence[TracedLayer], work: Path) -> None:
        """Write what only devices and IREE read."""
        with self._progress.enter("writing the package"):
            if self._options.is_for_devices:
                layer = attention_layers(layers)[0]
                write_commit_graph(
                    self._folder / COMMIT_NAME, self._options.kv_dtype, layer.num_kv_heads, layer.head_dim
                )
        if self._options.engine == IREE:
            with self._progress.enter("compiling"):
                target = self._options.iree_target
                write_mlir(self._folder, work, target, self._progress.share(NUM_STEPS))

    def _recall(self, journal: Journal, model: SourceModel, calibration: Calibration) -> bool:
        """Whether an export that was killed has left its calibration."""
        gradients = gradient_sizes(model) if self._precision.is_four_bit else {}
        inputs, experts = input_sizes(model), expert_input_sizes(model)
        is_calibrated = calibration.recall(journal.calibration, inputs, gradients, experts)
        left = ["its calibration", f"{journal.num_matrices} of {len(model.names)} matrices"] if is_calibrated else []
        left += ["checks"] if has_checks(journal) else []
        if left:
            self._on_message(f"Resuming an export that was stopped: {', '.join(left)}.")
        return is_calibrated

    def _checked(self, manifest: Manifest, opened: _Opened, journal: Journal) -> Manifest:
        """The manifest with what the checks found that the options want."""
        package, kind = ModelPackage(self._folder, manifest), self._options.check
        if self._options.engine == IREE:
            with self._progress.enter("comparing modules"):
                check_modules(package)
        if kind == "none":
            return manifest
        model, text = opened.model, opened.text
        with self._progress.enter("comparing conversations"):
            self.chats = check_chats(opened.tokenizer, text)
        check, noted = PackageCheck(package, text, self._folder, self._progress), CachedCheck(journal, package)
        figures = noted.quality(kind, partial(check.quality, self._source, model, is_quick=kind == "quick"))
        if self._speculator is not None and manifest.speculator is not None:
            with self._progress.enter("checking the speculator's graph"):
                figures = figures | self._speculator.check(model, text, self._folder, manifest.speculator)
        if self._images is not None:
            with self._progress.enter("checking what sees images"):
                figures |= self._images.check(package, self._options.tower_precision, text, check.run)
        manifest = replace(manifest, checks=figures | self.chats.figures())
        if kind == "quick":
            return manifest
        table = noted.successors(text.fingerprint(), partial(check.successors, model.num_parameters))
        return replace(manifest, files={**manifest.files, SUCCESSORS_NAME: table})

    def _calibrate(self, opened: _Opened, calibration: Calibration, journal: Journal) -> None:
        """Collect the statistics that rounding uses, and note them."""
        with self._progress.enter("calibrating"):
            max_tokens = max_calibration_tokens(opened.model.num_parameters)
            max_length = min(MAX_SEQUENCE, self._source.max_context)
            sequences = self._calibration.token_sequences(opened.text, max_length, max_tokens)
            # Once through all layers; to see where errors show, there and back again.
            num_walks = 3 if self._precision.is_four_bit else 1
            layered = LayeredModel(opened.model, advance=self._progress.share(num_walks))
            calibrate(layered, sequences, calibration)
            if self._precision.is_four_bit:
                measure_sensitivity(layered, sequences, calibration)
            journal.add_calibration(calibration.noted())

    def _state_ids(self, model: SourceModel) -> tuple[int, ...]:
        """What the graph reports for speculators; only the attention that CPUs run by default has outputs to spare."""
        is_reported = self._options.attention == "exact" and not self._options.is_for_devices
        usual = default_state_ids(int(model.skeleton.config.num_hidden_layers)) if is_reported else ()
        return tuple(sorted({*usual, *(self._speculator.state_ids if self._speculator else ())}))

    def _size(self, model: SourceModel, in_eight_bits: Set[str] | None = None) -> PackageSize:
        size = PackageSize.of(model, self._options, in_eight_bits)
        parts = (part.num_bytes for part in (self._speculator, self._images) if part is not None)
        return replace(size, others=size.others + sum(parts))

    def _manifest(
        self, opened: _Opened, layers: list[TracedLayer], files: Mapping[str, FileEntry], state_ids: tuple[int, ...]
    ) -> Manifest:
        model, tokenizer, _, kept = opened
        attention = attention_layers(layers)[0]
        eos_token_ids, bos_token_id = self._source.special_token_ids(tokenizer)
        source_name, fingerprint = self._source.short_name, self._source.fingerprint()
        if self._adapter is not None:
            source_name = f"{source_name} with {self._adapter.short_name}"
            fingerprint = sha256(f"{fingerprint}{self._merged_fingerprint}".encode()).hexdigest()
        self.ends = tuple(tokenizer.backend_tokenizer.id_to_token(i) or f"id {i}" for i in eos_token_ids)
        return Manifest(
            architecture=self._source.architecture,
            num_heads=attention.num_heads,
            num_kv_heads=attention.num_kv_heads,
            head_dim=attention.head_dim,
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
            layers=package_layers(layers),
            special_tokens=special_tokens_of(tokenizer),
            source_name=source_name,
            source_fingerprint=fingerprint,
            exported_with={name: version_of(name) for name in _VERSIONS},
            checks={},
            files={
                path.name: files.get(path.name) or file_entry(path)
                for path in sorted(self._folder.iterdir())
                if path.is_file()
            },
            kept_types=kept.num_kept,
            num_experts=model.num_experts,
            num_experts_per_token=model.num_experts_per_token,
            hidden_size=None if self._options.is_for_devices else hidden_size_of(model.skeleton),
            state_ids=state_ids,
            adapted_products=() if self._adapted is None else tuple(self._adapted.products),
            sampling=self._source.sampling(),
            pooling=self._source.pooling,
        )


def _check_ids(eos_token_ids: Iterable[int], bos_token_id: int | None, vocab_size: int) -> None:
    """Raise ExportError for a token that begins or ends texts and that the model does not have."""
    token_ids = (*eos_token_ids, bos_token_id or 0)
    if others := [token_id for token_id in token_ids if token_id >= vocab_size]:
        raise ExportError(
            f"The config names {others[0]} as a token that begins or ends texts, but the vocabulary has {vocab_size}: "
            "correct eos_token_id and bos_token_id in generation_config.json and config.json."
        )
