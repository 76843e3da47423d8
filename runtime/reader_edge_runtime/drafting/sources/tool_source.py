"""Drafts of calls of declared tools: what their schemas allow next, and values of past calls (ToolSpec's idea)."""

import json
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np

from reader_edge_runtime.draft_tree import ScoredTree
from reader_edge_runtime.drafting.drafter import DraftWish, Guide
from reader_edge_runtime.drafting.sources.source import NO_GUESS, Arrays, Proposal

Past = dict[str, dict[str, list[str]]]  # as `Calls`

_MAX_TOOLS, _MAX_ARGUMENTS, _MAX_VALUES = 256, 64, 8
_MAX_BYTES = 1 << 20


class ToolSource:
    """Silent about requests without tools. is_learning: whether later requests hear of calls."""

    name = "tools"
    wants_hidden_states = False

    def __init__(self, is_learning: bool = True) -> None:
        self.past: Past = {}
        self._is_learning = is_learning

    def begin(self, token_ids: Sequence[int]) -> "ToolRequest":
        return ToolRequest(self, token_ids, None)

    def begin_guided(self, token_ids: Sequence[int], guide: Guide) -> "ToolRequest":
        return ToolRequest(self, token_ids, guide)

    def propose(self, wishes: Sequence[DraftWish]) -> list[Proposal]:
        return [cast(ToolRequest, wish.request).proposal() for wish in wishes]

    def learn(self, calls: Sequence[tuple[str, Mapping[str, str]]]) -> None:
        """Keep the values of calls, of the last tools, arguments and values alone."""
        if self._is_learning:
            self.past = recalled(self.past, calls)

    def state(self) -> Arrays:
        return {"calls": np.frombuffer(json.dumps(self.past).encode(), np.uint8)} if self.past else {}

    def restore(self, arrays: Arrays) -> None:
        self.past = {}
        if "calls" in arrays:
            said = json.loads(arrays["calls"].tobytes()[:_MAX_BYTES])
            for tool, values in said.items():
                for argument, texts in values.items():
                    for text in reversed(texts):
                        self.learn([(str(tool), {str(argument): str(text)})])


class ToolRequest:
    """token_ids: the request's own list. guide: None for a request without tools."""

    def __init__(self, source: ToolSource, token_ids: Sequence[int], guide: Guide | None) -> None:
        self._source, self._token_ids, self._guide = source, token_ids, guide
        self._num_prompt_tokens = len(token_ids)
        self._past = source.past if guide is None else recalled(source.past, guide.calls)

    def proposal(self) -> Proposal:
        """A tree of the guide's paths."""
        if self._guide is None:
            return NO_GUESS
        return merged(self._guide.paths(self._token_ids[self._num_prompt_tokens :], self._past))

    def observe(self, scored: ScoredTree | None) -> None:
        """The text alone counts."""

    def finish(self) -> None:
        if self._guide is not None:
            self._source.learn(self._guide.calls)


def recalled(past: Past, calls: Sequence[tuple[str, Mapping[str, str]]]) -> Past:
    """Past calls and newer ones."""
    found = {tool: dict(values) for tool, values in past.items()}
    for tool, arguments in calls:
        values = found.pop(tool, {})
        for argument, text in arguments.items():
            others = [other for other in values.pop(argument, []) if other != text]
            values[argument] = [text, *others][:_MAX_VALUES]
        found[tool] = dict(list(values.items())[-_MAX_ARGUMENTS:])
    return dict(list(found.items())[-_MAX_TOOLS:])


def merged(paths: Sequence[tuple[Sequence[int], float]]) -> Proposal:
    """A tree of paths with shared beginnings; a node is as sure as all paths through it, given its parent."""
    weights: dict[tuple[int, int], float] = {}  # by parent and token
    numbers: dict[tuple[int, int], int] = {}
    for token_ids, p in paths:
        parent = -1
        for token_id in token_ids:
            edge = parent, token_id
            parent = numbers.setdefault(edge, len(numbers))
            weights[edge] = weights.get(edge, 0.0) + p
    reached = dict(zip(numbers.values(), weights.values(), strict=True))
    shares = [min(1.0, weight / reached.get(parent, 1.0)) for (parent, _), weight in weights.items()]
    return Proposal([token_id for _, token_id in numbers], [parent for parent, _ in numbers], shares)
