"""Hugging Face checkpoint of a Llama or Qwen2 shape -> GGUF, and llama.cpp's own quantisation of it.

    python gguf_converter.py CHECKPOINT OUT.gguf f32|q8_0|q4_0|...
    python gguf_converter.py FILE.gguf OUT.gguf f32|q8_0|q4_0|...     (f32 widens a file of any type)

Runs in llama.cpp's environment.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
import numpy.typing as npt
from safetensors import safe_open

FILE_TYPES = {"f32": llama_cpp.LLAMA_FTYPE_ALL_F32} | {
    name.removeprefix("LLAMA_FTYPE_MOSTLY_").lower(): number
    for name, number in vars(llama_cpp).items()
    if name.startswith("LLAMA_FTYPE_MOSTLY_")
}
ARCHITECTURES = {"llama": gguf.MODEL_ARCH.LLAMA, "qwen2": gguf.MODEL_ARCH.QWEN2}

FloatArray = npt.NDArray[np.float32]


def main() -> None:
    checkpoint, out, kind = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    if checkpoint.is_file():
        quantise(checkpoint, out, FILE_TYPES[kind])
    elif kind == "f32":
        write_gguf(checkpoint, out)
    else:
        unquantised = out.with_name(f"{out.name}.f32")
        write_gguf(checkpoint, unquantised)
        quantise(unquantised, out, FILE_TYPES[kind])
        unquantised.unlink()


def write_gguf(checkpoint: Path, out: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    architecture = ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(out, gguf.MODEL_ARCH_NAMES[architecture])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_freq_base(config.get("rope_parameters", config)["rope_theta"])
    writer.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("no_vocab")  # the benchmarks hand over token ids
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    for name, array in stored_tensors(checkpoint):
        if config["model_type"] == "llama":
            array = interleave_rotary(name, array, config)
        gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if gguf_name is None:
            raise ValueError(f"llama.cpp has no name for the tensor {name}.")
        writer.add_tensor(gguf_name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def stored_tensors(checkpoint: Path) -> Iterator[tuple[str, FloatArray]]:
    """Names and values in fp32, of one file or of several shards."""
    for file in sorted(checkpoint.glob("model*.safetensors")):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  (the file object is no dict)
                yield name, tensors.get_tensor(name).float().numpy()


def interleave_rotary(name: str, array: FloatArray, config: dict[str, int]) -> FloatArray:
    """Query and key rows from half-split to interleaved rotary pairs, which llama.cpp's llama graph expects."""
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    num_heads = next((count for part, count in heads.items() if part in name), None)
    if num_heads is None:
        return array
    halves = array.reshape(num_heads, 2, -1, *array.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(array.shape)


def quantise(source: Path, out: Path, file_type: int) -> None:
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = file_type
    params.allow_requantize = True  # of a file that came quantised only its fp32 form is ever requested
    status = llama_cpp.llama_model_quantize(str(source).encode(), str(out).encode(), params)
    if status != 0:
        raise SystemExit(f"llama_model_quantize returned {status}")


if __name__ == "__main__":
    main()
