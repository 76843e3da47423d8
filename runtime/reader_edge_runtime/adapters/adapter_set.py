"""The adapters that an engine has, by name: loaded and dropped between its passes."""

import os
import re
import weakref
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from reader_edge_runtime.adapters.adapted_modules import module_factors, open_adapter
from reader_edge_runtime.adapters.adapter import fingerprint_of
from reader_edge_runtime.adapters.adapter_table import Factors
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.target import AdaptedTarget, Target
from reader_edge_runtime.untrusted.user_input import short_repr

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


class LoadedAdapter:
    """One that passes can read. A request holds it, so that its place is nobody else's before the request is gone.

    adapter_id: its place in the target's table. fingerprint: SHA-256 (hex) of its factors, by which texts are kept
    apart.
    """

    def __init__(self, name: str, path: Path, adapter_id: int, fingerprint: str) -> None:
        self.name = name
        self.path = path
        self.adapter_id = adapter_id
        self.fingerprint = fingerprint


class ReadAdapter:
    """What is read of an adapter, before any pass can have it. Raises AdapterError or ConfigError."""

    def __init__(self, name: str, path: Path, manifest: Manifest) -> None:
        check_adapter_name(name)
        check_takes_adapters(manifest, path)
        self.name, self.path = name, path
        self.factors: Mapping[str, Factors] = module_factors(open_adapter(path), manifest)
        self.fingerprint = fingerprint_of(sorted(self.factors.items()))


class AdapterSet(Collection[str]):
    """The names of adapters, which any thread may read, and what they mean."""

    def __init__(self) -> None:
        self._adapters: dict[str, LoadedAdapter] = {}
        self._left: deque[int] = deque()  # places whose adapters nobody holds any more

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._adapters))

    def __contains__(self, name: object) -> bool:
        return name in self._adapters

    def __len__(self) -> int:
        return len(self._adapters)

    def get(self, name: str) -> LoadedAdapter:
        """Raises ConfigError, which names those that there are."""
        found = self._adapters.get(name)
        if found is None:
            names = ", ".join(self) or "none"
            raise ConfigError(f"There is no adapter {name!r:.100}: loaded are {names}.")
        return found

    def add(self, read: ReadAdapter, target: Target) -> LoadedAdapter:
        """Have an adapter, in place of one of its name. Between passes alone. Raises ConfigError."""
        if not isinstance(target, AdaptedTarget):
            raise ConfigError(f"{target.provider} computes no adapters: leave the provider out.")
        self._clear(target)
        adapter_id = target.adapters.add(read.factors)
        loaded = LoadedAdapter(read.name, read.path, adapter_id, read.fingerprint)
        weakref.finalize(loaded, self._left.append, adapter_id)
        self._adapters[read.name] = loaded
        return loaded

    def drop(self, name: str, target: Target) -> None:
        """Have no adapter of this name; requests that have it keep it to their end. Raises ConfigError."""
        self.get(name)
        del self._adapters[name]
        self._clear(target)

    def _clear(self, target: Target) -> None:
        while self._left and isinstance(target, AdaptedTarget):
            target.adapters.drop(self._left.popleft())


def check_takes_adapters(manifest: Manifest, path: str | os.PathLike[str]) -> None:
    """Raise ConfigError for a package beside which no adapter is loaded, whatever lies at the path of one."""
    if not manifest.adapted_products:
        raise ConfigError(
            f"The package of {manifest.source_name!r} takes no adapters such as '{path}': export it for them with "
            "`reader-edge export MODEL OUT --takes-adapters`."
        )


def check_adapter_name(name: object) -> None:
    """Raise ConfigError for what can be no adapter's name."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"{short_repr(name)} can be no adapter's name: give one of letters, digits, points, dashes and underscores."
        )
