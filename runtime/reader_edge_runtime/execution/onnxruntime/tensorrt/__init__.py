"""Providers with memory of their own: CUDA."""
