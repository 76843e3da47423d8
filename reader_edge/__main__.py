"""The command's beginning, as `reader-edge` and as `python -m reader_edge`."""

import os
import signal
import warnings
from types import FrameType

_INTERRUPTED = 130


def main() -> None:
    """Run the command line. Ctrl-C ends it without a word also while modules are imported, which may disguise it."""
    is_handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not where the shell has it ignored
    if is_handled:
        signal.signal(signal.SIGINT, _leave)
    from reader_edge.terminal.formatting import show_warning

    warnings.showwarning = show_warning  # plug-ins are looked for as modules are imported
    from reader_edge.cli import main as command_line

    if is_handled:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    command_line(prog_name="reader-edge")


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
