"""What a request asks: which answers, and in what form."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from reader_edge.server.api_error import ApiError, no_model
from reader_edge.server.forms.structured_outputs import RequestedFormat
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import GenerationConfig, SamplingConfig
from reader_edge_runtime.text.conversation import Conversation, Encodable
from reader_edge_runtime.text.tool_calls.tool_use import ToolUse

Json = dict[str, object]
SEED_HEADER = "X-Seed"


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """prompts, configs: of each choice. num_choices: to each prompt, one after the other. use: of tools.

    form: of all answers. is_answer_hidden: whether the prompt alone is returned, since no token is asked for. priority:
    as of a request. names_temperature: whether it says one itself. headers: what the answer's say besides the usual.
    """

    prompts: Sequence[Encodable]
    configs: Sequence[GenerationConfig]
    num_choices: int = 1
    use: ToolUse = field(default_factory=ToolUse)
    form: RequestedFormat = field(default_factory=RequestedFormat)
    is_streamed: bool = False
    is_answer_hidden: bool = False
    priority: int = 0
    names_temperature: bool = True
    headers: Mapping[str, str] = field(default_factory=dict)

    def without_prompts(self) -> "CompletionRequest":
        """The same without conversations, which nobody needs once they are encoded."""
        return replace(self, prompts=["" if isinstance(each, Conversation) else each for each in self.prompts])

    def with_headers(self, headers: Mapping[str, str]) -> "CompletionRequest":
        """The same with further headers of its answer."""
        return replace(self, headers={**self.headers, **headers})

    def greedy(self) -> "CompletionRequest":
        """The same at temperature 0."""
        configs = [replace(each, sampling=replace(sampling_of(each), temperature=0.0)) for each in self.configs]
        headers = {name: value for name, value in self.headers.items() if name != SEED_HEADER}
        return replace(self, configs=configs, headers=headers)


def check_model(name: str, settings: ServerSettings) -> None:
    """Raise ApiError unless it is the model that is served."""
    if not name:
        raise ApiError(400, f"'model' is missing: ask for {settings.model_name!r}.", "model")
    if not settings.is_served(name):
        raise no_model(name, settings.model_name)


def with_next_seed(config: GenerationConfig, distance: int) -> GenerationConfig:
    """The config of a further choice: the same, its random numbers others."""
    sampling = sampling_of(config)
    return replace(config, sampling=replace(sampling, seed=(sampling.seed + distance) % 2**64))


def seed_headers(config: GenerationConfig) -> dict[str, str]:
    """What tells the seed of a first choice whose tokens are drawn; those of further choices follow it."""
    sampling = sampling_of(config)
    return {SEED_HEADER: str(sampling.seed)} if sampling.temperature else {}


def sampling_of(config: GenerationConfig) -> SamplingConfig:
    """How tokens are chosen, which every request's config says."""
    assert config.sampling is not None
    return config.sampling
