"""What comes from outside: a value in the sentence that refuses it, a path as a caller names it, a file read whole."""

import errno
import os
import sys
from pathlib import Path

from reader_edge_runtime.errors import ConfigError

_LONG = 10**20
WITHHELD = "'...'"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # which some editors and shells put before a text, and which is none of it


def short_repr(value: object) -> str:
    """The beginning of a value's `repr`; of a whole number of many digits, how large it is."""
    try:
        is_long = isinstance(value, int) and _LONG <= abs(value) <= sys.float_info.max
        shown = f"{value:g}" if is_long else repr(value)
        end = shown[-1:] if shown[-1:] in "'\"])}>" else ""
        return shown if len(shown) <= 80 else f"{shown[:76]}...{end}"
    except (ValueError, OverflowError, RecursionError):  # Python shows no number of more than 4300 digits
        return "too long to show"
    except Exception:  # an object of somebody else's
        return f"a {type(value).__name__} that cannot be shown"


def withheld(value: object) -> str:
    """What stands for a value in a sentence for logs: numbers and truth values as they are, no text."""
    return short_repr(value) if isinstance(value, bool | int | float) else WITHHELD


def given_path(path: str | os.PathLike[str], name: str) -> Path:
    """What a caller gave as `name`, as a path, whether anything is there or not.

    Raises ConfigError for what can be no path: another type, characters that no path may have, or too many of them.
    """
    try:
        found = Path(path)
        found.lstat()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name} is {short_repr(path)}, which can be no path: {error}.") from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            sentence = f"{name} is {short_repr(os.fspath(path))}, longer than a path may be: give a shorter one."
            raise ConfigError(sentence) from None
    return found


def as_text(data: bytes) -> str:
    """What a file or a pipe holds, as the text that it is in UTF-8. Raises UnicodeDecodeError."""
    return data.decode("utf-8").lstrip(BYTE_ORDER_MARK.decode())  # each tool on its way may have put one


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """A file's content; a pipe's and a device's too. Raises OSError, also where it has more than `max_bytes`.

    Whatever size a file claims, no more of it is read than its kind may have.
    """
    with path.open("rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise OSError(errno.EFBIG, f"more than the {max_bytes >> 20} MiB that are read: split it", str(path))
    return data
