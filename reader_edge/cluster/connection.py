"""The connection of this process to a Ray cluster, and the words of Ray's errors."""

import socket
import subprocess
import sys

import ray

from reader_edge_runtime.errors import ClusterError, ReaderEdgeError

_CONNECT_S = 5.0
_ANSWER_S = 20.0  # for a process to start and hear of the cluster


def connect(address: str) -> None:
    """Become a client of a cluster, until `ray.shutdown`. address: HOST:PORT. Raises ClusterError."""
    try:
        host, _, port = address.rpartition(":")
        socket.create_connection((host, int(port)), _CONNECT_S).close()
        _check_answers(address)  # something else may listen there
        ray.init(address=address, log_to_driver=False, logging_level="error")
    except (OSError, ValueError, RuntimeError) as error:
        ray.shutdown()
        sentence = f"The Ray cluster at {address!r:.100} cannot be used ({words_of(error)}): give its HOST:PORT"
        raise ClusterError(f"{sentence}.") from error


def words_of(error: Exception) -> str:
    """What an error of this project says, be it on a node; of others the last line, which is what Ray's say."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, ReaderEdgeError):
        return str(cause).rstrip(".")
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].rstrip(".")


def _check_answers(address: str) -> None:
    """Ask in a process of its own: where no cluster is, Ray's client waits for minutes and then ends its process."""
    command = [sys.executable, "-P", "-m", "ray.scripts.scripts", "health-check", f"--address={address}"]
    try:
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=_ANSWER_S)
    except subprocess.SubprocessError:
        raise ConnectionError(f"no cluster of Ray {ray.__version__} answers within {_ANSWER_S:g} seconds") from None
