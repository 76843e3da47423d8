"""A package compared with its source, and asked for its likely successors. Imports PyTorch: see `pipeline`."""

import shutil
from dataclasses import replace
from functools import cached_property
from itertools import chain
from pathlib import Path

from reader_edge_export.layered_model import LayeredModel
from reader_edge_export.parity import TreeCase, check_greedy, check_tree_against_decoding, check_tree_logits
from reader_edge_export.quality import check_quality, max_quality_tokens, source_figures
from reader_edge_export.quantize.half import write_widened
from reader_edge_export.sources.source import Source
from reader_edge_export.sources.source_model import SourceModel
from reader_edge_export.stages import Stages
from reader_edge_export.successors import measure_successors, num_table_tokens
from reader_edge_export.texts.text_set import MAX_SEQUENCE, TextSet
from reader_edge_runtime.drafting.sources.successor_table import SuccessorTable
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.package.manifest import GRAPH_NAME, HALF_PRECISIONS
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.text.tokenizer import Tokenizer

_MIN_QUICK_TOKENS = 128


class PackageCheck:
    """Of a package whose files are there, on the CPU provider.

    text: its tokenizer. workplace: a folder for what is needed meanwhile, on a disk with room for the model in fp32.
    """

    def __init__(self, package: ModelPackage, text: Tokenizer, workplace: Path, stages: Stages) -> None:
        self._package = package
        self._text = text
        self._workplace = workplace
        self._stages = stages

    def quality(self, source: Source, model: SourceModel, is_quick: bool = False) -> dict[str, float]:
        """Figures for the manifest. is_quick: of a tenth of the text. Raises ParityError."""
        with self._stages.enter("checking against the source"):
            return self._quality(source, model, is_quick)

    def successors(self, num_parameters: int) -> SuccessorTable:
        """The package's likely successors of as many tokens as take a minute of a model of this size."""
        with self._stages.enter("asking for likely successors"):
            num_tokens = num_table_tokens(self._package.manifest.vocab_size, num_parameters)
            return measure_successors(self._target, self._text, num_tokens)

    def _quality(self, source: Source, source_model: SourceModel, is_quick: bool) -> dict[str, float]:
        target, model, precision = self._target, LayeredModel(source_model), self._package.manifest.precision
        max_tokens = max_quality_tokens(source_model.num_parameters)
        if is_quick:
            max_tokens = max(_MIN_QUICK_TOKENS, max_tokens // 10)
        max_length = min(MAX_SEQUENCE, source.max_context)
        sequences = TextSet.bundled("held_out").token_sequences(self._text, max_length, max_tokens)
        case = TreeCase.draw(target.manifest, list(chain.from_iterable(sequences)))
        figures = check_tree_against_decoding(target, case)
        if precision in ("fp32", *HALF_PRECISIONS):
            figures |= check_tree_logits(target, model, case)
        if precision == "fp32" and target.manifest.kv_dtype == "float32":
            figures |= check_greedy(target, model, case.prompts[0])
        else:
            figures |= check_quality(target, model, sequences)
            figures |= source_figures(source.weight_types)
        return figures

    @cached_property
    def _target(self) -> HostTarget:
        """The package on the CPU provider; a bf16 one by its fp32 twin, since that provider multiplies no bf16."""
        package = self._package
        if package.manifest.precision != "bf16":
            return HostTarget.open(package)
        twin = self._workplace / "twin"
        twin.mkdir()
        write_widened(package.path(GRAPH_NAME), twin)
        target = HostTarget.open(ModelPackage(twin, replace(package.manifest, kv_dtype="float32")))
        shutil.rmtree(twin)
        return target
