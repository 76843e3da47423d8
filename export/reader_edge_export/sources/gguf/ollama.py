"""What Ollama's converter writes otherwise than llama.cpp's (`convert/`, `llama/compat/` there), in words of llama.cpp.

Keys that have a second name are in `metadata.py`; here is what hangs on the architecture.
"""

from dataclasses import replace

from reader_edge_export.sources.gguf.gguf_file import GgufFile
from reader_edge_export.sources.gguf.tensor_kinds import Tensor
from reader_edge_export.sources.gguf.vocabulary import TokenKind
from reader_edge_runtime.untrusted.gguf_header import Value

_ARCHITECTURES = {"gptoss": "gpt-oss", "olmo3": "olmo2"}  # of versions before June 2026
_STATES = {".ssm_dt": ".ssm_dt.bias"}
_ENDS = {  # by the architecture in the file, how names of tensors end
    "gptoss": {
        **{f".attn_out.{kind}": f".attn_output.{kind}" for kind in ("weight", "bias")},
        ".attn_sinks": ".attn_sinks.weight",
        ".ffn_norm.weight": ".post_attention_norm.weight",
    },
    "qwen35": _STATES,
    "qwen35moe": _STATES,
    "lfm2": {"output_norm.weight": "token_embd_norm.weight"},
    "gemma4": {".ffn_gate_inp.per_expert_scale": ".ffn_down_exps.scale"},
}
# The config's own factor here; llama.cpp multiplies by what the first key gives.
_FACTOR, _YARN_FACTOR = "olmo2.rope.scaling.attn_factor", "olmo2.rope.scaling.yarn_attn_factor"
_ADDED = {TokenKind.CONTROL, TokenKind.USER_DEFINED}
# Gemma 3 of 4, 12 and 27 billion weights, whose stretched positions the converter drops: by layers, as it knows them.
_GEMMA3_LAYERS, _GEMMA3_CONTEXT, _GEMMA3_FACTOR = (34, 48, 62), 1 << 17, 8.0


def in_words_of_llama_cpp(file: GgufFile) -> GgufFile:
    """The same file, where Ollama wrote it, with llama.cpp's names of architecture, keys and tensors."""
    given = file.metadata.get("general.architecture")
    if not isinstance(given, str):
        return file
    architecture = _ARCHITECTURES.get(given, given)
    own = f"{given}."
    metadata = {
        f"{architecture}.{key.removeprefix(own)}" if key.startswith(own) else key: value
        for key, value in file.metadata.items()
    }
    metadata |= {"general.architecture": architecture, **_missing(metadata, given, file)}
    if metadata.get("olmo2.rope.scaling.type") == "yarn" and _YARN_FACTOR not in metadata and _FACTOR in metadata:
        metadata[_YARN_FACTOR] = metadata.pop(_FACTOR)
    return file.with_header(metadata, _renamed_tensors(file, _ENDS.get(given, {})))


def _renamed_tensors(file: GgufFile, ends: dict[str, str]) -> dict[str, Tensor]:
    """One whose new name another has keeps its own, for which there is no place."""
    tensors = {}
    for name, tensor in file.tensors.items():
        end = next((end for end in ends if name.endswith(end)), None)
        known = name if end is None else name.removesuffix(end) + ends[end]
        own = name if known in file.tensors else known
        tensors[own] = replace(tensor, name=own)
    return tensors


def _missing(metadata: dict[str, Value], given: str, file: GgufFile) -> dict[str, Value]:
    """What the converter leaves out, or writes wrongly."""
    if given == "gptoss":
        return {"gpt-oss.rope.scaling.type": metadata.get("gpt-oss.rope.scaling.type", "yarn")}
    gate = file.tensors.get("blk.0.ffn_gate.weight")
    if given == "lfm2" and "output_norm.weight" in file.tensors and gate is not None:
        return {"lfm2.feed_forward_length": gate.shape[0]}
    if given != "gemma3":
        return {}
    cut = _cut_vocabulary(file)
    is_stretched = any(key.startswith("gemma3.rope.scal") for key in metadata)
    if "gemma3.rope.local.freq_base" not in metadata or is_stretched:
        return cut
    layers, context = (metadata.get(f"gemma3.{key}") for key in ("block_count", "context_length"))
    if layers in _GEMMA3_LAYERS and type(context) is int and context >= _GEMMA3_CONTEXT:
        return {**cut, "gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": _GEMMA3_FACTOR}
    return cut


def _cut_vocabulary(file: GgufFile) -> dict[str, Value]:
    """Without added tokens that the model has no embedding for, such as that of images in all of Gemma 3's files."""
    embedding = file.tensors.get("token_embd.weight")
    keys = [f"tokenizer.ggml.{key}" for key in ("tokens", "scores", "token_type")]
    arrays = {key: array for key in keys if isinstance(array := file.metadata.get(key), list)}
    if embedding is None or not set(arrays.get(keys[-1], [0])[embedding.shape[0] :]) <= _ADDED:
        return {}
    return {key: array[: embedding.shape[0]] for key, array in arrays.items()}
