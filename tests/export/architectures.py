"""What the layers of each architecture hold, which its graphs are compared with."""

from dataclasses import dataclass

from tests.tiny_models import NUM_LAYERS

LIMIT = 5e-6


@dataclass(frozen=True, slots=True)
class Architecture:
    """What an architecture's layers hold, beyond plain causal attention.

    name: as the README writes it. has_windows: attention to the last tokens only, where the config asks for it.
    fuses_heads: query, key and value of a layer become one RotaryHeads. fuses_swiglu: gate and up become one SwiGLU.
    num_biases: products of all layers with a bias, once those of the same rows are one.
    num_cached: layers with keys and values of their own. num_layers: all of them. num_swiglus: if they fuse.
    num_gathers: lookups at most. num_rerouted: nodes that rounding may send to other experts. limit: of errors in
    logits, which grow with the layers.
    """

    name: str
    has_windows: bool = False
    fuses_heads: bool = False
    fuses_swiglu: bool = False
    num_biases: int = 0
    num_cached: int = NUM_LAYERS
    num_layers: int = NUM_LAYERS
    num_gathers: int = 2
    limit: float = LIMIT
    num_swiglus: int = NUM_LAYERS
    num_rerouted: int = 0


ARCHITECTURES = {  # by the name of a tiny model
    "llama": Architecture("llama", fuses_heads=True, fuses_swiglu=True),
    "mistral": Architecture("mistral", has_windows=True, fuses_heads=True, fuses_swiglu=True),
    "ministral3": Architecture("ministral3", has_windows=True, fuses_heads=True, fuses_swiglu=True),
    "qwen2": Architecture("qwen2", has_windows=True, fuses_heads=True, fuses_swiglu=True, num_biases=2),
    "qwen3": Architecture("qwen3", fuses_swiglu=True),
    "gemma": Architecture("gemma", fuses_heads=True),
    "gemma2": Architecture("gemma2", has_windows=True, fuses_heads=True),
    "gemma3_text": Architecture("gemma3 (text)", has_windows=True),
    "phi": Architecture("phi", num_biases=7),
    "phi3": Architecture("phi3", has_windows=True, fuses_swiglu=True),
    "starcoder2": Architecture("starcoder2", has_windows=True, fuses_heads=True, num_biases=8),
    "smollm3": Architecture("smollm3", has_windows=True, fuses_heads=True, fuses_swiglu=True),
    "gpt2": Architecture("gpt2", num_biases=8),
    "granite": Architecture("granite", fuses_heads=True, fuses_swiglu=True),
    "olmo2": Architecture("olmo2", fuses_swiglu=True),
    "olmo3": Architecture("olmo3", has_windows=True, fuses_swiglu=True),
    "exaone4": Architecture("exaone4", has_windows=True, fuses_swiglu=True),
    "seed_oss": Architecture("seed_oss", fuses_heads=True, fuses_swiglu=True, num_biases=4),
    "arcee": Architecture("arcee", fuses_heads=True, num_biases=8),
    "hunyuan_v1_dense": Architecture("hunyuan_v1_dense", fuses_heads=True, fuses_swiglu=True, num_biases=4),
    "ernie4_5": Architecture("ernie4_5", fuses_swiglu=True, num_biases=8),
    "glm4": Architecture("glm4", fuses_swiglu=True, num_biases=2),
    "internlm3": Architecture("internlm3", fuses_heads=True, fuses_swiglu=True, num_biases=8),
    "apertus": Architecture("apertus"),
    "cohere": Architecture("cohere", num_biases=4),
    "cohere2": Architecture("cohere2", has_windows=True),
    "lfm2": Architecture("lfm2", fuses_swiglu=True, num_biases=2, num_cached=1),
    "qwen3_5_text": Architecture("qwen3_5 (text)", fuses_swiglu=True, num_biases=1, num_cached=1),
    "granitemoehybrid": Architecture("granitemoehybrid", fuses_swiglu=True, num_cached=1),
    "gemma4_text": Architecture(
        "gemma4 (text)", has_windows=True, num_cached=3, num_layers=5, num_gathers=8, limit=2 * LIMIT
    ),
    "gemma3n_text": Architecture(
        "gemma3n (text)", has_windows=True, num_cached=3, num_layers=5, num_gathers=26, limit=2 * LIMIT
    ),
    "qwen3_moe": Architecture("qwen3_moe", fuses_swiglu=True, num_rerouted=2),
    "mixtral": Architecture("mixtral", has_windows=True, fuses_heads=True, fuses_swiglu=True, num_rerouted=2),
    "gpt_oss": Architecture("gpt_oss", has_windows=True, num_biases=4, num_rerouted=2),
    "qwen3_5_moe_text": Architecture(
        "qwen3_5_moe (text)", fuses_swiglu=True, num_biases=1, num_cached=1, num_swiglus=2 * NUM_LAYERS, num_rerouted=2
    ),
    "lfm2_moe": Architecture("lfm2_moe", fuses_swiglu=True, num_biases=2, num_cached=1, num_rerouted=2),
    **{
        name: Architecture(name, fuses_swiglu=True, num_swiglus=3, num_rerouted=2)
        for name in ("deepseek_v2", "deepseek_v3", "glm4_moe_lite")
    },
    "minicpm3": Architecture("minicpm3", fuses_swiglu=True),
    "ernie4_5_moe": Architecture("ernie4_5_moe", fuses_swiglu=True, num_biases=9, num_swiglus=3, num_rerouted=2),
    "qwen3_next": Architecture(
        "qwen3_next", fuses_swiglu=True, num_cached=1, num_swiglus=2 * NUM_LAYERS, num_rerouted=3
    ),
    "falcon_h1": Architecture("falcon_h1", num_biases=2),
    "phimoe": Architecture("phimoe", fuses_heads=True, fuses_swiglu=True, num_biases=5, num_rerouted=4),
    "nemotron_h": Architecture("nemotron_h", num_biases=2, num_cached=1, num_layers=3),
    "muse_glimmer_text": Architecture("muse_glimmer (text)", has_windows=True, fuses_swiglu=True),
    "gemma4_text-experts": Architecture(
        "gemma4 (text)", has_windows=True, num_cached=5, num_layers=5, num_gathers=8, limit=2 * LIMIT, num_rerouted=5
    ),
    "nemotron_h-experts": Architecture("nemotron_h", num_biases=2, num_cached=1, num_layers=3, num_rerouted=2),
    "granitemoehybrid-experts": Architecture(
        "granitemoehybrid", fuses_swiglu=True, num_cached=1, num_swiglus=2 * NUM_LAYERS, num_rerouted=2
    ),
}
