"""The part of an export that puts a trained speculator beside its target."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

from reader_edge_export.calibration.calibration import Calibration
from reader_edge_export.options import ExportOptions
from reader_edge_export.progress import Progress
from reader_edge_export.sources.layered_model import LayeredModel
from reader_edge_export.sources.source import Source
from reader_edge_export.sources.source_model import SourceModel
from reader_edge_export.speculators.calibrate_speculator import NUM_TOKENS as NUM_CALIBRATION_TOKENS
from reader_edge_export.speculators.calibrate_speculator import calibrate_speculator, states_of
from reader_edge_export.speculators.formats.assistants import open_assistant
from reader_edge_export.speculators.formats.folders import SpeculatorFiles
from reader_edge_export.speculators.formats.open_speculator import OpenSpeculator, TargetSizes
from reader_edge_export.speculators.speculator_check import NUM_TOKENS, check_speculator
from reader_edge_export.speculators.speculator_graph import (
    part_of,
    speculator_options,
    trace_speculator,
    write_speculator,
)
from reader_edge_export.speculators.speculator_module import TextStates
from reader_edge_export.texts.text_set import MAX_SEQUENCE, TextSet
from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.package.manifest import FileEntry
from reader_edge_runtime.package.package_parts import ASSISTANT, SpeculatorPart
from reader_edge_runtime.text.tokenizer import Tokenizer
from reader_edge_runtime.untrusted.untrusted_json import converted


@dataclass(frozen=True)
class SpeculatorExport:
    """opened: the speculator, which fits the target. options: of the target's export, whose precision is not AUTO."""

    opened: OpenSpeculator
    options: ExportOptions

    @classmethod
    def of(cls, speculator: SpeculatorFiles, target: Source, options: ExportOptions) -> "SpeculatorExport":
        """Raises ExportError where the speculator is not one of the target; of that, the config alone is read."""
        if speculator.format == ASSISTANT:
            opened = open_assistant(speculator, target)
        else:
            opened = OpenSpeculator.of(speculator, TargetSizes.of(target))
        part = asdict(part_of(speculator.format, opened.module, opened.state_ids))
        name = f"The speculator in '{speculator.folder}'"
        converted(part, SpeculatorPart, name, ExportError, "give one whose sizes a package can hold")
        return cls(opened, options)

    @property
    def state_ids(self) -> tuple[int, ...]:
        """Of the target's states those that it reads."""
        return self.opened.state_ids

    @property
    def num_bytes(self) -> int:
        """What its files take, at most."""
        width = 4 if self._own_options.precision == "fp32" else 1
        shapes = [parameter.shape for parameter in self.opened.module.parameters()]
        return sum(width * shape.numel() + 16 * sum(shape) for shape in shapes)

    def write(
        self,
        model: SourceModel,
        text: Tokenizer,
        texts: TextSet,
        calibration: Calibration,
        folder: Path,
        work: Path,
        progress: Progress,
    ) -> tuple[Mapping[str, FileEntry], SpeculatorPart]:
        """Write its graph into a folder that has the target's.

        model: the target's. texts: what rounding may learn from. calibration: of the target. work: a folder for what is
        needed meanwhile. Returns the files by name, and what the manifest says of them.
        """
        source, traced = self.opened.with_target(model), work / "speculator.onnx"
        size = len(self.state_ids) * int(model.skeleton.config.hidden_size)
        trace_speculator(source, size, traced, self._own_options.kv_dtype)
        own = Calibration()
        if self._own_options.precision != "fp32":
            own = calibrate_speculator(source, self._states(model, text, texts, NUM_CALIBRATION_TOKENS), calibration)
        lends = self.opened.lends_embedding
        files = write_speculator(traced, folder, self._own_options, own, source, progress, lends_embedding=lends)
        return files, part_of(self.opened.source.format, self.opened.module, self.state_ids)

    def check(self, model: SourceModel, text: Tokenizer, folder: Path, part: SpeculatorPart) -> dict[str, float]:
        """Figures for the manifest of what was written into a folder. Raises ParityError."""
        (states,) = self._states(model, text, TextSet.bundled("held_out"), NUM_TOKENS)[:1]
        options = self._own_options
        is_exact = options.precision == "fp32" and (part.lent is None or options.kv_dtype == "float32")
        return check_speculator(folder, part, self.opened.with_target(model), states, is_exact, options.kv_dtype)

    @cached_property
    def _own_options(self) -> ExportOptions:
        return speculator_options(self.options, borrows=self.opened.module.lent is not None)

    def _states(self, model: SourceModel, text: Tokenizer, texts: TextSet, num_tokens: int) -> list[TextStates]:
        max_context = self.options.max_context or MAX_SEQUENCE
        sequences = texts.token_sequences(text, min(MAX_SEQUENCE, max_context), num_tokens)
        longer = [sequence for sequence in sequences if len(sequence) > 1]
        lent = self.opened.module.lent
        layers = () if lent is None else lent.layers
        return states_of(LayeredModel(model), longer or [sequences[0] * 2], self.state_ids, layers)
