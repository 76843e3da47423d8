"""Where names of `reader_edge_export.blocks` used to be; gone when nothing imports it."""

from reader_edge_export.blocks.file_blocks import blocks_of

__all__ = ["blocks_of"]
