"""Operators of our own, defined by standard ones; native/ has kernels for them."""
