"""`/infill`: what stands between two texts, as editors ask llama.cpp's server for it."""

from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from reader_edge.server.api_error import ApiError
from reader_edge.server.completion import NO_FIM, CompletionRequest, CompletionRun, Json, check_model, seed_headers
from reader_edge.server.endpoint import Endpoint
from reader_edge.server.event_stream import EventStream
from reader_edge.server.openai.generation_body import Stop
from reader_edge.server.schema import JsonObject, within
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import GenerationChunk, GenerationConfig, GenerationResult, GenerationStats, SamplingConfig
from reader_edge_runtime.generation_config import MAX_SALT_CHARACTERS, chosen_sampling
from reader_edge_runtime.text.fill_in_middle import FillInMiddle
from reader_edge_runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from reader_edge.server.served_model import ServedModel

_MAX_FILES = 1000
_STOP_TYPES = {"stop": "eos", "length": "limit", "context": "limit"}
# How llama.cpp keeps its cache, orders samplers and cuts answers by time, and which parts of them it returns.
_IGNORED = """
    cache_prompt id_slot n_cache_reuse n_indent n_keep n_probs response_fields return_progress samplers t_max_predict_ms
    t_max_prompt_ms timings_per_token
"""


class InfillFile(JsonObject):
    """A file or a part of one that the model reads before."""

    text: str
    filename: str = "tmp"


class InfillBody(JsonObject, ignored=_IGNORED, refused="grammar json_schema logit_bias lora"):
    """What `/infill` takes. input_prefix, prompt: the texts before the gap; input_suffix: the text behind it."""

    read_once = ("input_prefix", "input_suffix", "input_extra", "prompt")

    model: Annotated[str, Meta(description="the name of a model, where there are several")] | None = None
    input_prefix: str = ""
    input_suffix: str = ""
    input_extra: Annotated[tuple[InfillFile, ...], Meta(max_length=_MAX_FILES)] = ()
    prompt: str = ""
    n_predict: Annotated[int, Meta(ge=-1)] = -1
    stream: bool = False
    draft: Annotated[bool, Meta(description="false to decode this answer plainly")] = True
    stop: Stop = ()
    cache_salt: Annotated[str, Meta(max_length=MAX_SALT_CHARACTERS)] = ""

    temperature: Annotated[float, within(SamplingConfig, "temperature")] | None = None
    top_p: Annotated[float, within(SamplingConfig, "top_p")] | None = None
    top_k: Annotated[int, Meta(ge=-1, description="a whole number of 0 or more, or -1 for all tokens")] | None = None
    min_p: Annotated[float, within(SamplingConfig, "min_p")] | None = None
    repeat_penalty: Annotated[float, within(SamplingConfig, "repetition_penalty")] | None = None
    frequency_penalty: Annotated[float, within(SamplingConfig, "frequency_penalty")] | None = None
    presence_penalty: Annotated[float, within(SamplingConfig, "presence_penalty")] | None = None
    seed: Annotated[int, Meta(description="a whole number; -1 for a new one each time")] = -1

    def sampling(self) -> dict[str, Any]:
        """What the body says of SamplingConfig."""
        names = "temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty"
        given = {name: getattr(self, name) for name in names} | {
            "top_k": None if self.top_k is None else max(self.top_k, 0),
            "repetition_penalty": self.repeat_penalty,
            "seed": None if self.seed == -1 else self.seed % 2**64,
        }
        return {name: value for name, value in given.items() if value is not None}


class InfillStream(EventStream):
    """Events of which the last one has `stop`; nothing comes behind it."""

    @property
    def _end(self) -> bytes:
        return b""


