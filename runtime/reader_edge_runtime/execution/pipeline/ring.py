"""The ring of a pipeline's machines, from where answers are made: to the first stage, on to each next, and back."""

import secrets
import time
import warnings
from collections import deque
from collections.abc import Callable, Sequence

import zmq
from zmq.utils.monitor import recv_monitor_message

from reader_edge_runtime.errors import FrameError, PackageError, ProviderError, StageLostError
from reader_edge_runtime.execution.onnxruntime.host.host_stage import HostStage
from reader_edge_runtime.execution.pipeline.handshake import (
    FACT_FRAMES,
    FAULT,
    HEADERS,
    HELLO,
    MICROSECONDS,
    PASS,
    RESULT,
    WELCOME,
    Header,
    check_facts,
    check_layers,
    facts_of,
    stage_name,
)
from reader_edge_runtime.execution.pipeline.in_flight import FinishedPass, RowsLostError
from reader_edge_runtime.execution.pipeline.links import REFUSED, Links, Socket, parts_of
from reader_edge_runtime.execution.pipeline.stage_server import max_message_bytes

ANSWER_S = 5.0  # in which a stage that is there answers a greeting
PASS_S = 120.0  # the longest pass: boxes that are there and do not hand on
RECONNECT_S = 30.0  # for a lost stage to come back
_BETWEEN_PLACES_S = 0.1  # where none of a stage's boxes listens, they are tried in turn


