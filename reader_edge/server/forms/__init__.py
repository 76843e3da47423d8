"""The form of an answer: structured outputs, and calls of tools."""
