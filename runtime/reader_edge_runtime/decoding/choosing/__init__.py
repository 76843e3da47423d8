"""How the target's logits become one token."""
