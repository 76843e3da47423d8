"""Answers that may differ from the model's own, and are measured. Nothing of the lossless path imports this wing."""
