"""What config.json says: its keys, their values, and the forms that transformers reads."""