class Ring:
    """A `FollowingStages` over links. facts: addresses, versions and instruction sets of all boxes."""

    def __init__(
        self,
        last: HostStage,
        addresses: Sequence[str],
        key: bytes | None,
        find_addresses: Callable[[], Sequence[str]] | None = None,
    ) -> None:
        """addresses: of each stage, with spare ones behind it, by spaces. find_addresses: those of now, if they change.

        Raises StageLostError for a box that does not answer, ProviderError for one with something else.
        """
        self.reconnect_s = RECONNECT_S
        self.pass_s = PASS_S
        self._last = last
        self._addresses = tuple(addresses)
        self._find_addresses = find_addresses or (lambda: self._addresses)
        self._places = [deque(each.split()) for each in addresses]  # of each stage, the one that is tried first
        self._key = key
        self._client = secrets.token_bytes(16)
        self._number = 0
        self._links: Links | None = None
        self._sockets: list[Socket] = []
        self._monitors: list[Socket] = []
        self._poller = zmq.Poller()
        self._reported: set[str] = set()
        self.facts: tuple[str, ...] = ()
        self.slowest_s = 0.0
        self._meet_within(ANSWER_S * (1 + sum(len(places) - 1 for places in self._places)))

    def send(self, frame: bytes) -> int:
        self._number += 1
        if not self._sockets:
            raise StageLostError("The stages of this model were lost, and did not come back.")
        try:
            self._sockets[0].send_multipart(
                [HEADERS.pack(Header(PASS, self._client, self._number)), frame], zmq.DONTWAIT, copy=False
            )
        except zmq.Again:
            raise StageLostError(f"{self._name(0)} takes nothing more: start it again.") from None
        except BaseException:  # an interrupt may leave half a message, to which the next one would be added
            self.close()
            raise
        return self._number

    def receive(self) -> FinishedPass:
        ends_at = time.monotonic() + self.pass_s
        while True:
            ready = dict(self._poller.poll(max(0, int(1000 * (ends_at - time.monotonic())))))
            if not ready:
                raise StageLostError(
                    f"No stage handed a pass on within {self.pass_s:.0f} s, though all of them are there: see what "
                    "they tell, and whether each reaches the next."
                )
            for index, socket in enumerate(self._sockets):
                if socket in ready:
                    try:
                        parts = parts_of(socket)
                    except BaseException:  # an interrupt, which may leave half a message
                        self.close()
                        raise
                    header, data = _message(parts)
                    if header.what == FAULT and header.client == self._client:
                        return FinishedPass(header.number, self._fault(index, FACT_FRAMES.unpack(data)))
                    if header.what == RESULT and header.client == self._client:
                        return FinishedPass(header.number, data)
            for index, monitor in enumerate(self._monitors):
                if monitor in ready:
                    recv_monitor_message(monitor)
                    raise StageLostError(f"{self._name(index)} is gone or silent: {self._remedy(index)}.")

    def come_back(self, lost: StageLostError) -> None:
        warnings.warn(f"{lost} Answers wait up to {self.reconnect_s:.0f} s.", RuntimeWarning, stacklevel=2)
        self._meet_within(self.reconnect_s)

    def _meet_within(self, rest_s: float) -> None:
        """rest_s: seconds of waiting; a process that was stopped itself meanwhile has not waited."""
        while True:
            try_s, began_at = min(rest_s, ANSWER_S), time.monotonic()
            try:
                return self._meet(began_at + try_s)
            except StageLostError:
                rest_s -= min(time.monotonic() - began_at, try_s)
                if rest_s <= 0:
                    raise

    def close(self) -> None:
        self._sockets, self._monitors, self._poller = [], [], zmq.Poller()
        if self._links is not None:
            self._links.close()
            self._links = None

    def _meet(self, ends_at: float) -> None:
        """Connect to all stages again. They forget the caches of this client; what they say is compared."""
        self.close()
        self._find_places()
        self._links = Links(self._key)
        try:
            found = self._greeted(self._links, ends_at)
        except BaseException:  # an interrupt too: links that were not greeted would be taken for those that were
            self.close()
            raise
        for monitor in self._monitors:  # of links that were lost before the greeting was answered
            while monitor.poll(0):
                recv_monitor_message(monitor)
        for socket in (*self._sockets, *self._monitors):
            self._poller.register(socket, zmq.POLLIN)
        self.slowest_s = max(_pass_seconds(each.pop(MICROSECONDS, "")) for each in found.values())
        self.facts = tuple(f"{address} {sorted(each.items())}" for address, each in found.items())

    def _find_places(self) -> None:
        """Learn where stages are now that were moved."""
        try:
            addresses = tuple(self._find_addresses())
        except PackageError as error:
            raise StageLostError(str(error)) from None
        if addresses != self._addresses and len(addresses) == len(self._addresses):
            self._addresses, self._places = addresses, [deque(each.split()) for each in addresses]

    def _greeted(self, links: Links, ends_at: float) -> dict[str, dict[str, str]]:
        """What each stage says of itself, by its address."""
        addresses = [places[0] for places in self._places]
        for index, address in enumerate(addresses):
            socket = links.connect(address, max_message_bytes(self._last.part.width))
            self._sockets.append(socket)
            self._monitors.append(links.monitor(socket))
            following = addresses[index + 1 : index + 2]
            greeting = FACT_FRAMES.pack({"next": following[0]} if following else {})
            socket.send_multipart([HEADERS.pack(Header(HELLO, self._client, index)), greeting])
        wanted, found = facts_of(self._last), {}
        for index, address in enumerate(addresses):
            if not self._is_answered(index, ends_at):
                key, name = "with the same key" if self._key is not None else "without a key", self._names(index)
                self._places[index].rotate(-1)
                raise StageLostError(
                    f"{name} does not answer: start `reader-edge stage` there, {key}, or correct pipeline.json."
                )
            try:
                facts = _welcome(parts_of(self._sockets[index]))
                number = stage_name(self._last.part, index + 1)
                odd = check_facts(facts, {**wanted, "stage": number}, address)
            except ProviderError as error:
                raise self._unsuited([index], error) from None
            if odd:
                self._warn(odd)
            found[address] = facts
        try:
            check_layers(found, wanted)
        except ProviderError as error:
            raise self._unsuited(range(len(addresses)), error) from None
        return found

    def _unsuited(self, indices: Sequence[int], error: ProviderError) -> ProviderError:
        """The error of stages that do not fit; where one of them has another box, that is tried next."""
        spares = [self._places[index] for index in indices if len(self._places[index]) > 1]
        for places in spares:
            places.rotate(-1)
        if not spares:
            return error
        self._warn(str(error))
        time.sleep(_BETWEEN_PLACES_S)
        return StageLostError(str(error))

    def _is_answered(self, index: int, ends_at: float) -> bool:
        """Whether a stage answers in time. One with a spare is not waited for where nothing listens."""
        poller, monitor = zmq.Poller(), self._monitors[index]
        poller.register(self._sockets[index], zmq.POLLIN)
        if len(self._places[index]) > 1:
            poller.register(monitor, zmq.POLLIN)
        while ready := dict(poller.poll(max(0, int(1000 * (ends_at - time.monotonic()))))):
            if self._sockets[index] in ready:
                return True
            if recv_monitor_message(monitor)["event"] == REFUSED:
                time.sleep(_BETWEEN_PLACES_S)
                return False
        return False

    def _fault(self, index: int, fault: dict[str, str]) -> ProviderError:
        kind = {"rows": RowsLostError, "all": StageLostError}.get(fault.get("lost", ""), ProviderError)
        return kind(f"{self._name(index)} failed: {fault.get('fault', 'it does not say why.')}")

    def _name(self, index: int) -> str:
        return f"Stage {index + 1} at {self._places[index][0]}"

    def _names(self, index: int) -> str:
        return f"Stage {index + 1} at {self._addresses[index].replace(' ', ' or ')}"

    def _remedy(self, index: int) -> str:
        spares = list(self._places[index])[1:]
        return f"start it again; meanwhile {' and '.join(spares)} may go on" if spares else "start it again"

    def _warn(self, line: str) -> None:
        """Tell once."""
        if line not in self._reported:
            self._reported.add(line)
            warnings.warn(line, RuntimeWarning, stacklevel=2)


def _pass_seconds(micros: str) -> float:
    if not micros.isdecimal() or len(micros) > 9:
        raise FrameError(f"A stage's pass takes {micros!r:.40} µs.")
    return int(micros) / 1e6


def _message(parts: Sequence[memoryview]) -> tuple[Header, memoryview]:
    if len(parts) != 2:
        raise FrameError(f"A message of {len(parts)} parts came from a stage.")
    return HEADERS.unpack(parts[0]), parts[1]


def _welcome(parts: Sequence[memoryview]) -> dict[str, str]:
    header, data = _message(parts)
    if header.what != WELCOME:
        raise FrameError("A stage answers a greeting with something else.")
    return FACT_FRAMES.unpack(data)
