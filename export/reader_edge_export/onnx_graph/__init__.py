"""The graph that is exported: reading, editing and cutting it, and the file of its weights."""
