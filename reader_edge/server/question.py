"""What a request asks: which answers, and in what form."""

from dataclasses import dataclass, replace
from typing import Protocol

from reader_edge.server.api_error import ApiError, no_model
from reader_edge.server.fields import Fields
from reader_edge.server.prediction import read_prediction
from reader_edge.server.sampling_fields import read_config, with_next_seed
from reader_edge.server.settings import ServerSettings
from reader_edge.server.structured_outputs import AnswerForm
from reader_edge.server.tool_calls import CallReader
from reader_edge.server.tool_grammar import tool_grammar
from reader_edge.server.tools import ToolUse
from reader_edge_runtime import GenerationChunk, GenerationConfig, GenerationResult
from reader_edge_runtime.text.call_form import CallForm
from reader_edge_runtime.text.conversation import Encodable
from reader_edge_runtime.text.tokenizer import Tokenizer

Json = dict[str, object]


class QuestionWording(Protocol):
    """How one of OpenAI's endpoints words questions."""

    def read_tools(self, fields: Fields) -> ToolUse:
        """The tools that the answer may call. Raises ApiError."""

    def read_prompts(self, fields: Fields, use: ToolUse) -> list[Encodable]:
        """The prompts to answer, each as often as choices are wanted. Raises ApiError."""

    def read_form(self, fields: Fields) -> AnswerForm:
        """What form the answers are to have. Raises ApiError and ConfigError."""

    def read_max_tokens(self, fields: Fields, most: int) -> int:
        """Tokens of an answer at most. most: where the request names no number."""

    def read_logprobs(self, fields: Fields) -> tuple[bool, int]:
        """Whether logprobs are wanted, and of how many likely tokens besides. Raises ApiError."""


class Wording(QuestionWording, Protocol):
    """How an endpoint that answers in choices words those too.

    id_prefix: of an answer's name. whole_object, piece_object: what whole and streamed answers are called.
    """

    id_prefix: str
    whole_object: str
    piece_object: str

    def choice(self, index: int, result: GenerationResult, tokenizer: Tokenizer, calls: CallReader | None) -> Json:
        """A whole answer, without its end. calls: what finds them in it, where there may be any."""

    def piece(
        self, index: int, chunk: GenerationChunk, is_first: bool, tokenizer: Tokenizer, calls: CallReader | None
    ) -> Json:
        """A part of an answer, without its end. calls: what reads this answer, from its beginning on."""


@dataclass(frozen=True, slots=True)
class Question:
    """prompts, configs: of each choice. num_choices: to each prompt, one after the other. use: of tools.

    form: of all answers. priority: as of a request. includes_sources: whether a stream tells what drafted its text, as
    no other server does.
    """

    prompts: list[Encodable]
    configs: list[GenerationConfig]
    num_choices: int
    use: ToolUse
    form: AnswerForm
    is_streamed: bool
    includes_usage: bool
    includes_sources: bool
    priority: int

    @classmethod
    def read(cls, fields: Fields, wording: QuestionWording, settings: ServerSettings, form: CallForm) -> "Question":
        """form: in which the model writes calls. Raises ApiError, or ConfigError for a number outside its range."""
        _check_model(fields, settings)
        use = wording.read_tools(fields)
        prompts = wording.read_prompts(fields, use)
        num_choices = fields.integer("n", 1)
        if num_choices < 1 or num_choices * len(prompts) > settings.max_choices:
            asked = f"'n' and prompts ask for {num_choices * len(prompts)} answers together"
            raise ApiError(400, f"{asked}: 1 to {settings.max_choices} are given here.", "n")
        max_tokens = wording.read_max_tokens(fields, settings.max_tokens)
        if not 1 <= max_tokens <= settings.max_tokens:
            raise ApiError(
                400,
                f"{max_tokens} tokens are asked for: an answer may have 1 to {settings.max_tokens} here.",
                "max_tokens",
            )
        config = read_config(fields, max_tokens, *wording.read_logprobs(fields))
        wanted = wording.read_form(fields)
        grammar = tool_grammar(use, form, wanted.grammar)
        config = replace(config, grammar=grammar, prediction=read_prediction(fields))
        configs = [with_next_seed(config, number) for number in range(num_choices)] * len(prompts)
        is_streamed = fields.flag("stream")
        options = Fields(fields.get("stream_options", dict, {}, "an object"))
        includes_usage, includes_sources = options.flag("include_usage"), options.flag("include_sources")
        priority = fields.integer("priority", 0)
        fields.refuse_rest()
        every = [prompt for prompt in prompts for _ in range(num_choices)]
        return cls(every, configs, num_choices, use, wanted, is_streamed, includes_usage, includes_sources, priority)


def _check_model(fields: Fields, settings: ServerSettings) -> None:
    name = fields.get("model", str, "", "the name of a model")
    if not name:
        raise ApiError(400, f"'model' is missing: ask for {settings.model_name!r}.", "model")
    if name != settings.model_name:
        raise no_model(name, settings.model_name)
