"""Adapters of low rank, which an export merges into the weights of their model."""
