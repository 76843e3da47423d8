"""A batch: its input checked, its output resumed, what is left answered."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from reader_edge.batch.batch_input import count_requests, read_requests
from reader_edge.batch.batch_job import BatchBackend, BatchJob
from reader_edge.batch.batch_output import BatchOutput
from reader_edge.server.endpoints import PATHS
from reader_edge_runtime.atomic_file import mode_of_all
from reader_edge_runtime.errors import BatchError, ConfigError


class Batch:
    """num_requests: of the input. num_done: those that have their line. num_refused: whose answer is a refusal."""

    def __init__(self, input_file: Path, ids: Mapping[str, str], output: BatchOutput) -> None:
        """ids: of the input's requests, by what it calls them."""
        self._input_file = input_file
        self._ids = ids
        self._output = output
        self.num_requests = len(ids)

    @property
    def num_done(self) -> int:
        return len(self._output.done)

    @property
    def num_refused(self) -> int:
        return self._output.num_refused

    async def answer(self, backend: BatchBackend, on_progress: Callable[[int, int], object]) -> None:
        """Answer what is left.

        on_progress: gets requests that are done, and all. Raises BatchError.
        """

        def tell() -> None:
            on_progress(self.num_done, self.num_requests)

        tell()
        async with backend:
            job = BatchJob(backend, self._ids, self._output, tell)
            await job.run(read_requests(self._input_file, PATHS))


@contextmanager
def open_batch(input_file: Path, output_file: Path) -> Iterator[Batch]:
    """A batch of sound files, of this process alone. Raises ConfigError, BatchError, and OSError for the input."""
    if not input_file.is_file():
        raise BatchError(f"'{input_file}' is no file, which is read twice: write the requests to one.")
    if output_file.exists() and output_file.samefile(input_file):
        raise ConfigError(f"'{output_file}' is the input too: name another file for the output.")
    ids = count_requests(input_file, PATHS)
    with BatchOutput(output_file, ids, mode_of_all([input_file])) as output:
        yield Batch(input_file, ids, output)
