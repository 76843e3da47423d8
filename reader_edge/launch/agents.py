"""Coding agents that `launch` runs, and how each is pointed at a server without a change to the user's own settings."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

MAX_TOKENS = 32_768  # of an answer: agents write whole files
NO_KEY = "not-needed"  # where a client wants some key
KEY_VARIABLE = "READER_EDGE_API_KEY"
_PROVIDER = "reader-edge"
_PATIENCE_MS = 3_600_000  # on a slow machine, the first prompt alone may take minutes


@dataclass(frozen=True, slots=True)
class AgentModel:
    """A model that an agent is run on. url: of its server, without a path. key: what clients send.

    context: tokens of prompt and answer together. answer_limit: of its server.
    """

    url: str
    name: str
    context: int
    key: str = NO_KEY
    answer_limit: int = MAX_TOKENS

    @property
    def max_tokens(self) -> int:
        """Of an answer: clients leave so much of the context free for it, and use the rest."""
        return min(self.answer_limit, self.wanted_tokens)

    @property
    def wanted_tokens(self) -> int:
        """What `max_tokens` would be, if the server had no limit."""
        return min(MAX_TOKENS, self.context // 4)

    @property
    def openai_url(self) -> str:
        return f"{self.url}/v1"


@dataclass(frozen=True, slots=True)
class Setup:
    """environment: variables beside the user's own. arguments: that stand before the user's own."""

    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()


class Agent(NamedTuple):
    """title: as people call it. command: its executable. install: the command that installs it.

    setup: what it is run with; files that it needs are written to the folder that is given.
    """

    title: str
    command: str
    install: str
    setup: Callable[[AgentModel, Path], Setup]


def _claude(model: AgentModel, folder: Path) -> Setup:
    roles = ("OPUS", "SONNET", "HAIKU")
    clouds = ("BEDROCK", "MANTLE", "VERTEX", "FOUNDRY", "ANTHROPIC_AWS")  # which come before any address
    environment = {
        "ANTHROPIC_BASE_URL": model.url,
        "ANTHROPIC_AUTH_TOKEN": model.key,
        "ANTHROPIC_API_KEY": "",
        **{f"CLAUDE_CODE_USE_{cloud}": "" for cloud in clouds},
        "ANTHROPIC_MODEL": model.name,
        **{f"ANTHROPIC_DEFAULT_{role}_MODEL": model.name for role in roles},
        "CLAUDE_CODE_SUBAGENT_MODEL": model.name,
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(model.context),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(model.max_tokens),
        "API_TIMEOUT_MS": str(_PATIENCE_MS),
    }
    return Setup(environment)


def _codex(model: AgentModel, folder: Path) -> Setup:
    place = {"base_url": model.openai_url, "wire_api": "responses", "env_key": KEY_VARIABLE}
    # Comments of a stream are no word to it: after 300 s without one it would ask again.
    provider = {"name": _PROVIDER, **place, "stream_idle_timeout_ms": _PATIENCE_MS}
    table = ", ".join(f"{name} = {json.dumps(value)}" for name, value in provider.items())
    settings = {
        "model": json.dumps(model.name),
        "model_provider": json.dumps(_PROVIDER),
        f"model_providers.{_PROVIDER}": f"{{{table}}}",
        "model_context_window": str(model.context),
    }
    arguments = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    return Setup({KEY_VARIABLE: model.key}, tuple(arguments))


def _opencode(model: AgentModel, folder: Path) -> Setup:
    named = f"{_PROVIDER}/{model.name}"
    limits = {"context": model.context, "output": model.max_tokens}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": _PROVIDER,
        "options": {"baseURL": model.openai_url, "apiKey": model.key},
        "models": {model.name: {"name": model.name, "tool_call": True, "limit": limits}},
    }
    config = {"provider": {_PROVIDER: provider}, "model": named, "small_model": named}
    return Setup({"OPENCODE_CONFIG_CONTENT": json.dumps(config)})


def _aider(model: AgentModel, folder: Path) -> Setup:
    named = f"openai/{model.name}"
    limits = {"max_input_tokens": model.context, "max_output_tokens": model.max_tokens}
    file = _written(folder / "models.json", {named: limits | {"litellm_provider": "openai", "mode": "chat"}})
    urls = {name: model.openai_url for name in ("OPENAI_API_BASE", "OPENAI_BASE_URL")}  # LiteLLM takes the latter first
    environment = {**urls, "OPENAI_API_KEY": model.key}
    return Setup(environment, ("--model", named, "--model-metadata-file", str(file)))


def _qwen(model: AgentModel, folder: Path) -> Setup:
    chosen = {"model": {"generationConfig": {"contextWindowSize": model.context}}}
    defaults = _written(folder / "defaults.json", chosen)  # which the user's settings come before
    environment = {"OPENAI_API_KEY": model.key, "QWEN_CODE_SYSTEM_DEFAULTS_PATH": str(defaults)}
    place = ("--auth-type", "openai", "--openai-base-url", model.openai_url)
    return Setup(environment, (*place, "--model", model.name))


def _crush(model: AgentModel, folder: Path) -> Setup:
    described = {
        **{"id": model.name, "name": model.name},
        **{"context_window": model.context, "default_max_tokens": model.max_tokens},
    }
    provider = {
        **{"name": _PROVIDER, "type": "openai-compat", "base_url": model.openai_url, "api_key": model.key},
        "models": [described],
    }
    chosen = {"model": model.name, "provider": _PROVIDER}
    _written(folder / "crush.json", {"providers": {_PROVIDER: provider}, "models": {"large": chosen, "small": chosen}})
    return Setup({"CRUSH_GLOBAL_CONFIG": str(folder)})


def _written(path: Path, values: Mapping[str, Any]) -> Path:
    path.write_text(json.dumps(values, indent=2), encoding="utf-8")
    return path


AGENTS: Mapping[str, Agent] = {
    "claude": Agent("Claude Code", "claude", "npm install -g @anthropic-ai/claude-code", _claude),
    "codex": Agent("Codex CLI", "codex", "npm install -g @openai/codex", _codex),
    "opencode": Agent("OpenCode", "opencode", "npm install -g opencode-ai", _opencode),
    "aider": Agent("aider", "aider", "uv tool install --python 3.12 aider-chat", _aider),
    "qwen": Agent("Qwen Code", "qwen", "npm install -g @qwen-code/qwen-code", _qwen),
    "crush": Agent("Crush", "crush", "npm install -g @charmland/crush", _crush),
}
