"""What a layer keeps of a text: keys and values of its own or another layer's, recurrent states, or nothing."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["attention", "recurrent", "none"]

_STATE_NAME = re.compile(r"[a-z][a-z0-9]{0,15}")
_MAX_STATES = 4  # of a layer
_MAX_SIZE = 1 << 16  # of a state's axis
_MAX_NUMBERS = 1 << 26  # of a state
_MAX_HEADS = 1 << 12


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of a model.

    num_kv_heads, head_dim: sizes of its keys and values; 0 where it has no attention. shares: the layer whose KV cache
    it reads in place of one of its own. states: sizes of each of its recurrent states, of one text, by kind.
    capsules: how many numbers of a node it takes to move each state on, by the same kinds.
    """

    kind: Kind
    num_kv_heads: int = 0
    head_dim: int = 0
    shares: int | None = None
    states: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    capsules: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def attention(cls, num_kv_heads: int, head_dim: int, shares: int | None = None) -> "Layer":
        return cls("attention", num_kv_heads, head_dim, shares)

    @classmethod
    def recurrent(cls, states: Mapping[str, Sequence[int]], capsules: Mapping[str, int]) -> "Layer":
        return cls("recurrent", states={kind: tuple(sizes) for kind, sizes in states.items()}, capsules=dict(capsules))

    @classmethod
    def none(cls) -> "Layer":
        return cls("none")

    @property
    def has_cache(self) -> bool:
        """Whether it has keys and values of its own."""
        return self.kind == "attention" and self.shares is None

    def fields(self) -> dict[str, Any]:
        """As a manifest has it."""
        if self.kind == "attention":
            cache = "own" if self.shares is None else self.shares
            return {"kind": self.kind, "num_kv_heads": self.num_kv_heads, "head_dim": self.head_dim, "cache": cache}
        if self.kind == "recurrent":
            states = {kind: list(sizes) for kind, sizes in self.states.items()}
            return {"kind": self.kind, "states": states, "capsules": dict(self.capsules)}
        return {"kind": self.kind}


def read_layers(values: Sequence[Any]) -> tuple[Layer, ...]:
    """Layers as a manifest has them. Raises ValueError, with the number of the first that is none."""
    layers: list[Layer] = []
    for number, value in enumerate(values):
        layer = _layer(value)
        if layer is None or (layer.shares is not None and not _can_share(layer, layers)):
            raise ValueError(str(number))
        layers.append(layer)
    return tuple(layers)


def _layer(value: Any) -> Layer | None:
    if not isinstance(value, dict):
        return None
    layer = None
    if value.get("kind") == "attention" and value.keys() == {"kind", "num_kv_heads", "head_dim", "cache"}:
        num_kv_heads, head_dim, cache = value["num_kv_heads"], value["head_dim"], value["cache"]
        is_shared = type(cache) is int
        if _is_size(num_kv_heads, _MAX_HEADS) and _is_size(head_dim, _MAX_HEADS) and (is_shared or cache == "own"):
            layer = Layer.attention(num_kv_heads, head_dim, cache if is_shared else None)
    elif value.get("kind") == "recurrent" and value.keys() == {"kind", "states", "capsules"}:
        if _are_states(value["states"], value["capsules"]):
            layer = Layer.recurrent(value["states"], value["capsules"])
    elif value == {"kind": "none"}:
        layer = Layer.none()
    return layer


def _can_share(layer: Layer, before: Sequence[Layer]) -> bool:
    """Whether the layer whose cache it reads comes before it, has one, and of the same sizes."""
    if layer.shares is None or not 0 <= layer.shares < len(before):
        return False
    other = before[layer.shares]
    return other.has_cache and (other.num_kv_heads, other.head_dim) == (layer.num_kv_heads, layer.head_dim)


def _are_states(states: Any, capsules: Any) -> bool:
    if not isinstance(states, dict) or not isinstance(capsules, dict):
        return False
    return (
        0 < len(states) <= _MAX_STATES
        and states.keys() == capsules.keys()
        and all(map(_STATE_NAME.fullmatch, states))
        and all(map(_is_state, states.values()))
        and all(_is_size(size, _MAX_NUMBERS) for size in capsules.values())
    )


def _is_state(sizes: Any) -> bool:
    if not isinstance(sizes, list) or not 1 <= len(sizes) <= 4:
        return False
    return all(_is_size(size, _MAX_SIZE) for size in sizes) and math.prod(sizes) <= _MAX_NUMBERS


def _is_size(value: Any, most: int) -> bool:
    return type(value) is int and 1 <= value <= most
