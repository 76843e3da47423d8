"""Settings of a server: names, limits, keys."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from reader_edge.server.api_error import wrong_value
from reader_edge.server.ignored_fields import RefusedFields
from reader_edge_runtime.errors import ConfigError

MAX_CHOICES = 16
_LATEST = ":latest"
LIMIT_HEADER = "X-Max-Tokens-Limit"
LEFT_OUT_HEADER = "X-Schema-Left-Out"
# Of an answer, for thoughts, as OpenRouter has it: some of it is always left to say.
_EFFORTS = {"none": 0.0, "minimal": 0.1, "low": 0.2, "medium": 0.5, "high": 0.8, "xhigh": 0.95}


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """model_name: what clients call the model.

    api_keys: a request has any of them; none are where the server listens on this machine alone.
    max_tokens: of an answer, and what one may have that asks for no number. max_choices: answers to one request.
    max_body_bytes, max_body_s: of a request's body, and how long it may take to come. max_bodies_bytes: of those of all
    requests that are not answered yet. max_answer_s: waiting included. max_away_s: that an answer waits for a device
    whose connection was lost. logs_prompts: whether the log says the prompts. shares_between_keys: whether prompts and
    answers of one key's holders hasten those of others. refused_fields: which fields without effect are refused.
    unloads: whether models are unloaded, as clients ask for.
    max_kept_responses: that clients may go on from, in memory. max_reasoning_tokens: of requests without a budget of
    their own; None: any number. adapters: names of those that the model has now. adapter_paths: of those that may be
    loaded by their names; adapters_folder: below which others may be, None for none.

    Raises ConfigError for an adapter by a name of the model, which no request could mean.
    """

    model_name: str
    api_keys: tuple[bytes, ...] = ()
    max_tokens: int = 4096
    max_choices: int = MAX_CHOICES
    max_body_bytes: int = 4 << 20
    max_body_s: float = 30.0
    max_bodies_bytes: int = 64 << 20
    max_answer_s: float = 600.0
    max_away_s: float = 60.0
    logs_prompts: bool = False
    shares_between_keys: bool = False
    refused_fields: RefusedFields = "none"
    unloads: bool = False
    max_kept_responses: int = 0
    max_reasoning_tokens: int | None = None
    adapters: Collection[str] = ()
    adapter_paths: Mapping[str, Path] = field(default_factory=dict)
    adapters_folder: Path | None = None

    def __post_init__(self) -> None:
        for name in filter(self._is_own, (*self.adapters, *self.adapter_paths)):
            raise ConfigError(f"An adapter is called {name!r}, which means the model: give it another name.")

    @property
    def names(self) -> tuple[str, ...]:
        """What clients may ask for: the model and its adapters."""
        return self.model_name, *self.adapters

    @property
    def for_images(self) -> "ServerSettings":
        """The same with bodies that hold images."""
        return replace(self, max_body_bytes=max(self.max_body_bytes, 32 << 20), max_bodies_bytes=256 << 20)

    def is_served(self, name: str) -> bool:
        """Whether a client means the model by this name: with its tag or without, and `:latest` behind either.

        Ollama's clients add that, on OpenAI's paths too. An adapter's name means it too, alone or behind the model's.
        """
        return self._is_own(name) or self.adapter_named(name) is not None

    def adapter_named(self, name: str) -> str | None:
        """The adapter that a client means by this name: NAME or MODEL:NAME; None where that is the model alone."""
        if self._is_own(name):
            return None
        model, _, adapter = name.removesuffix(_LATEST).rpartition(":")
        return adapter if adapter in self.adapters and (not model or self._is_own(model)) else None

    def _is_own(self, name: str) -> bool:
        own = self.model_name.removesuffix(_LATEST)
        return name.removesuffix(_LATEST) in (own, untagged(own))

    def salt(self, caller: str, requested: str) -> str:
        """`GenerationConfig.cache_salt` of a request. caller: whose key was sent. requested: the body's own salt."""
        own = "" if self.shares_between_keys else caller
        return f"{own}:{requested}" if own or requested else ""

    def allowed_tokens(self, name: str, requested: int | None) -> tuple[int, dict[str, str]]:
        """How many tokens an answer may have, and the header that names the limit where more are requested.

        name: of the field that asks. requested: -1 and None ask for as many as there may be. Raises ApiError for 0.
        """
        if requested == 0:
            raise wrong_value(name, 0, "a whole number of 1 or more, or -1 for as many as there may be", name)
        if requested is None or 1 <= requested <= self.max_tokens:
            return requested or self.max_tokens, {}
        return self.max_tokens, {LIMIT_HEADER: str(self.max_tokens)}

    def reasoning_budget(self, requested: int | None, effort: object, max_tokens: int) -> int | None:
        """`GenerationConfig.max_reasoning_tokens` of a request: its own budget, else the lesser of what its effort is
        worth and the server's. effort: a word that the model's template does not know; None for none."""
        if requested is not None:
            return requested
        share = _EFFORTS.get(effort) if isinstance(effort, str) else None
        budgets = self.max_reasoning_tokens, None if share is None else int(share * max_tokens)
        return min((budget for budget in budgets if budget is not None), default=None)


def tagged(name: str) -> str:
    """A model's name with its tag, which is `latest` where it has none, as Ollama has it."""
    return name if ":" in name.rpartition("/")[2] else f"{name}{_LATEST}"


def untagged(name: str) -> str:
    """A model's name without its tag."""
    folder, slash, last = name.rpartition("/")
    return f"{folder}{slash}{last.partition(':')[0]}"
