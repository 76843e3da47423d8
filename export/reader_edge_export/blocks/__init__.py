"""Matrices in the blocks of GGUF files.

block_type: the table of their types. unpack_blocks: a file's bytes, unpacked. blocks: their weights (`dequantized`).
definitions, linear: the same and products by them, as operators of a graph.
"""
