"""The stages of an export, announced and timed."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stages:
    """seconds: wall time of each stage that has ended."""

    def __init__(self, on_stage: Callable[[str], None] | None) -> None:
        self._on_stage = on_stage
        self.seconds: dict[str, float] = {}

    @contextmanager
    def enter(self, name: str) -> Iterator[None]:
        if self._on_stage is not None:
            self._on_stage(name)
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start
