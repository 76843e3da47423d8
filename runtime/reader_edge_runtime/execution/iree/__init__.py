"""IREE as the engine of execution: MLIR of a package's graph, compiled to modules for passes of certain widths."""
