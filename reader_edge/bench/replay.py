"""Replaying recorded answers through the drafter, without a model: what of them would it have drafted?"""

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from reader_edge_runtime.config import DraftConfig
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.core import DraftingCore, RequestCore
from reader_edge_runtime.drafting.parameters import as_priors, cold_parameters
from reader_edge_runtime.drafting.sources.datastore.datastore import Datastore
from reader_edge_runtime.errors import ConfigError, PromptError
from reader_edge_runtime.text.tokenizer import Tokenizer

Float32Array = npt.NDArray[np.float32]

# The recordings' end token; any number that the tokenizer does not give out would do.
END_TOKEN_ID = 32000
MAX_DEPTH = 32
_WANTED = 'a line is {"task": text, "turns": [{"input": text, "output": text}]}'


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A request as it was recorded. turns: (input, output) token ids; an end token closes each output."""

    task: str
    turns: list[tuple[list[int], list[int]]]


@dataclass(slots=True)
class ReplayResult:
    """What a replay of one file with one node budget found.

    steps_by_task, tokens_by_task: forward passes and tokens emitted. A draft is accepted as far as it agrees.
    drafted, accepted: nodes by source. predicted, observed: each drafted node's predicted value, and whether it was
    accepted. *_us: microseconds of each draft, of learning each answer token (an equal share of its step's) and
    of each prompt token. num_bytes: the history and the largest context, in memory.
    """

    steps_by_task: Counter[str] = field(default_factory=Counter)
    tokens_by_task: Counter[str] = field(default_factory=Counter)
    drafted: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    predicted: list[float] = field(default_factory=list)
    observed: list[bool] = field(default_factory=list)
    draft_us: list[float] = field(default_factory=list)
    learn_us: list[float] = field(default_factory=list)
    prompt_us: list[float] = field(default_factory=list)
    num_bytes: int = 0

    @property
    def acceptance_length(self) -> float:
        return self.tokens_by_task.total() / max(1, self.steps_by_task.total())

    def acceptance_length_of(self, task: str) -> float:
        return self.tokens_by_task[task] / self.steps_by_task[task]

    @property
    def nodes_per_step(self) -> float:
        return len(self.predicted) / max(1, self.steps_by_task.total())

    def calibration(self) -> list[tuple[float, float, float, int]]:
        """Per tenth of predicted value with nodes in it: its lower end, mean predicted, mean observed, nodes."""
        predicted, observed = np.array(self.predicted), np.array(self.observed)
        tenths = np.minimum((predicted * 10).astype(int), 9)
        rows = [(t / 10, predicted[tenths == t], observed[tenths == t]) for t in range(10)]
        return [(low, float(p.mean()), float(o.mean()), len(p)) for low, p, o in rows if len(p)]


def read_recording(path: Path, tokenizer: Tokenizer, end_token_id: int = END_TOKEN_ID) -> list[RecordedRequest]:
    """Requests of a recording, one JSON object a line: task and turns of input and output. Raises ConfigError."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ConfigError(f"'{path}' is not UTF-8 text (byte {error.start}): {_WANTED}.") from error
    requests = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            requests.append(_recorded_request(line, tokenizer, end_token_id))
        except PromptError as error:
            raise ConfigError(f"Line {number} of '{path}': {error}") from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConfigError(f"Line {number} of '{path}' is not a recorded request: {_WANTED}.") from error
    if not any(request.turns for request in requests):
        raise ConfigError(f"'{path}' holds no recorded answer: {_WANTED}.")
    return requests


def _recorded_request(line: str, tokenizer: Tokenizer, end_token_id: int) -> RecordedRequest:
    record = json.loads(line)
    turns = []
    for turn in record["turns"]:
        texts = turn["input"], turn["output"]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError(texts)
        prompt, output = (tokenizer.encode(text, False) for text in texts)
        turns.append((prompt, [*output, end_token_id]))
    return RecordedRequest(str(record.get("task", "")), turns)


def replay(
    requests: Sequence[RecordedRequest],
    num_nodes: int,
    is_history_used: bool = True,
    parameters: Float32Array | None = None,
    datastores: Sequence[Datastore] = (),
) -> ReplayResult:
    """Replay requests in order from an empty history, with trees of up to num_nodes drafted nodes.

    parameters: what the mixture starts from; None takes those that are shipped.
    """
    config = DraftConfig(max_nodes=num_nodes + 1, max_depth=MAX_DEPTH, is_history_used=is_history_used)
    core = DraftingCore(config, parameters, datastores=datastores)
    result = ReplayResult()
    for request in requests:
        state: RequestCore | None = None
        for prompt, output in request.turns:
            start = time.perf_counter()
            state = begin_or_extend(core, state, prompt)
            result.prompt_us.append(1e6 * (time.perf_counter() - start) / max(1, len(prompt)))
            replay_answer(state, output, request.task, result)
            state.finish()
        if state is not None:
            result.num_bytes = max(result.num_bytes, core.history.num_bytes + state.num_bytes)
    return result


def begin_or_extend(core: DraftingCore, state: RequestCore | None, prompt: list[int]) -> RequestCore:
    """The state after another turn's prompt; None starts a request."""
    if state is None:
        return core.begin(prompt)
    state.extend(prompt)
    return state


def replay_answer(state: RequestCore, output: list[int], task: str, result: ReplayResult, max_nodes: int = 256) -> None:
    """Draft an answer step by step and learn it; `result` gets what was found. max_nodes: of a tree, root included."""
    position = 0
    while position < len(output):
        start = time.perf_counter()
        tree = state.draft(max_nodes, MAX_DEPTH)
        drafted = time.perf_counter()
        path = list(_accepted_path(tree, output[position:-1]))
        emitted = output[position : position + len(path) + 1]
        learning = time.perf_counter()
        state.observe(emitted)
        learned = time.perf_counter()
        result.draft_us.append(1e6 * (drafted - start))
        result.learn_us += [1e6 * (learned - learning) / len(emitted)] * len(emitted)
        result.steps_by_task[task] += 1
        result.tokens_by_task[task] += len(emitted)
        _count_nodes(tree, path, result)
        position += len(emitted)


def _accepted_path(tree: DraftTree, token_ids: Sequence[int]) -> Iterator[int]:
    """Nodes of the tree that say what came, as far as they do."""
    node = 0
    for token_id in token_ids:
        node = tree.child(node, token_id)
        if node < 0:
            return
        yield node


def _count_nodes(tree: DraftTree, path: list[int], result: ReplayResult) -> None:
    result.drafted.update(tree.sources[1:])
    result.accepted.update(tree.sources[node] for node in path)
    result.predicted += tree.values[1:]
    is_accepted = [False] * len(tree)
    for node in path:
        is_accepted[node] = True
    result.observed += is_accepted[1:]


def first_parameters(priors: str, others: Sequence[Sequence[RecordedRequest]]) -> Float32Array | None:
    """What the mixture starts from: "shipped" (None), learned from "others", or "none" at all."""
    if priors == "shipped":
        return None
    return as_priors(learn_parameters(others, cold_parameters())) if priors == "others" else cold_parameters()


def learn_parameters(recordings: Sequence[Sequence[RecordedRequest]], start: Float32Array) -> Float32Array:
    """What the mixture learns from several recordings, their requests interleaved, each with a history of its own."""
    config = DraftConfig(max_nodes=17, max_depth=MAX_DEPTH)
    cores = [DraftingCore(config, start) for _ in recordings]
    for core in cores:
        core.parameters = cores[0].parameters
    places = [((i + 0.5) / len(r), which, request) for which, r in enumerate(recordings) for i, request in enumerate(r)]
    for _, which, request in sorted(places, key=lambda place: place[:2]):
        state: RequestCore | None = None
        for prompt, output in request.turns:
            state = begin_or_extend(cores[which], state, prompt)
            replay_answer(state, output, request.task, ReplayResult())
            state.finish()
    return cores[0].parameters
