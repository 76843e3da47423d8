"""Brings execution and drafting together: sampling, verification, scheduling, the decoding step."""
