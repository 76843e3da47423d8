"""Rules by which answers may differ from the model's own, and tell by how much. No other package imports this one."""
