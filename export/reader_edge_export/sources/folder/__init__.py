"""A Hugging Face folder as a source: its files, weights, tokenizer and templates."""
