"""Matrices in the blocks of GGUF files.

block_type: the table of their types. blocks: a file's bytes, unpacked, and their weights (`dequantized`).
"""
