"""What each layer takes of a pass on this machine: of layers whose weights are as large, one is timed for all."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from reader_edge_runtime.execution.onnxruntime.host.host_stage import HostStage
from reader_edge_runtime.package.model_package import ModelPackage

_ALIKE = 0.05  # as a share of a layer's bytes
_CACHE_BYTES = 128 << 20  # read between two passes, as a model's other layers are: a layer alone stays in caches

WriteStage = Callable[[Path, range, int, int], object]  # gets a new folder, layers, the stage's number and how many


def layer_seconds(layer_bytes: Sequence[int], write_stage: WriteStage) -> list[float]:
    """Seconds of each layer in a pass of one node, what a session takes for itself left out.

    The first layer has the embeddings, which take less than their bytes, the last one the head. Raises ProviderError.
    """
    num_layers = len(layer_bytes)
    kinds = [_kind(layer, num_layers, layer_bytes[layer]) for layer in range(num_layers)]
    seconds: dict[tuple[int, int], float] = {}
    for layer, kind in enumerate(kinds):
        if kind not in seconds:
            seconds[kind] = _timed(range(layer, layer + 1), num_layers, write_stage)
    apart_s = 0.0
    for layer in range(1, num_layers - 2):
        if kinds[layer] == kinds[layer + 1]:
            pair_s = _timed(range(layer, layer + 2), num_layers, write_stage)
            apart_s = min(max(2 * seconds[kinds[layer]] - pair_s, 0.0), 0.9 * min(seconds.values()))
            break
    return [seconds[kind] - apart_s for kind in kinds]


def _kind(layer: int, num_layers: int, num_bytes: int) -> tuple[int, int]:
    place = 1 if layer == 0 else 3 if layer == num_layers - 1 else 2
    return place, round(math.log(max(num_bytes, 1)) / _ALIKE)


def _timed(layers: range, num_layers: int, write_stage: WriteStage) -> float:
    number = 1 if layers.start == 0 else 3 if layers.stop == num_layers else 2
    with TemporaryDirectory() as place:
        folder = Path(place) / "stage"
        write_stage(folder, layers, number, 3)
        others = np.ones(_CACHE_BYTES, np.uint8)
        return HostStage.open(ModelPackage.open(folder), 1).pass_seconds(others.sum)
