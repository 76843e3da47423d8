"""A batch's requests on a Ray cluster: one engine on each of its nodes. Needs the extra "ray"."""

import asyncio
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from reader_edge.batch.batch import LocalBackend
from reader_edge.models.model_source import draft_notice
from reader_edge_runtime import Engine
from reader_edge_runtime.errors import BatchError, ClusterError, ReaderEdgeError

_MAX_CONCURRENCY = 1000  # requests of a worker, which has a line of its own
_MAX_TRIES = 3  # of a request whose worker was lost: one that kills each worker must end
_CONNECT_S = 5.0
_ANSWER_S = 20.0  # for a process to start and learn of the cluster


class RayWorker:
    """An engine on a node."""

    def __init__(self, load: Callable[[], Engine], name: str, max_tokens: int) -> None:
        engine = load()
        self._notice = draft_notice(engine)
        self._backend = LocalBackend(engine, name, max_tokens)

    async def notice(self) -> str:
        """What the user has to know about drafting on this node. Nobody reads the standard error of a node."""
        return self._notice

    async def num_pending(self) -> int:
        """Requests that are worth asking it at once."""
        return self._backend.max_pending

    async def ask(self, url: str, body: dict[str, object]) -> tuple[int, Mapping[str, object]]:
        return await self._backend.ask(url, body)


class RayBackend:
    """Answers as `LocalBackend` does, by the workers of a cluster; where one is lost, by another.

    load: makes an engine, on a node. max_pending: requests that are worth asking at once. notices: what nodes tell
    of drafting there, each once.
    """

    def __init__(self, address: str, load: Callable[[], Engine], name: str, max_tokens: int) -> None:
        """Connect, and have an engine on every node. address: HOST:PORT. Raises ClusterError, or BatchError."""
        connect(address)
        try:
            nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
            places = [NodeAffinitySchedulingStrategy(node, soft=False) for node in nodes]
            actor = ray.remote(num_cpus=0, max_concurrency=_MAX_CONCURRENCY)(RayWorker)
            made = [actor.options(scheduling_strategy=place).remote(load, name, max_tokens) for place in places]
            self.max_pending = sum(ray.get([worker.num_pending.remote() for worker in made]))
            self.notices = sorted({notice for notice in ray.get([worker.notice.remote() for worker in made]) if notice})
        except RayError as error:
            ray.shutdown()
            raise BatchError(
                f"A node of the Ray cluster has no engine ({words_of(error)}): install it there."
            ) from error
        self._num_pending: dict[Any, int] = dict.fromkeys(made, 0)

    async def ask(self, url: str, body: dict[str, object]) -> tuple[int, Mapping[str, object]]:
        """See `LocalBackend.ask`. Raises BatchError where no worker is left, or none survives this request."""
        for _ in range(_MAX_TRIES):
            if not self._num_pending:
                break
            worker = min(self._num_pending, key=self._num_pending.__getitem__)
            self._num_pending[worker] += 1
            try:
                answered: tuple[int, Mapping[str, object]] = await worker.ask.remote(url, body)
                return answered
            except RayActorError:
                self._num_pending.pop(worker, None)
            except RayError as error:
                raise BatchError(f"A worker failed ({words_of(error)}): the same command resumes.") from error
            finally:
                if worker in self._num_pending:
                    self._num_pending[worker] -= 1
        raise BatchError("No worker is left to answer: the same command resumes once there are some.")

    async def __aenter__(self) -> "RayBackend":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.to_thread(ray.shutdown)


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
