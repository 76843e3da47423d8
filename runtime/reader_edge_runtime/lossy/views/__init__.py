"""Answers from two views of a prompt, mixed: all of it, and the passages that bear on its end."""
