"""Targets of packages whose graph gives the new rows of the KV cache as results, whatever engine runs it."""
