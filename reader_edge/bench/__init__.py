"""Measurements of `reader-edge bench`, apart from their reports."""
