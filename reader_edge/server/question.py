"""What a request asks: which answers, and in what form."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from reader_edge.server.answer_body import AnswerBody
from reader_edge.server.api_error import ApiError, no_model
from reader_edge.server.settings import ServerSettings
from reader_edge.server.structured_outputs import AnswerForm
from reader_edge.server.tool_grammar import tool_grammar
from reader_edge.server.tools import ToolUse
from reader_edge_runtime import GenerationConfig
from reader_edge_runtime.text.call_form import CallForm
from reader_edge_runtime.text.conversation import Encodable

Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class Question:
    """prompts, configs: of each choice. num_choices: to each prompt, one after the other. use: of tools.

    form: of all answers. priority: as of a request. headers: what the answer's say besides the usual.
    """

    prompts: Sequence[Encodable]
    configs: Sequence[GenerationConfig]
    num_choices: int = 1
    use: ToolUse = field(default_factory=ToolUse)
    form: AnswerForm = field(default_factory=AnswerForm)
    is_streamed: bool = False
    priority: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, body: AnswerBody, settings: ServerSettings, call_form: CallForm) -> "Question":
        """call_form: in which the model writes calls. Raises ApiError and ConfigError."""
        check_model(body.model, settings)
        use = body.tool_use()
        prompts, num_choices = body.prompts(use), body.num_choices
        if num_choices * len(prompts) > settings.max_choices:
            asked = f"'n' and prompts ask for {num_choices * len(prompts)} answers together"
            raise ApiError(400, f"{asked}: 1 to {settings.max_choices} are given here.", "n")
        max_tokens, headers = settings.allowed_tokens(*body.asked_tokens())
        form = body.form()
        config = replace(body.config(max_tokens), grammar=tool_grammar(use, call_form, form.grammar))
        return cls(
            prompts=[prompt for prompt in prompts for _ in range(num_choices)],
            configs=[with_next_seed(config, number) for number in range(num_choices)] * len(prompts),
            num_choices=num_choices,
            use=use,
            form=form,
            is_streamed=body.stream,
            priority=body.priority,
            headers=headers,
        )


def check_model(name: str, settings: ServerSettings) -> None:
    """Raise ApiError unless it is the model that is served."""
    if not name:
        raise ApiError(400, f"'model' is missing: ask for {settings.model_name!r}.", "model")
    if name != settings.model_name:
        raise no_model(name, settings.model_name)


def with_next_seed(config: GenerationConfig, distance: int) -> GenerationConfig:
    """The config of a further choice: the same, its random numbers others."""
    seed = (config.sampling.seed + distance) % 2**64
    return replace(config, sampling=replace(config.sampling, seed=seed))
