"""One stage of a pipeline on a node of a Ray cluster: what an actor there does."""

import queue
import socket
from pathlib import Path

import ray.util

from reader_edge_runtime import EngineConfig
from reader_edge_runtime.assembly import serve_package_stage
from reader_edge_runtime.errors import ClusterError
from reader_edge_runtime.package.pipeline_file import FIRST_PORT, KEY_NAME

_END_OF_PORTS = 32768  # those behind are lent to connections, and not to be had when a stage starts again


class PlacedStage:
    """folder: of the pipeline, as this node has it. number: of the stage, from 1.

    Its methods are called from several threads. Ray makes it again where its process dies, and calls again what had not
    returned.
    """

    def __init__(self, folder: Path, number: int, num_stages: int, config: EngineConfig) -> None:
        self._folder = folder
        self._number = number
        self._num_stages = num_stages
        self._config = config
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def address(self) -> str:
        """Where this stage can listen, on this node. Raises ClusterError."""
        host = ray.util.get_node_ip_address()
        for port in range(FIRST_PORT + self._number - 1, _END_OF_PORTS, self._num_stages):
            try:
                socket.create_server((host, port)).close()
            except OSError:
                continue
            return f"tcp://{host}:{port}"
        raise ClusterError(
            f"No port below {_END_OF_PORTS} of {host} is free for stage {self._number}: end programs there."
        )

    def serve(self, address: str) -> None:
        """Serve the stage. Ends with an error alone: PackageError, ConfigError, ProviderError or InstallationError."""
        stage, key = self._folder / str(self._number), self._folder / KEY_NAME
        serve_package_stage(stage, address, key, self._config, self._lines.put)

    def next_line(self) -> str:
        """Wait for what is told next of serving it."""
        return self._lines.get()
