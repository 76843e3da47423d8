"""Trained heads: a small network that guesses on from the target's hidden states; see docs/how-to/trained-head.md."""
