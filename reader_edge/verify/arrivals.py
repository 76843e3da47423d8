"""Requests that come and go while others run: when each comes, how long it may take, and what its answer should be."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from reader_edge.verify.logit_comparer import LogitComparer, PlainAnswer
from reader_edge_runtime import GenerationConfig
from reader_edge_runtime.adapters.adapter_set import LoadedAdapter
from reader_edge_runtime.decoding.prompt_images import EncodedImage
from reader_edge_runtime.decoding.request import Request

_PLAIN_EVERY = 4  # requests of which one is decoded plainly beside drafted ones


class StepDecoder(Protocol):
    """What the assembly's decoders offer to those who come and go."""

    on_logits: Callable[[Request, npt.NDArray[np.float32]], None] | None

    def submit(
        self,
        prompt_token_ids: Sequence[int],
        config: GenerationConfig,
        *,
        images: Sequence[EncodedImage],
        adapter: LoadedAdapter | None,
    ) -> Request: ...

    def step(self) -> list[Request]: ...

    def cancel(self, request: Request) -> None: ...


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request. step: before which it comes. num_steps: after which it is given up; None: it stays to its end."""

    plain: PlainAnswer
    is_drafted: bool
    step: int = 0
    num_steps: int | None = None


def all_at_once(answers: Sequence[PlainAnswer], is_drafted: bool) -> list[Arrival]:
    """Every answer is requested before the first step, and nobody gives up."""
    return [Arrival(plain, is_drafted) for plain in answers]


def at_random(answers: Sequence[PlainAnswer], is_drafted: bool, seed: int) -> list[Arrival]:
    """Every answer once, cut to a random length, and every second one once more by somebody who gives up, in line too.

    They come in random order, so that some find others running and some nobody. The same seed gives the same arrivals.
    """
    random = np.random.Generator(np.random.Philox(seed))
    most = max(len(plain.token_ids) for plain in answers)
    drawn: list[tuple[PlainAnswer, int | None]] = [(_cut(plain, random), None) for plain in answers]
    drawn += [(plain, int(random.integers(most // 2 + 1))) for plain in answers[::2]]
    arrivals, step = [], 0
    for number, i in enumerate(random.permutation(len(drawn)).tolist()):
        plain, num_steps = drawn[i]
        is_plain = number % _PLAIN_EVERY == _PLAIN_EVERY - 1
        arrivals.append(Arrival(plain, is_drafted and not is_plain, step, num_steps))
        step += int(random.integers(most // 6 + 1))
    return arrivals


def num_at_random(num_answers: int) -> int:
    """How many requests `at_random` makes of so many answers."""
    return num_answers + (num_answers + 1) // 2


def decode(
    decoder: StepDecoder,
    arrivals: Sequence[Arrival],
    reads_logits: bool,
    comparers: dict[Request, LogitComparer],
    is_over: Callable[[], bool],
    min_tokens: tuple[int, int],
) -> list[Arrival]:
    """Let requests come and go, in their order, and watch each answer; comparers gets one for each that came.

    is_over: called before each step. Once it says so nobody comes any more, and those who are here are cut, except that
    the first requests may decode some tokens still; min_tokens: how many requests, and how many tokens. Returns those
    that were cut, or never came. Raises what a request failed of.
    """
    running: dict[Request, Arrival] = {}
    cut: list[Arrival] = []
    if reads_logits:
        decoder.on_logits = lambda request, row: comparers[request].compare_row(request, row)
    coming, step = list(reversed(arrivals)), 0
    while coming or running:
        if not running:
            step = max(step, coming[-1].step)
        while coming and coming[-1].step <= step:
            arrival = coming.pop()
            prompt, config = arrival.plain.prompt, replace(arrival.plain.config, is_drafted=arrival.is_drafted)
            request = decoder.submit(prompt.token_ids, config, images=prompt.images, adapter=arrival.plain.adapter)
            comparers[request], running[request] = LogitComparer(arrival.plain), arrival
        tired = [
            request
            for request, arrival in running.items()
            if arrival.num_steps is not None and step >= arrival.step + arrival.num_steps
        ]
        if is_over():
            first = list(comparers)[: min_tokens[0]]
            late = [each for each in running if each not in first or each.num_output_tokens >= min_tokens[1]]
            cut += [*reversed(coming), *(running[each] for each in late if each not in tired)]
            coming.clear()
            tired += [each for each in late if each not in tired]
        for request in tired:
            decoder.cancel(request)
            comparers[request].compare_tokens(request)
            del running[request]
        if running:
            decoder.step()
        step += 1
        for request in [each for each in running if not each.is_running]:
            if request.error is not None:
                raise request.error
            comparers[request].finish(request)
            del running[request]
    return cut


def _cut(plain: PlainAnswer, random: np.random.Generator) -> PlainAnswer:
    """The beginning of an answer, half of it at least, requested as such."""
    length = int(random.integers((len(plain.token_ids) + 1) // 2, len(plain.token_ids) + 1))
    config = replace(plain.config, max_tokens=length)
    return replace(plain, config=config, token_ids=plain.token_ids[:length], digests=plain.digests[:length])
