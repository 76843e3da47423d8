"""Compares an exported package with its source, and finds its likely successors. It imports PyTorch: see `pipeline`."""

import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cached_property
from itertools import chain
from pathlib import Path

from reader_edge_export.checks.parity import GreedyAgainstSource, TreeAgainstDecoding, TreeAgainstSource, TreeCase
from reader_edge_export.checks.quality import QualityAgainstSource, max_quality_tokens, source_figures
from reader_edge_export.journal import TABLE_NAME, WORK_NAME, Journal
from reader_edge_export.package.layered_package import LayeredPackage
from reader_edge_export.package.pass_chain import Check, PackageRunner, WholePackage, chains_of, figures_of
from reader_edge_export.package.successors import measure_successors, num_table_tokens
from reader_edge_export.progress import Progress
from reader_edge_export.sources.layered_model import LayeredModel
from reader_edge_export.sources.source import Source
from reader_edge_export.sources.source_model import SourceModel
from reader_edge_export.texts.text_set import MAX_SEQUENCE, TextSet
from reader_edge_runtime.drafting.sources.successor_store import SuccessorTable
from reader_edge_runtime.execution.onnxruntime.host.host_rows_runner import open_on_host
from reader_edge_runtime.package.manifest import PRECISIONS, ROW_ATTENTIONS, SUCCESSORS_NAME, FileEntry, file_entry
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.text.tokenizer import Tokenizer

_MIN_QUICK_TOKENS = 128
_MAX_WHOLE_BYTES = 1 << 30  # loaded once for all passes; larger ones would take more memory than the source's layers
_QUALITY, _SUCCESSORS = "quality", "successors"


class PackageCheck:
    """Of a package whose files are there, on the CPU provider.

    text: its tokenizer. work_folder: for what is needed meanwhile, on a disk with room for some layers in fp32.
    """

    def __init__(self, package: ModelPackage, text: Tokenizer, work_folder: Path, progress: Progress) -> None:
        self._package = package
        self._text = text
        self._work_folder = work_folder
        self._progress = progress

    def quality(self, source: Source, model: SourceModel, is_quick: bool = False) -> dict[str, float]:
        """Figures for the manifest. is_quick: of a tenth of the text. Raises ParityError."""
        with self._progress.enter("checking against the source"):
            return self._quality(source, model, is_quick)

    def run(self, check: Check) -> dict[str, float]:
        """Figures of a further check."""
        return figures_of(self._runner, [check])

    def successors(self, num_parameters: int, slowdown: int = 1) -> SuccessorTable:
        """The package's likely successors. num_parameters, slowdown: see `num_table_tokens`."""
        with self._progress.enter("asking for likely successors"):
            num_tokens = num_table_tokens(self._package.manifest.vocab_size, num_parameters, slowdown)
            return measure_successors(self._runner, self._text, num_tokens, self._progress)

    def _quality(self, source: Source, source_model: SourceModel, is_quick: bool) -> dict[str, float]:
        manifest, model = self._package.manifest, LayeredModel(source_model)
        max_tokens = max_quality_tokens(source_model.num_parameters)
        if is_quick:
            max_tokens = max(_MIN_QUICK_TOKENS, max_tokens // 10)
        max_length = min(MAX_SEQUENCE, source.max_context)
        sequences = TextSet.bundled("held_out").token_sequences(self._text, max_length, max_tokens)
        text_ids = list(chain.from_iterable(sequences))
        case = TreeCase.draw(manifest, text_ids)
        checks: list[Check] = [TreeAgainstDecoding(case)]
        if not PRECISIONS[manifest.precision].num_planes:
            checks.append(TreeAgainstSource(manifest, model, case))
        if manifest.precision == "fp32" and manifest.kv_dtype == "float32":
            checks.append(GreedyAgainstSource.draw(manifest, model, text_ids))
            return self._figures(model, checks)
        checks.append(QualityAgainstSource(model, sequences))
        return self._figures(model, checks) | source_figures(source.weight_types)

    def _figures(self, model: LayeredModel, checks: Sequence[Check]) -> dict[str, float]:
        """Figures of checks, all but the first of which walk through the source. That counts as half of the work."""
        num_tokens = sum(each.num_tokens for each in chains_of(checks))
        advance, num_walks = self._progress.share(2 * num_tokens), len(checks) - 1
        model.advance = lambda walk: advance(walk / num_walks * num_tokens)
        return figures_of(self._runner, checks, advance)

    @cached_property
    def _runner(self) -> PackageRunner:
        """The package on the CPU provider; one in bf16 by its fp32 twin, which is written part by part."""
        package, manifest = self._package, self._package.manifest
        is_whole = manifest.num_bytes <= _MAX_WHOLE_BYTES and not PRECISIONS[manifest.precision].has_twin
        if is_whole or manifest.attention in ROW_ATTENTIONS:  # whose rows no part writes
            return WholePackage(open_on_host(package))
        return LayeredPackage(package, self._work_folder)


class CachedCheck:
    """Of a package whose files are there. Results are those of its very files, and of others done again."""

    def __init__(self, journal: Journal, package: ModelPackage) -> None:
        self._journal = journal
        self._folder = package.folder
        self._of = package.fingerprint().hex()

    def quality(self, kind: str, measure: Callable[[], dict[str, float]]) -> dict[str, float]:
        """Figures for the manifest. kind: how much is measured."""
        name = f"{_QUALITY}, {kind}, of {self._of}"
        match self._journal.results.get(name):
            case dict(figures) if all(map(_is_figure, figures.values())):
                return figures
        figures = measure()
        self._journal.record(name, figures)
        return figures

    def successors(self, tokenizer_fingerprint: str, ask: Callable[[], SuccessorTable]) -> FileEntry:
        """Put the package's table of likely successors into its folder."""
        name, cached = f"{_SUCCESSORS} of {self._of}", self._folder / WORK_NAME / TABLE_NAME
        if not cached.is_file() or asdict(file_entry(cached)) != self._journal.results.get(name):
            ask().write(cached, tokenizer_fingerprint)
            self._journal.record(name, asdict(file_entry(cached)))
        path = self._folder / SUCCESSORS_NAME
        shutil.copyfile(cached, path)
        return file_entry(path)


def has_checks(journal: Journal) -> bool:
    """Whether a journal has results of checks."""
    return any(name.startswith((_QUALITY, _SUCCESSORS)) for name in journal.results)


def _is_figure(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