class InfillEndpoint(Endpoint[InfillBody]):
    """A route's handler."""

    body_type = InfillBody
    stream_type = InfillStream

    @classmethod
    def check_unloaded(cls, values: object, model: "ServedModel", settings: ServerSettings) -> None:
        super().check_unloaded(values, model, settings)
        _form(model.tokenizer)

    def _completion_request(self, body: InfillBody) -> CompletionRequest:
        check_model(body.model or self._settings.model_name, self._settings)
        form = _form(self._tokenizer)
        max_tokens, headers = self._settings.allowed_tokens("n_predict", body.n_predict or 1)
        engine = self._engine.engine
        max_context = engine.package.manifest.max_context
        files = [(each.filename, each.text) for each in body.input_extra]
        room = max_context - min(max_tokens, max_context // 2)
        prompt = self._tokenizer.encode_infill(body.input_prefix + body.prompt, body.input_suffix, files, room)
        config = GenerationConfig(
            max_tokens=max_tokens,
            sampling=chosen_sampling({"temperature": 0.8} | dict(engine.sampling), body.sampling()),
            stop=(body.stop,) if isinstance(body.stop, str) else body.stop,
            stop_token_ids=form.end_ids,
            cache_salt=body.cache_salt,
            is_drafted=body.draft,
        )
        if body.n_predict == 0:  # the prompt is read, for requests to come: the one token is not returned
            config = replace(config, stop=(), stop_token_ids=(), ignores_eos=True)
        return CompletionRequest(
            prompts=[prompt],
            configs=[config],
            is_streamed=body.stream,
            is_answer_hidden=body.n_predict == 0,
            names_temperature=body.temperature is not None,
            headers=headers | seed_headers(config),
        )

    def _whole(
        self, body: InfillBody, completion: CompletionRequest, answers: CompletionRun, results: list[GenerationResult]
    ) -> Json:
        return self._end(completion, results[0], results[0].stats)

    async def _events(
        self, body: InfillBody, completion: CompletionRequest, answers: CompletionRun
    ) -> AsyncGenerator[Json, None]:
        async for _, chunk in answers.pieces():
            if chunk.finish_reason is not None and chunk.stats is not None:
                yield self._end(completion, chunk, chunk.stats)
            elif chunk.text and not completion.is_answer_hidden:
                yield {"content": chunk.text, "stop": False, "index": 0}

    def _end(
        self, completion: CompletionRequest, answered: GenerationResult | GenerationChunk, stats: GenerationStats
    ) -> Json:
        """The last words of an answer, or all of it, and what it took."""
        manifest, num_read = self._engine.engine.package.manifest, stats.num_prompt_tokens - stats.num_reused_tokens
        return {
            "index": 0,
            "content": "" if completion.is_answer_hidden else answered.text,
            "stop": True,
            "stop_type": _STOP_TYPES[answered.finish_reason or "stop"],
            "model": self._settings.model_name,
            "tokens_predicted": 0 if completion.is_answer_hidden else stats.num_tokens,
            "tokens_evaluated": stats.num_prompt_tokens,
            "tokens_cached": stats.num_prompt_tokens + stats.num_tokens,
            "truncated": False,
            "generation_settings": {"n_ctx": manifest.max_context, "n_predict": completion.configs[0].max_tokens},
            "timings": {
                **{"cache_n": stats.num_reused_tokens, "prompt_n": num_read, "prompt_ms": stats.prefill_s * 1000},
                **{"predicted_n": stats.num_tokens, "predicted_ms": stats.decode_s * 1000},
                **{"draft_n": stats.num_drafted_tokens, "draft_n_accepted": stats.num_accepted_tokens},
                "prompt_per_second": num_read / stats.prefill_s if stats.prefill_s else 0.0,
                "predicted_per_second": stats.num_tokens / stats.decode_s if stats.decode_s else 0.0,
            },
        }


def _form(tokenizer: Tokenizer) -> FillInMiddle:
    """Raises ApiError."""
    if tokenizer.fill_in_middle is None:
        raise ApiError(400, f"'/infill' is not answered: {NO_FIM}", code="unsupported_parameter")
    return tokenizer.fill_in_middle
