"""Trained speculators: decoder layers that guess on from a target's states. Their networks, formats and graphs."""
