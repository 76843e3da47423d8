"""Where names of `reader_edge_export.blocks` used to be; gone when nothing imports it."""

from reader_edge_export.blocks.linear import StoredBlocks, gguf_linear, looked_up, store_blocks

__all__ = ["StoredBlocks", "gguf_linear", "looked_up", "store_blocks"]
