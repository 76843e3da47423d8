"""Spoilt files of what sees images: exported as they are, or refused in a sentence."""

import re
import shutil
import tempfile
from functools import cache
from pathlib import Path
from random import Random
from typing import cast

import numpy as np
import onnxruntime as ort
import torch

from reader_edge_export.images.image_export import ImageExport
from reader_edge_export.images.tower_graph import attending
from reader_edge_export.images.towers import ATTENTION_NAME, Tower
from reader_edge_export.libraries import quiet_libraries
from reader_edge_export.progress import Progress
from reader_edge_export.sources.find import find_source
from reader_edge_export.sources.image_part import find_images
from reader_edge_export.sources.source import Source
from reader_edge_export.sources.source_model import SourceModel, check_finite
from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.package.package_parts import VISION_GRAPH_NAME
from tests.export.images.mmproj_files import build_files
from tests.fuzz.mutation import Subject, mutated

_BEFORE_NUMBERS = re.compile(rb"clip\.(?:vision\.)?[a-z_.]+|(?:v|mm)\.[a-z][\w.]+")  # keys, and names of tensors
_NAMES = ("qwen3_vl", "gemma4")  # two kinds of projectors


@cache
def _model(name: str) -> tuple[Source, SourceModel, bytes]:
    """A text model, and the file that sees for it."""
    with tempfile.TemporaryDirectory() as folder, quiet_libraries():
        _, file = build_files(name, Path(folder))
        source = find_source(file, None)
        return source, source.open_model(), file.with_name("mmproj.gguf").read_bytes()


def _samples(folder: Path) -> list[bytes]:
    return [_model(name)[2] for name in _NAMES]


def _spoilt(content: bytes, random: Random) -> bytes:
    """Mostly in the header, and so that what follows is read: keys, numbers, names, sizes, types and offsets."""
    if random.random() < 0.3:
        return mutated(content, random)
    spoilt = bytearray(content)
    numbers = [found.end() + 4 for found in _BEFORE_NUMBERS.finditer(content)]
    for _ in range(random.randint(1, 3)):
        place = random.choice(numbers) if random.random() < 0.7 else random.randrange(24, numbers[-1])
        if random.random() < 0.3:
            spoilt[place] ^= 1 << random.randrange(8)
        else:
            number = random.choice((0, 1, 2, 3, 4, 5, 8, 12, 64, 1 << 15, (1 << 31) - 1, (1 << 32) - 1))
            spoilt[place : place + 4] = number.to_bytes(4, "little")
    return bytes(spoilt)


def _export(path: Path) -> None:
    """With the text model that it fits, if any. The graph that is written computes what the tower does."""
    error = ExportError("It fits no model.")
    for name in _NAMES:
        source, text, _ = _model(name)
        try:
            part = find_images(source, mmproj=path)
        except ExportError as reason:
            error = reason
            continue
        assert part is not None
        out = path.with_name("out")
        out.mkdir()
        try:
            with quiet_libraries():
                images = ImageExport.of(part, text)
                images.write(out, path.parent, "fp32", Progress())
                _compare(images.tower, out / VISION_GRAPH_NAME)
        finally:
            shutil.rmtree(out)
        return
    raise error


def _compare(source: SourceModel, graph: Path) -> None:
    tower = cast(Tower, source.skeleton)
    inputs = tower.example(3, 4)
    with torch.no_grad(), source.filled([tower]), attending(tower, ATTENTION_NAME):
        expected = tower(*(inputs[name] for name in tower.names))
    check_finite(expected)
    session = ort.InferenceSession(graph, providers=["CPUExecutionProvider"])
    (features,) = session.run(None, {name: value.numpy() for name, value in inputs.items()})
    assert np.abs(features - expected.numpy()).max() <= 1e-3 * max(1, expected.abs().max())  # weights may be any


MMPROJ_SUBJECTS = {"mmproj": Subject(_samples, _spoilt, _export)}
