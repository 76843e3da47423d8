"""Acceptance rules by which answers may differ from the model's own, reporting by how much. A plug-in of the core."""
