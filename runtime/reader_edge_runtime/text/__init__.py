"""Text and token ids: tokenizer, chat template, streaming."""
