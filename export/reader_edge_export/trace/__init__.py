"""The trace of a source module: markers for attention, recurrent layers and matrices, and what stands in meanwhile."""
