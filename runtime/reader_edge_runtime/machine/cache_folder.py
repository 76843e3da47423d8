"""The folder in which a user's models, measurements and compiled modules are kept."""

from pathlib import Path

from platformdirs import user_cache_path

from reader_edge_runtime.errors import ConfigError


def cache_folder() -> Path:
    """Raises ConfigError for a user without a home, as containers have them."""
    try:
        return user_cache_path("reader-edge")
    except RuntimeError:
        raise ConfigError("This user has no home folder: set XDG_CACHE_HOME to a folder for models.") from None
