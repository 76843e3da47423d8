"""Everything hot, compiled, over flat arrays: the seam at which a native extension can take numba's place."""
