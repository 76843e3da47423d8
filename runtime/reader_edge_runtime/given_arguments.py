"""What a caller gave to the engine, checked."""

from collections.abc import Callable
from typing import TypeVar

from reader_edge_runtime.config import DraftConfig, EngineConfig, GenerationConfig, ServingConfig
from reader_edge_runtime.drafting.draft_sources import DraftSources
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.outside.user_input import shown

Callback = Callable[[int, int], None]
Config = TypeVar("Config", EngineConfig, DraftConfig, DraftSources, GenerationConfig, ServingConfig)


def is_iterable(value: object) -> bool:
    """Whether it can be gone through, which not all can that say so, as an array of no dimension."""
    try:
        iter(value)  # type: ignore[call-overload]
    except TypeError:
        return False
    return True


def given_callback(callback: Callback | None, name: str) -> Callback | None:
    """Check a progress callback that a caller gave. Raises ConfigError."""
    if callback is not None and not callable(callback):
        raise ConfigError(f"{name} is {shown(callback)}, but must be a function of two numbers.")
    return callback


def given_config(config: Config | None, kind: type[Config], name: str) -> Config:
    """A config as it was given, or one of defaults. Raises ConfigError."""
    if config is not None and not isinstance(config, kind):
        raise ConfigError(f"{name} is {shown(config)}, but must be a {kind.__name__}.")
    return kind() if config is None else config
