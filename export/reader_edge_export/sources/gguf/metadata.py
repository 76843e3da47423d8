"""Typed access to a GGUF file's metadata; every error names the file, the key and its value."""

import math
import reprlib
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any

from reader_edge_export.sources.gguf.gguf_file import GgufFile

# Other names of a key, as Ollama's converter (`convert/` there) gives them beside it or in its place. The second of an
# epsilon is that of a layer norm, which an architecture of RMS norms does not have.
_TWINS = {
    **dict.fromkeys(("attention.key_length", "attention.value_length"), ("attention.head_dim", "head_dim")),
    "attention.layer_norm_rms_epsilon": ("attention.layer_norm_epsilon",),
    "attention.temperature_scale": ("rope.scaling_beta",),
    "rope.freq_base": ("rope.global.freq_base",),
    "rope.freq_base_swa": ("rope.local.freq_base", "rope.freq_base_local"),
    "rope.scaling.factor": ("rope.scale_linear",),
    "rope.scaling.yarn_ext_factor": ("rope.scaling.extrapolation_factor",),
    "rope.scaling.yarn_beta_fast": ("rope.scaling.beta_fast",),
    "rope.scaling.yarn_beta_slow": ("rope.scaling.beta_slow",),
    "rope.scaling.yarn_log_multiplier": ("rope.scaling.mscale_all_dim",),
}
# Given for each layer by some converters.
_BY_LAYER = ("attention.head_count", "attention.head_count_kv", "feed_forward_length")
_MAX_SIZE = 1 << 28
_MAX_TEXT_BYTES = 1 << 20  # those of tokens are bounded elsewhere; also what a chat template may have


class Metadata:
    """The values below a prefix, e.g. "llama", by the rest of their keys.

    A value that is missing becomes the default; without a default, or of another kind, it is a GgufError, and so is one
    that a twin contradicts, a key that means the same.
    """

    def __init__(self, file: GgufFile, prefix: str) -> None:
        self._file = file
        self._prefix = f"{prefix}."
        self._read: set[str] = set()

    def has(self, key: str) -> bool:
        return any(self._prefix + name in self._file.metadata for name in (key, *_TWINS.get(key, ())))

    def text(self, key: str, default: str | None = None) -> str:
        return str(self._value(key, default, _is_text))

    def size(self, key: str, default: int | None = None, least: int = 1) -> int:
        """A number of things, `least` or more."""
        return int(self._value(key, default, lambda value: type(value) is int and least <= value <= _MAX_SIZE))

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number."""
        return float(self._value(key, default, lambda value: type(value) in (int, float) and math.isfinite(value)))

    def positive(self, key: str, default: float | None = None) -> float:
        """A finite number above nought."""
        return float(self._value(key, default, lambda value: type(value) in (int, float) and 0 < value < math.inf))

    def positive_or_zero(self, key: str, default: float = 0.0) -> float:
        """The same, or the default for 0, which Ollama's converter writes for what it does not find."""
        return self.positive(key) if self.number(key, 0.0) else default

    def flag(self, key: str, default: bool | None = None) -> bool:
        return bool(self._value(key, default, lambda value: isinstance(value, bool)))

    def texts(self, key: str) -> list[str]:
        return list(self._value(key, None, lambda value: _holds(value, str)))

    def sizes(self, key: str) -> list[int]:
        return list(self._value(key, None, lambda value: _holds(value, int)))

    def sizes_by_layer(self, key: str, num_layers: int, default: int | None = None) -> list[int]:
        """A number of things, 0 or more, for each layer: given one by one, or once for all."""
        if not isinstance(self._agreed(key, default), list):
            return [self.size(key, default)] * num_layers
        sizes = self._value(key, default, lambda value: not isinstance(value, list) or len(value) == num_layers)
        sizes = sizes if isinstance(sizes, list) else [sizes] * num_layers
        if not all(type(size) is int and 0 <= size <= _MAX_SIZE for size in sizes):
            shown = reprlib.repr(sizes)
            raise self._file.error(f"gives {self._prefix}{key} as {shown}, which cannot be")
        return sizes

    def numbers(self, key: str, is_usable: Callable[[float], bool] = math.isfinite) -> list[float]:
        return list(self._value(key, None, lambda value: _holds(value, float) and all(map(is_usable, value))))

    def flags(self, key: str) -> list[bool]:
        return list(self._value(key, None, lambda value: _holds(value, bool)))

    def check_all_read(self, ignored: Collection[str], inert: Mapping[str, object] = MappingProxyType({})) -> None:
        """Raise GgufError for a value that was not read, besides the ignored: it may change what is computed.

        inert: values that change nothing, of keys that are not read.
        """
        known = self._read | {self._prefix + key for key in ignored}
        known |= {self._prefix + key for key, value in inert.items() if self._is_inert(self._prefix + key, value)}
        unknown = [key for key in self._file.metadata if key.startswith(self._prefix) and key not in known]
        if unknown:
            value = reprlib.repr(self._file.metadata[unknown[0]])
            raise self._file.error(
                f"sets {unknown[0]!r:.80} to {value}, which cannot be mapped exactly",
                "give the model in Hugging Face format",
            )

    def _value(self, key: str, default: Any, is_usable: Callable[[Any], bool]) -> Any:
        name = self._prefix + key
        value = self._agreed(key, default)
        if value is None:
            raise self._file.error(f"gives no {name}")
        if key in _BY_LAYER and isinstance(value, list) and value and value.count(value[0]) == len(value):
            value = value[0]
        if not is_usable(value):
            shown = reprlib.repr(value)  # not the whole of it, which may be many megabytes
            raise self._file.error(f"gives {name} as {shown}, which cannot be")
        return value

    def _agreed(self, key: str, default: Any) -> Any:
        """The value of a key, or of a twin of it, which must be the same."""
        names = [self._prefix + each for each in (key, *_TWINS.get(key, ()))]
        self._read.update(names)
        given = [(name, self._file.metadata[name]) for name in names if name in self._file.metadata]
        for name, value in given[1:]:
            if value != given[0][1]:
                first, second = (f"{each} as {reprlib.repr(value)}" for each, value in (given[0], (name, value)))
                raise self._file.error(f"gives {first}, but {second}, which mean the same")
        return given[0][1] if given else default

    def _is_inert(self, name: str, value: object) -> bool:
        given = self._file.metadata.get(name)
        return given == value and isinstance(given, list) == isinstance(value, list)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value.encode()) <= _MAX_TEXT_BYTES


def _holds(values: object, kind: type) -> bool:
    return isinstance(values, list) and all(type(value) is kind for value in values)
