"""GGUF files, as llama.cpp writes them: header -> config, tensors -> module, metadata -> tokenizer."""
