"""Where models come from: each kind of source ends in a config, a PyTorch module and a tokenizer."""
