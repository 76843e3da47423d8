"""`/v1/rerank`, in the words that Jina and Cohere share: a query and documents in, how relevant each is out."""

import secrets
from typing import Annotated

from msgspec import Meta

from reader_edge.server.completion import CompletionRequest, CompletionRun, Json, check_model
from reader_edge.server.embeddings import MAX_INPUTS, ReadingEndpoint, readers_of, usage_of
from reader_edge.server.schema import JsonObject
from reader_edge_runtime import GenerationResult
from reader_edge_runtime.embeddings import NO_SCORES

_DOCUMENTS = f"a list of 1 to {MAX_INPUTS} texts, or of objects with 'text'"


class RerankDocument(JsonObject):
    """A document as an object."""

    text: str


class RerankBody(JsonObject, ignored="user priority", refused="rank_fields max_tokens_per_doc max_chunks_per_doc"):
    """What `/v1/rerank` takes. instruction: what makes a document relevant."""

    model: str = ""
    query: str
    documents: Annotated[list[str | RerankDocument], Meta(min_length=1, max_length=MAX_INPUTS, description=_DOCUMENTS)]
    top_n: Annotated[int, Meta(ge=1)] | None = None
    return_documents: bool = False
    instruction: str | None = None

    @property
    def texts(self) -> list[str]:
        return [each if isinstance(each, str) else each.text for each in self.documents]


class RerankEndpoint(ReadingEndpoint[RerankBody]):
    """A route's handler."""

    body_type = RerankBody
    pooling = "rank"
    refusal = NO_SCORES

    def _completion_request(self, body: RerankBody) -> CompletionRequest:
        check_model(body.model, self._settings)
        self._check_pooling(self._engine.engine.package)
        reranker = self._engine.engine.reranker()
        prompts = [reranker.prompt(body.query, text, body.instruction) for text in body.texts]
        return self._reading(prompts, [reranker.reader() for _ in prompts])

    def _whole(
        self, body: RerankBody, completion: CompletionRequest, answers: CompletionRun, results: list[GenerationResult]
    ) -> Json:
        reranker = self._engine.engine.reranker()
        scores = [reranker.score(each) for each in readers_of(completion)]
        best = sorted(range(len(scores)), key=lambda index: -scores[index])[: body.top_n]
        return {
            "id": f"rerank-{secrets.token_hex(12)}",
            "object": "list",
            "model": self._settings.model_name,
            "results": [
                {"index": index, "relevance_score": scores[index]}
                | ({"document": {"text": body.texts[index]}} if body.return_documents else {})
                for index in best
            ],
            "usage": usage_of(answers),
        }
