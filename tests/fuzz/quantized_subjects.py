"""Spoilt folders of quantised weights: every weight is read, or the folder is refused in a sentence."""

import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from reader_edge_export.libraries import quiet_libraries
from reader_edge_export.sources.find import find_source
from reader_edge_runtime.errors import ReaderEdgeError
from tests.export.sources.quantized.test_block_formats import WRITERS as BLOCK_WRITERS
from tests.export.sources.quantized.test_float_formats import WRITERS as FLOAT_WRITERS
from tests.export.sources.quantized.test_float_formats import Writer, quantize
from tests.fuzz.mutation import Subject, mutated_json
from tests.fuzz.other_subjects import spoil_header
from tests.tiny_models import build_tiny_model

_FP8 = {"fp8": FLOAT_WRITERS["fp8 in small blocks"]}
_BLOCKS = {name: BLOCK_WRITERS[name] for name in ("nf4", "int8", "mlx")}


def _write(writers: Mapping[str, Writer], folder: Path) -> None:
    """A good folder of each format."""
    if (folder / "plain").exists():
        return
    with quiet_libraries():
        build_tiny_model("llama", folder / "plain", num_hidden_layers=1)
    for kind, writer in writers.items():
        shutil.copytree(folder / "plain", folder / kind)
        quantize(folder / kind, folder / "plain", writer)


def _of_folders(writers: Mapping[str, Writer], name: str, folder: Path) -> list[bytes]:
    _write(writers, folder)
    return [(folder / kind / name).read_bytes() for kind in writers]


def _read_folder(writers: Mapping[str, Writer], name: str, path: Path) -> None:
    """As a part of a folder of each format, whose other file is good. Raises the error of the last one."""
    _write(writers, path.parent)
    refusals: list[ReaderEdgeError] = []
    for kind in writers:
        file = path.parent / kind / name
        good = file.read_bytes()
        file.write_bytes(path.read_bytes())
        try:
            model = find_source(file.parent, None).open_model()
            assert all(np.isfinite(model.weights.read(parameter)).all() for parameter in model.names.values())
        except ReaderEdgeError as refusal:
            refusals.append(refusal)
        finally:
            file.write_bytes(good)
    assert all("\n" not in str(refusal) for refusal in refusals)
    if len(refusals) == len(writers):  # a good file suits one of them
        raise refusals[-1]


QUANTIZED_SUBJECTS = {
    f"{kind} {part}": Subject(partial(_of_folders, writers, name), spoil, partial(_read_folder, writers, name))
    for kind, writers in (("fp8", _FP8), ("quantised", _BLOCKS))
    for part, name, spoil in (("config", "config.json", mutated_json), ("weights", "model.safetensors", spoil_header))
}
