"""The environment that the doctor checks, as a value, so that a test can describe any machine."""

import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.machine.cache_folder import cache_folder
from reader_edge_runtime.machine.processor import num_allowed_cores

_MAX_BYTES = 1 << 20  # of a file of /proc or /sys


@dataclass(frozen=True, slots=True)
class Environment:
    """A machine and a Python installation on it.

    root: where its /proc, /sys and /dev are. search_path: where Python looks for modules. system, machine: as
    `platform` names them. num_cores, num_allowed_cores: all of them, and those this process may run on. cache: the
    folder of what was measured; None for a user without one.
    """

    root: Path
    environ: Mapping[str, str]
    search_path: tuple[str, ...]
    system: str
    machine: str
    num_cores: int
    num_allowed_cores: int
    cache: Path | None

    @classmethod
    def here(cls) -> "Environment":
        try:
            cache = cache_folder()
        except ConfigError:  # check_cache reports it
            cache = None
        return cls(
            root=Path("/"),
            environ=dict(os.environ),
            search_path=tuple(filter(None, sys.path)),
            system=platform.system(),
            machine=platform.machine(),
            num_cores=os.cpu_count() or 1,
            num_allowed_cores=num_allowed_cores(),
            cache=cache,
        )

    def text(self, path: str) -> str | None:
        """What a file below the root says; None where it cannot be read."""
        try:
            with (self.root / path).open("rb") as file:
                return file.read(_MAX_BYTES).decode(errors="replace").strip()
        except (OSError, ValueError):  # a name with a null
            return None

    def has(self, path: str) -> bool:
        """Whether there is something at a path below the root."""
        return os.path.lexists(self.root / path)

    def distribution(self, name: str) -> metadata.Distribution | None:
        """An installed distribution; None where it is not on the search path."""
        return next(iter(metadata.distributions(name=name, path=list(self.search_path))), None)
