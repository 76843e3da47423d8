"""A folder in Hugging Face format -> a GGUF file in fp32, by llama.cpp's own converter.

    python benchmarks/gguf/llama_cpp_converter.py SOURCES FOLDER OUT.gguf

SOURCES: llama.cpp's, such as vendor/llama.cpp in the source distribution of llama-cpp-python. The vocabulary is written
as GPT-2's, whatever the architecture, since the converter knows tokenizers of published models alone.
"""

import sys
from importlib import import_module
from pathlib import Path

import torch


def main() -> None:
    sources, folder, out = map(Path, sys.argv[1:])
    sys.path[:0] = [str(sources), str(sources / "gguf-py")]
    import gguf

    conversion = import_module("conversion")
    base = conversion.ModelBase
    architecture = conversion.get_model_architecture(base.load_hparams(folder, False), conversion.ModelType.TEXT)
    model_class = conversion.get_model_class(architecture, mmproj=False)
    if model_class.supports_mtp_export:
        model_class.no_mtp = True
    import_module("conversion.base").TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
    with torch.inference_mode():
        model = model_class(folder, gguf.LlamaFileType.ALL_F32, out, model_name="tiny")
        writer = getattr(model, "impl", model)  # of a class that stands for several
        writer.set_vocab = writer._set_vocab_gpt2
        model.write()


if __name__ == "__main__":
    main()
