"""Folders of trained speculators: their config.json and the file of their weights."""

from functools import partial
from pathlib import Path
from random import Random
from typing import Any, cast

from reader_edge_export.speculators.formats.find import find_speculator
from reader_edge_export.speculators.formats.open_speculator import OpenSpeculator, TargetSizes
from reader_edge_runtime.errors import ReaderEdgeError
from tests.export.speculators.speculator_folders import write_eagle3, write_mlp, write_mtp, write_plain_eagle3
from tests.fuzz.mutation import mutated, mutated_json
from tests.fuzz.subject import Subject

_KINDS = ("eagle3", "plain", "mtp", "mlp")
_CONFIG, _WEIGHTS = "config.json", "model.safetensors"


def _samples(name: str, folder: Path) -> list[bytes]:
    """One of each format."""
    _write(folder)
    return [(folder / kind / name).read_bytes() for kind in _KINDS]


def _write(folder: Path) -> None:
    """A good folder of each format."""
    if not (folder / _KINDS[0]).exists():
        write_eagle3(folder / "eagle3", norm_before_fc=True)
        write_plain_eagle3(folder / "plain")
        write_mtp(folder / "mtp", "qwen3_5_text")
        write_mlp(folder / "mlp")


def _read(name: str, path: Path) -> None:
    """As a part of a folder of each format, whose other file is good. Raises the error of the last one."""
    _write(path.parent)
    refusals: list[ReaderEdgeError] = []
    for kind in _KINDS:
        file = path.parent / kind / name
        good = file.read_bytes()
        file.write_bytes(path.read_bytes())
        try:
            OpenSpeculator.of(find_speculator(file.parent, cast(Any, None)), TargetSizes(2, 64, 320))
        except ReaderEdgeError as refusal:
            refusals.append(refusal)
        finally:
            file.write_bytes(good)
    if len(refusals) == len(_KINDS):  # a good file suits one of them
        raise refusals[-1]


def _spoil_header(content: bytes, random: Random) -> bytes:
    """Weights themselves may be anything."""
    num_bytes = 8 + int.from_bytes(content[:8], "little")
    header = mutated_json(content[8:num_bytes], random)
    if random.random() < 0.3:
        return mutated(content, random)
    return len(header).to_bytes(8, "little") + header + content[num_bytes:]


SPECULATOR_SUBJECTS = {
    "speculator's config": Subject(partial(_samples, _CONFIG), mutated_json, partial(_read, _CONFIG)),
    "speculator's weights": Subject(partial(_samples, _WEIGHTS), _spoil_header, partial(_read, _WEIGHTS)),
}
