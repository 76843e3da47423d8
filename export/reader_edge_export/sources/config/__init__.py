"""What config.json says: its keys, their values, and the arguments of classes of transformers."""
