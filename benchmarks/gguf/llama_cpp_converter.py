"""A folder in Hugging Face format -> a GGUF file in fp32, by llama.cpp's own converter.

    python benchmarks/gguf/llama_cpp_converter.py SOURCES FOLDER OUT.gguf

SOURCES: llama.cpp's, such as vendor/llama.cpp in the source distribution of llama-cpp-python. The vocabulary is written
as GPT-2's, whatever the architecture, since the converter knows tokenizers of published models alone.
"""

import sys
from importlib import import_module
from pathlib import Path

import torch

_NEMOTRON = {"linear_attention": "M", "full_attention": "*", "mlp": "-", "moe": "E"}
_OF_EXPERTS = (
    *("num_experts_per_tok", "n_routed_experts", "n_shared_experts", "n_group", "topk_group", "norm_topk_prob"),
    *("routed_scaling_factor", "moe_intermediate_size", "moe_shared_expert_intermediate_size"),
)


def main() -> None:
    sources, folder, out = map(Path, sys.argv[1:])
    sys.path[:0] = [str(sources), str(sources / "gguf-py")]
    import gguf

    conversion = import_module("conversion")
    base = conversion.ModelBase
    config = base.load_hparams(folder, False)
    if kinds := config.get("layers_block_type"):  # Nemotron-H, whose dense layers the converter knows by letters alone
        config["hybrid_override_pattern"] = "".join(_NEMOTRON[kind] for kind in kinds)
        if "moe" not in kinds:  # transformers supposes these, and the converter makes a mixture of that
            config = {key: value for key, value in config.items() if key not in _OF_EXPERTS}
    architecture = conversion.get_model_architecture(config, conversion.ModelType.TEXT)
    model_class = conversion.get_model_class(architecture, mmproj=False)
    if model_class.supports_mtp_export:
        model_class.no_mtp = True
    import_module("conversion.base").TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
    with torch.inference_mode():
        model = model_class(folder, gguf.LlamaFileType.ALL_F32, out, model_name="tiny", hparams=config)
        writer = getattr(model, "impl", model)  # of a class that stands for several
        writer.set_vocab = writer._set_vocab_gpt2
        model.write()


if __name__ == "__main__":
    main()
