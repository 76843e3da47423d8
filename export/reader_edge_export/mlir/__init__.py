"""A package's graph as MLIR, and modules that IREE's compiler makes of it."""
