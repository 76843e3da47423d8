"""Adapters of low rank (LoRA): how their files are read, and those that requests bring, each its own in one batch."""
