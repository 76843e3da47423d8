"""Kernels as machine code: compiled when a wheel is built, or at their first use where none came with it."""
