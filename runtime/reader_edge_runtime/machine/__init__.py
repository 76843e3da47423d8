"""The machine that this runs on: its memory, its processor."""
