"""A file or folder as a caller names it."""

import errno
import os
from pathlib import Path

from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.shown import shown


def given_path(path: str | os.PathLike[str], name: str) -> Path:
    """What a caller gave as `name`, as a path, whether anything is there or not.

    Raises ConfigError for what can be no path: another type, characters that no path may have, or too many of them.
    """
    try:
        found = Path(path)
        found.lstat()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name} is {shown(path)}, which can be no path: {error}.") from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise ConfigError(f"{name} is {shown(path)}, which is longer than a path may be.") from None
    return found
