"""Drafts of calls of declared tools: what their schemas allow next, and values of past calls (ToolSpec's idea)."""

import json
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np

from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.drafter import DraftRequest, RequestContext, RequestDrafter
from reader_edge_runtime.drafting.sources.source import Arrays, DraftSource
from reader_edge_runtime.text.tool_calls.call_predictor import CallPredictor

Past = dict[str, dict[str, list[str]]]  # values that arguments had, raw JSON, the last first, by tool and argument

_MAX_TOOLS, _MAX_ARGUMENTS, _MAX_VALUES = 256, 64, 8
_MAX_SALTS = 64
_MAX_BYTES = 1 << 20


class ToolSource(DraftSource):
    """Silent about requests without tools. is_learning: whether later requests of the same salt learn of calls.

    pasts: by salt, those that were used last.
    """

    name = "tools"

    def __init__(self, is_learning: bool = True) -> None:
        self.pasts: dict[str, Past] = {}
        self._is_learning = is_learning

    def begin(self, context: RequestContext) -> "ToolRequest | None":
        predictor = context.hints.predictor
        return None if predictor is None else ToolRequest(self, context, predictor)

    def propose(self, draft_requests: Sequence[DraftRequest]) -> list[DraftTree]:
        return [cast(ToolRequest, draft_request.request).proposal() for draft_request in draft_requests]

    def learn(self, calls: Sequence[tuple[str, Mapping[str, str]]], salt: str = "") -> None:
        """Keep the values of calls, of the last tools, arguments and values alone."""
        if self._is_learning and calls:
            self.pasts[salt] = recalled(self.pasts.pop(salt, {}), calls)
            if len(self.pasts) > _MAX_SALTS:
                del self.pasts[next(iter(self.pasts))]

    def state(self) -> Arrays:
        past = self.pasts.get("")
        return {"calls": np.frombuffer(json.dumps(past).encode(), np.uint8)} if past else {}

    def restore(self, arrays: Arrays) -> None:
        self.pasts = {}
        if "calls" in arrays:
            pasts = json.loads(arrays["calls"].tobytes()[:_MAX_BYTES])
            for tool, values in pasts.items():
                for argument, texts in values.items():
                    for text in reversed(texts):
                        self.learn([(str(tool), {str(argument): str(text)})])


class ToolRequest(RequestDrafter):
    """A request whose conversation declares tools."""

    def __init__(self, source: ToolSource, context: RequestContext, predictor: CallPredictor) -> None:
        super().__init__(context)
        self._source, self._predictor = source, predictor
        self._past = recalled(source.pasts.get(self.salt, {}), predictor.calls)

    def proposal(self) -> DraftTree:
        """A tree of the predictor's paths."""
        paths = self._predictor.paths(self.token_ids[self.num_prompt_tokens :], self._past)
        return merged(self.token_ids[-1], paths)

    def finish(self) -> None:
        self._source.learn(self._predictor.calls, self.salt)


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


def merged(pending_id: int, paths: Sequence[tuple[Sequence[int], float]]) -> DraftTree:
    """A tree of paths with shared beginnings; a node is as sure as all paths through it."""
    weights: dict[tuple[int, int], float] = {}  # by parent and token
    numbers: dict[tuple[int, int], int] = {}
    for token_ids, p in paths:
        parent = 0
        for token_id in token_ids:
            edge = parent, token_id
            parent = numbers.setdefault(edge, 1 + len(numbers))
            weights[edge] = weights.get(edge, 0.0) + p
    tree, reached = DraftTree.root(pending_id), [1.0, *weights.values()]
    for (parent, token_id), weight in weights.items():
        share = min(1.0, weight / reached[parent])
        tree.add(token_id, parent, ToolSource.name, share * tree.values[parent])
    return tree
