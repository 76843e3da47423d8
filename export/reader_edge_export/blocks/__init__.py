"""Matrices in the blocks of GGUF files: the table of their types, their bytes taken apart, products by them."""
