"""Ways to answer tasks, tried beside each other: exact, and by lossy rules."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reader_edge.lossy.tasks import Task
from reader_edge_runtime import Engine, GenerationConfig, SamplingConfig
from reader_edge_runtime.lossy.meter import repeated_share
from reader_edge_runtime.lossy.views.views_decoder import retrieved

MAX_TOKENS = 64  # of an answer: all right ones are shorter


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer: whether it is right, what it took, and what it gave up."""

    kind: str
    is_right: bool
    token_ids: tuple[int, ...]
    num_decoded: int
    num_steps: int
    seconds: float
    num_changed: int
    nats: float
    repeated: float


@dataclass(slots=True)
class Way:
    """How tasks are answered. answers: of the first round, one a task. seconds: of each round, one a task.

    context: tokens that are retrieved of each prompt, and asked alone; 0 asks all of it.
    """

    name: str
    engine: Engine
    is_drafted: bool = True
    context: int = 0
    answers: list[Answered] = field(default_factory=list)
    seconds: list[list[float]] = field(default_factory=list)

    def answer(self, task: Task) -> Answered:
        """Answer a task as if nothing had been asked before."""
        self.engine.forget()
        prompt = task.asked(self.engine.tokenizer.has_chat_template)
        config = GenerationConfig(MAX_TOKENS, SamplingConfig(), stop=task.stop, is_drafted=self.is_drafted)
        began = time.perf_counter()
        asked = retrieved(self.engine.encode_prompt(prompt), self.context) if self.context else prompt
        result = self.engine.generate(asked, config)
        seconds = time.perf_counter() - began
        given_up: Mapping[str, Any] = result.given_up
        num_changed = given_up.get("num_changed", 0)
        nats = given_up.get("nats_per_token", 0.0) * len(result.token_ids)
        return Answered(
            task.kind,
            task.is_right(result.text),
            result.token_ids,
            result.stats.num_decoded_tokens,
            result.stats.num_steps,
            seconds,
            num_changed,
            nats,
            repeated_share(result.token_ids),
        )


def try_ways(
    ways: Sequence[Way],
    tasks: Sequence[Task],
    num_rounds: int,
    on_progress: Callable[[int, int], None],
) -> None:
    """Answer every task in every way, one way after the other for each task, in so many rounds.

    on_progress: gets answers made, and how many there are in all.
    """
    num_done = 0
    for number in range(num_rounds):
        for way in ways:
            way.seconds.append([])
        for task in tasks:
            for way in ways:
                answered = way.answer(task)
                way.seconds[-1].append(answered.seconds)
                if number == 0:
                    way.answers.append(answered)
                num_done += 1
                on_progress(num_done, num_rounds * len(tasks) * len(ways))
