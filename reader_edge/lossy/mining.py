"""Tokens that are not the model's choice, and whether its final answer stays when they take that place.

At each place of an answer the likeliest other token takes it, as if it had been drafted: drafts hold too few of them to
learn from. As AutoJudge mines them, a token that leaves the answer as it was is kept, and the search goes on behind it
in the changed text; one that does not is taken back. The text goes on exactly either way, and "answer" means the
model's own, be it right or wrong.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from reader_edge.lossy.tasks import Task
from reader_edge.lossy.trial import MAX_TOKENS
from reader_edge_runtime import Engine, GenerationConfig, SamplingConfig
from reader_edge_runtime.acceptance import AcceptanceRule, Choices
from reader_edge_runtime.arrays import Float64Array
from reader_edge_runtime.lossy.judge_figures import MOST_NATS, JudgeFigures
from reader_edge_runtime.lossy.lossy_rule import mismatch


@dataclass(frozen=True, slots=True)
class Mined:
    """Such a token: of which question and kind, what a judge sees of it, (F,), and whether it changed the answer."""

    question: int
    kind: str
    figures: Float64Array
    matters: bool


class Place(NamedTuple):
    """How many tokens of an answer come before, and the one that might stand there."""

    position: int
    token_id: int
    figures: Float64Array


class Noting(AcceptanceRule):
    """The model's own choice, everywhere; notes what might have been taken. position: of the next token."""

    name = "noting"
    is_exact = wants_log_sum_exp = True

    def __init__(self, figures: JudgeFigures, ends: Collection[int], position: int) -> None:
        self.places: list[Place] = []
        self.wants_hidden_states = figures.has_states
        self._figures, self._ends, self._positions = figures, ends, count(position)

    def next_token(self, choices: Choices, node: int) -> int:
        own, position = choices.peek(node), next(self._positions)
        found = mismatch(choices, node, own, self._ends, lambda *_: MOST_NATS, is_drafted=False)
        if found is not None:
            self.places.append(Place(position, found.token_id, self._figures.of(choices, node, found)))
        return own


class Told(NamedTuple):
    """An answer. final: what it comes to."""

    token_ids: list[int]
    final: object
    places: list[Place]


def mined(
    engine: Engine, tasks: Sequence[Task], figures: JudgeFigures, on_progress: Callable[[int, int], None]
) -> list[Mined]:
    """Those of the answers to tasks. on_progress: gets tasks done, and tasks in all."""
    found: list[Mined] = []
    for question, task in enumerate(tasks):
        prompt = engine.encode_prompt(task.asked(engine.tokenizer.has_chat_template))
        told = _told(engine, task, prompt, [], figures)
        place = next(iter(told.places), None)
        while place is not None:
            position = place.position
            other = _told(engine, task, prompt, [*told.token_ids[:position], place.token_id], figures)
            found.append(Mined(question, task.kind, place.figures, other.final != told.final))
            told = told if found[-1].matters else other
            place = next((each for each in told.places if each.position > position), None)
        on_progress(question + 1, len(tasks))
    return found


def _told(engine: Engine, task: Task, prompt: Sequence[int], begun: list[int], figures: JudgeFigures) -> Told:
    """What the model says behind the beginning of an answer, as if nothing had been asked before."""
    token_ids, places = begun, []
    text = engine.tokenizer.decode(begun)
    if len(begun) < MAX_TOKENS and not any(stop in text for stop in task.stop):
        engine.forget()
        noting = Noting(figures, engine.package.manifest.eos_token_ids, len(begun) + 1)  # behind the prompt's pass
        config = GenerationConfig(MAX_TOKENS - len(begun), SamplingConfig(), stop=task.stop, acceptance=noting)
        token_ids, places = [*begun, *engine.generate([*prompt, *begun], config).token_ids], noting.places
        text = engine.tokenizer.decode(token_ids)
    answer = min((text.partition(stop)[0] for stop in task.stop), key=len)
    return Told(token_ids, task.final(answer), [each for each in places if each.position < len(token_ids)])
