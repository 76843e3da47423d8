"""The connection of this process to a Ray cluster, and the words of Ray's errors."""

import socket

import ray

from reader_edge_runtime.errors import ClusterError

_CONNECT_S = 5.0


def connect(address: str) -> None:
    """Become a client of a cluster, until `ray.shutdown`. address: HOST:PORT. Raises ClusterError."""
    try:
        host, _, port = address.rpartition(":")
        socket.create_connection((host, int(port)), _CONNECT_S).close()  # else Ray would try for minutes
        ray.init(address=address, log_to_driver=False, logging_level="error")
    except (OSError, ValueError, RuntimeError) as error:
        ray.shutdown()
        sentence = f"The Ray cluster at {address!r:.100} cannot be used ({words_of(error)}): give its HOST:PORT"
        raise ClusterError(f"{sentence}.") from error


def words_of(error: Exception) -> str:
    """The last line of an error, which is what Ray's say."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].rstrip(".")
