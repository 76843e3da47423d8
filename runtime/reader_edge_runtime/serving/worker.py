"""The thread that owns the decoder: it takes answers in, steps, and hands out what each step has generated.

Another one has images of waiting requests seen, which would hold other answers up if decoding did it.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from reader_edge_runtime.answer import Answer, GenerationChunk
from reader_edge_runtime.config import ServingConfig
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.engine import Engine
from reader_edge_runtime.errors import BusyError, ClosedError

_SEEN_AHEAD = 2  # requests that wait for a slot with features of their images, which take memory
_IDLE_S = 0.01  # between steps while all slots wait for remote clients, and others for slots

# Called with each chunk of an answer, in the worker's thread; what it raises gives the answer up.
Deliver = Callable[[GenerationChunk], object]


class Worker:
    """Decodes the answers that are submitted, all together, until it is closed. Its methods serve any thread."""

    def __init__(self, engine: Engine, config: ServingConfig) -> None:
        self._engine = engine
        self._max_answers = engine.decoder.config.max_batch + config.max_waiting
        self._changed = threading.Condition()
        self._answers: dict[Answer, Deliver] = {}
        self._arrived: list[Answer] = []
        self._unseen: dict[Answer, None] = {}  # whose images nobody has seen yet, in the order in which they came
        self._towers = ThreadPoolExecutor(1, "reader-edge-images")
        self._is_closed = self._is_woken = self._is_idle = self._is_seeing = False
        self._thread = threading.Thread(target=self._run, name="reader-edge-decoder", daemon=True)
        with engine.working() as decoder:
            decoder.prefill_budget.limit = config.prompt_budget
            decoder.on_advance = self._hand_out_early
        self._thread.start()

    @property
    def num_running(self) -> int:
        """Requests that own a slot; not those that others ask of the same engine."""
        with self._changed:
            own = {answer.request for answer in self._answers}
        return sum(request in own for request in self._engine.decoder.all_running)

    @property
    def num_waiting(self) -> int:
        """Requests that own no slot yet, or whose prompts are not all scored."""
        return max(0, len(self._answers) - self.num_running)

    def submit(self, answer: Answer, deliver: Deliver) -> None:
        """Have an answer decoded. Raises BusyError, ClosedError, or CapacityError where it can never fit."""
        self._engine.decoder.check(answer.request)
        images = answer.request.images
        is_seen = images is None or images.load(lambda: False)  # known of another request
        with self._changed:
            if self._is_closed:
                raise ClosedError("The engine is closed: load it again.")
            num_running = sum(not _is_silent(each.request) for each in self._answers)
            if num_running >= self._max_answers:
                raise BusyError(f"{num_running} requests run or wait already: try again later.")
            self._answers[answer] = deliver
            if is_seen:
                self._arrived.append(answer)
            else:
                self._unseen[answer] = None
                self._see_next()
            if answer.request.remote is not None:
                answer.request.remote.on_change = self._wake
            self._changed.notify()

    def cancel(self, request: Request) -> None:
        """Give a request up before the next step."""
        self._engine.withdraw(request)
        if request.remote is not None or request.images is not None:
            self._wake()

    def _wake(self) -> None:
        """Have a step, even if all answers seemed to wait for their remote clients."""
        with self._changed:
            self._is_woken = True
            self._changed.notify()

    def close(self, cancels: bool, max_wait_s: float | None = None) -> None:
        """Take no more answers, wait until the others have ended, or cancel those, and end the thread.

        max_wait_s: for that end; None for as long as it takes.
        """
        with self._changed:
            self._is_closed = True
            if cancels:
                self._engine.withdraw(*[answer.request for answer in self._answers])
            self._is_woken = True
            self._changed.notify()
        if threading.current_thread() is not self._thread:  # where the garbage collector may run this
            self._thread.join(max_wait_s)

    def _run(self) -> None:
        while (arrived := self._wait()) is not None:
            try:
                self._step(arrived)
            except Exception as error:  # of no single request: none can be decoded on
                for answer in list(self._answers):
                    if answer.request.is_running:
                        answer.request.fail(error)
            self._hand_out()
        self._towers.shutdown(wait=False)
        with suppress(ClosedError), self._engine.working() as decoder:
            decoder.prefill_budget.limit = decoder.on_advance = None

    def _wait(self) -> list[Answer] | None:
        """Answers that came since the last step, once there is something to do; None when all is done for good."""
        with self._changed:
            self._changed.wait_for(self._has_work)
            if self._is_idle and not self._is_woken and not self._arrived:
                self._changed.wait(_IDLE_S)
            self._see_next()
            arrived, self._arrived, self._is_woken = self._arrived, [], False
            return arrived if self._answers else None

    def _has_work(self) -> bool:
        """Whether there is a step to take, or nothing will ever come."""
        if not self._answers:
            return self._is_closed
        return self._is_woken or any(each.request.can_go_on for each in self._answers if each not in self._unseen)

    def _see_next(self) -> None:
        """Have the images of the next request seen, where few hold features and wait for a slot."""
        if not self._unseen or self._is_seeing:
            return
        waiting = [answer.request for answer in self._answers if answer not in self._unseen]
        if sum(each.images is not None and not each.num_read_tokens for each in waiting) < _SEEN_AHEAD:
            self._is_seeing = True
            with suppress(RuntimeError):  # while Python ends
                self._towers.submit(self._see, min(self._unseen, key=lambda answer: answer.request.priority))

    def _see(self, answer: Answer) -> None:
        request = answer.request
        assert request.images is not None
        with request.catching_errors():
            request.images.load(lambda: request.is_running)
        with self._changed:
            self._is_seeing = False
            if answer in self._unseen:  # and was not left
                del self._unseen[answer]
                self._arrived.append(answer)
            self._see_next()
            self._changed.notify()

    def _step(self, arrived: list[Answer]) -> None:
        with self._engine.working() as decoder:  # without those that were given up
            for answer in arrived:
                with answer.request.catching_errors():
                    if answer.request.is_running:
                        decoder.enqueue(answer.request)
            self._is_idle = not decoder.step()

    def _hand_out_early(self) -> None:
        """So that no text waits for the prompts of others; nothing in steps that other threads take."""
        if threading.current_thread() is self._thread:
            self._hand_out()

    def _hand_out(self) -> None:
        with self._changed:
            answers = list(self._answers.items())
        for answer, deliver in answers:
            chunk = _taken(answer)
            if chunk is None:
                continue
            if chunk.finish_reason is not None:  # its place is free before anybody learns of the end
                self._engine.release(answer.request)
                with self._changed:
                    del self._answers[answer]
                    self._unseen.pop(answer, None)
            try:
                deliver(chunk)
            except Exception:  # nobody listens any more, as where an event loop was closed
                self.cancel(answer.request)


def _is_silent(request: Request) -> bool:
    """Whether nothing is to be done for a request as long as its remote client is away."""
    return request.remote is not None and request.remote.is_silent


def _taken(answer: Answer) -> GenerationChunk | None:
    """What an answer has to say, be it that its text failed."""
    try:
        return answer.take()
    except Exception as error:
        answer.request.fail(error)
        return GenerationChunk("", (), "error", answer.request.stats, error)
