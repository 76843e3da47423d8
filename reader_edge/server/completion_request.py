"""What a request asks: which answers, and in what form."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from reader_edge.server.api_error import ApiError, no_model
from reader_edge.server.forms.structured_outputs import RequestedFormat
from reader_edge.server.forms.tools import ToolUse
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import GenerationConfig
from reader_edge_runtime.text.conversation import Encodable

Json = dict[str, object]


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

    def greedy(self) -> "CompletionRequest":
        """The same at temperature 0."""
        samplings = [replace(config.sampling, temperature=0.0) for config in self.configs]
        configs = [replace(config, sampling=each) for config, each in zip(self.configs, samplings, strict=True)]
        return replace(self, configs=configs)


def check_model(name: str, settings: ServerSettings) -> None:
    """Raise ApiError unless it is the model that is served."""
    if not name:
        raise ApiError(400, f"'model' is missing: ask for {settings.model_name!r}.", "model")
    if not settings.is_served(name):
        raise no_model(name, settings.model_name)


def with_next_seed(config: GenerationConfig, distance: int) -> GenerationConfig:
    """The config of a further choice: the same, its random numbers others."""
    seed = (config.sampling.seed + distance) % 2**64
    return replace(config, sampling=replace(config.sampling, seed=seed))
