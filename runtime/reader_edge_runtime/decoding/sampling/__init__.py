"""Sampling: how the target's logits become one token, freely or under a grammar."""
