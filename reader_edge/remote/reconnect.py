"""How long a lost server is looked for."""

import time
import warnings
from collections.abc import Callable

from reader_edge.remote.connection import FrameConnection, LostError

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 2.0  # between looks


class Reconnect:
    """Looks for a lost server, ever more rarely, for so many seconds since a token came, however often it is lost.

    seconds: of looking. Seconds of a link that holds are not counted: a server may be silent over a long prompt.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._spent_s = self._wait_s = 0.0
        self._num_tokens = 0

    def find(self, linked: Callable[[], FrameConnection], error: LostError, num_tokens: int) -> FrameConnection:
        """Another link. num_tokens: that came so far. Raises LostError where the time is over, and what `linked` does.

        Warns where it is not there at once.
        """
        if num_tokens > self._num_tokens:
            self._spent_s = self._wait_s = 0.0
            self._num_tokens = num_tokens
        is_reported = False
        while self._spent_s + self._wait_s <= self._seconds:
            if self._wait_s and not is_reported:  # one that is there at once is not spoken of
                is_reported = True
                warnings.warn(f"{error} It is looked for up to {self._seconds:g} s.", RuntimeWarning, stacklevel=2)
            start = time.monotonic()
            time.sleep(self._wait_s)
            self._wait_s = min(2 * self._wait_s or _FIRST_WAIT_S, _LONGEST_WAIT_S)
            try:
                return linked()
            except LostError:
                pass
            finally:
                self._spent_s += time.monotonic() - start
        raise LostError(f"{str(error).removesuffix('.')} It was looked for {self._seconds:g} seconds.")
