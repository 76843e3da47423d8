"""Drafts of a trained speculator: a small network that reads states of the target, in one tree with retrieval."""
