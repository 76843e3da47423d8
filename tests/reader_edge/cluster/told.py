"""Stages on a cluster that are served in a thread, what they tell, and where they are."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Told:
    """Lines that come from other threads."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._has_more = threading.Condition()

    def __call__(self, line: str) -> None:
        with self._has_more:
            self.lines.append(line)
            self._has_more.notify_all()

    def wait_for(self, words: str, count: int) -> None:
        with self._has_more:
            assert self._has_more.wait_for(lambda: sum(words in line for line in self.lines) >= count, 60), self.lines


@contextmanager
def serving(stages: Any) -> Iterator[None]:
    is_over = threading.Event()
    thread = threading.Thread(target=stages.serve, args=(is_over.is_set,))
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def node_of(stage: object) -> str:
    """The id of the node on which this is called."""
    import ray

    return str(ray.get_runtime_context().get_node_id())
