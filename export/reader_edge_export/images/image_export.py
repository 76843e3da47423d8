"""The part of an export that lets a package's model see images."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from reader_edge_export.checks.parity import MAX_RELATIVE_ERROR
from reader_edge_export.images.image_check import NUM_TOKENS, TextsBehindImage, drawn_picture
from reader_edge_export.images.rules import read_image_rules
from reader_edge_export.images.tower_graph import attending, open_tower, trace_tower, write_tower
from reader_edge_export.images.towers import ATTENTION_NAME, Tower
from reader_edge_export.package.pass_chain import Check
from reader_edge_export.progress import Progress
from reader_edge_export.sources.image_part import ImagePart
from reader_edge_export.sources.layered_model import layers_of
from reader_edge_export.sources.source_model import SourceModel, check_finite, hidden_size_of
from reader_edge_export.texts.text_set import TextSet
from reader_edge_export.trace.image_rows import NUM_AXES, ImageRows, axes_of_frequencies
from reader_edge_runtime.errors import ExportError, ParityError
from reader_edge_runtime.execution.onnxruntime.host.host_vision import HostVision
from reader_edge_runtime.images.patches import prepare
from reader_edge_runtime.package.images import ImageRules
from reader_edge_runtime.package.manifest import FileEntry
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.package.package_parts import ImagesPart
from reader_edge_runtime.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ImageExport:
    """part: what sees images. tower: with its weights. rows: what the text model's graph takes of them.

    rules: by which pixels become inputs.
    """

    part: ImagePart
    tower: SourceModel
    rows: ImageRows
    rules: ImageRules

    @classmethod
    def of(cls, part: ImagePart, text: SourceModel) -> "ImageExport":
        """Raises ExportError where its weights do not fit its config, or it does not fit the text model."""
        width = hidden_size_of(text.skeleton)
        axes: tuple[int, ...] = ()
        if part.sections:
            modules: list[Any] = list(text.skeleton.modules())
            rotary = next(module for module in modules if hasattr(module, "inv_freq"))
            axes = axes_of_frequencies(len(rotary.inv_freq), part.sections, part.family.is_interleaved)
            if len(axes) != len(rotary.inv_freq):
                raise ExportError(
                    f"The text model has mrope_section {list(part.sections)}, which are not the "
                    f"{len(rotary.inv_freq)} frequencies of a head: fetch the model again."
                )
        tower = open_tower(part, text.skeleton.config, width)
        num_deepstack = cast(Tower, tower.skeleton).num_deepstack
        if num_deepstack > len(layers_of(text.skeleton)):
            raise ExportError(
                f"vision_config has {num_deepstack} deepstack_visual_indexes, more than the text model has layers: "
                "fetch the model again."
            )
        own = tower.skeleton.config.to_dict()
        rules = read_image_rules(part.path, own) if part.mmproj is None else part.mmproj.rules
        return cls(part, tower, ImageRows(width, axes, part.pad_id, num_deepstack), rules)

    @property
    def num_bytes(self) -> int:
        """What its files take, about."""
        return 4 * self.tower.num_parameters + (1 << 20)

    def write(
        self, folder: Path, work: Path, precision: str, progress: Progress
    ) -> tuple[Mapping[str, FileEntry], ImagesPart]:
        """Write its graph into a folder. work: a folder for what is needed meanwhile. precision: see `write_tower`.

        Returns the files by name, and what the manifest says of them.
        """
        traced = work / "vision.onnx"
        trace_tower(self.tower, traced, self.part.path)
        files = write_tower(traced, folder, self.tower, precision, progress)
        num_axes, seen = NUM_AXES if self.rows.axes else 1, self.part.sees_whole_image
        width, num_deepstack = self.rows.width, self.rows.num_deepstack
        return files, ImagesPart(self.part.token_id, width, self.rules, num_axes, seen, num_deepstack)

    def check(
        self, package: ModelPackage, precision: str, text: Tokenizer, run: Callable[[Check], dict[str, float]]
    ) -> dict[str, float]:
        """Figures for the manifest of what was written into a package. Raises ParityError.

        precision: as it was written. run: has the package's text model make a check's passes.
        """
        tower, about = cast(Tower, self.tower.skeleton), package.manifest.images
        assert about is not None
        part = prepare(drawn_picture(), self.rules)[0]
        inputs = [torch.from_numpy(part.inputs[name]) for name in tower.names]
        with torch.no_grad(), self.tower.filled([tower]), attending(tower, ATTENTION_NAME):
            computed = tower(*inputs)
        check_finite(computed)
        expected = computed.numpy()
        features = HostVision.open(package).features(part.inputs, lambda: True)
        assert features is not None
        error, scale = float(np.abs(features - expected).max()), float(np.abs(expected).max())
        figures = {"image_feature_error": error, "image_feature_scale": scale}
        if precision != "fp32":
            sequences = TextSet.bundled("held_out").token_sequences(text, NUM_TOKENS, NUM_TOKENS)
            return figures | run(TextsBehindImage(about, part, expected, features, sequences[0]))
        if not error <= MAX_RELATIVE_ERROR * max(1.0, scale):
            raise ParityError(f"Features of an image differ by {error:.2g} from the source's: please report it.")
        return figures
