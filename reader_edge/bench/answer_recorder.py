"""Records a model's plain answers for `bench replay`: texts, token ids, likeliest successors."""

import json
from collections.abc import Iterator, Sequence

from reader_edge.bench.fixed_budget import answer_at
from reader_edge.prompts import EvalPrompt
from reader_edge_runtime import DraftConfig, Engine, GenerationConfig, ReaderEdgeError
from reader_edge_runtime.draft_tree import DraftTree, ScoredTree
from reader_edge_runtime.drafting.drafter import Drafter, DraftRequest, RequestContext, RequestDrafter


def record_answers(engine: Engine, questions: Sequence[EvalPrompt], config: GenerationConfig) -> Iterator[str]:
    """A line of JSON for each question, with its plain answer; `read_recording` reads it."""
    fingerprint, manifest = engine.tokenizer.fingerprint(), engine.package.manifest
    for number, question in enumerate(questions, start=1):
        recorder = TopTokenRecorder()
        request = answer_at(engine, question, config, recorder, num_nodes=1)
        prompt, output = request.token_ids[: request.num_prompt_tokens], request.output_token_ids
        turn = {
            "input": engine.tokenizer.decode(prompt),
            "output": engine.tokenizer.decode(output),
            "input_ids": prompt,
            "output_ids": output,
            "positions": recorder.positions,
            "top_ids": recorder.top_ids,
            "top_logits": recorder.top_logits,
        }
        facts = {
            "id": str(number),
            "task": question.category,
            "model": manifest.source_name,
            "tokenizer": fingerprint,
            "vocab_size": manifest.vocab_size,
        }
        yield json.dumps({**facts, "turns": [turn]}, ensure_ascii=False)


class TopTokenRecorder(Drafter):
    """A drafter of one request that drafts nothing and keeps what the target says.

    positions, top_ids, top_logits: see `recording.Successors`.
    """

    num_harvested_rows = DraftConfig().max_harvested_tokens

    def __init__(self) -> None:
        self.positions: list[int] = []
        self.top_ids: list[list[int]] = []
        self.top_logits: list[list[float]] = []

    def begin(self, context: RequestContext) -> RequestDrafter:
        return _TopTokenRequest(self, context)

    def draft(self, draft_requests: Sequence[DraftRequest]) -> list[DraftTree | ReaderEdgeError]:
        return [DraftTree.root(draft_request.request.token_ids[-1]) for draft_request in draft_requests]


class _TopTokenRequest(RequestDrafter):
    def __init__(self, recorder: TopTokenRecorder, context: RequestContext) -> None:
        super().__init__(context)
        self._recorder = recorder

    def observe(self, scored: ScoredTree | None) -> None:
        if scored is not None:
            self._recorder.positions += [scored.root + row for row in scored.rows]
            self._recorder.top_ids += scored.top_ids.tolist()
            # As few digits as tell a float32 apart.
            self._recorder.top_logits += [[float(str(logit)) for logit in row] for row in scored.top_logits]
