"""Chains of small operators become the one operator that they spell out, for providers that pay per operator."""
