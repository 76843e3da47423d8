"""Trained heads: a small network that guesses on from the target's hidden states; see docs/head.md."""
