"""The wing that brings execution and drafting together: sampling, verification, sequences, the decoding step."""
