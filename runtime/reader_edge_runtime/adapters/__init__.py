"""Adapters of low rank (LoRA) that requests bring at run time, each its own in one batch."""
