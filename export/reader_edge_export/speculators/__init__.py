"""Trained speculators: small networks that draft from a target's hidden states. Their modules, formats and graphs."""
