"""Answers and conversations on a terminal."""
