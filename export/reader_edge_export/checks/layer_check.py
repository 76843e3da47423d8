"""What the traced layers ask of attention, and keep, compared with the second reading of config.json."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from reader_edge_export.sources.reading_check import reading_error, second_reading
from reader_edge_export.sources.second.second_weights import HeldTensors
from reader_edge_export.trace.tracing import RecurrentLayer, TracedLayer


def check_layers(layers: Sequence[TracedLayer], config: Mapping[str, Any], max_context: int) -> None:
    """Raise ParityError where what the traced layers ask of attention, or keep, is not what config.json says.

    max_context: windows at least this wide are none.
    """
    reading = second_reading(config, HeldTensors({}))
    for index, layer in enumerate(layers):
        states = layer.states if isinstance(layer, RecurrentLayer) else None
        if states != reading.states(index):
            raise reading_error(f"states of layer {index}", f"{states} instead of {reading.states(index)}")
        if isinstance(layer, RecurrentLayer):
            continue
        window = reading.window(index)
        expected = replace(
            layer,
            num_heads=reading.num_heads,
            num_kv_heads=reading.num_kv_heads_of(index),
            head_dim=reading.head_dim_of(index),
            sliding_window=window if window is not None and window < max_context else None,
            shares=reading.shares(index),
        )
        is_scaled = np.allclose((layer.scale, layer.softcap), (reading.scale(index), reading.softcap), rtol=1e-6)
        if layer != expected or not is_scaled:
            raise reading_error(
                f"parameters of attention in layer {index}",
                f"{layer} instead of {expected}, scale {reading.scale(index):.6g}, softcap {reading.softcap:.6g}",
            )
