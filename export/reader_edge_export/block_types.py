"""Where names of `reader_edge_export.blocks` used to be; gone when nothing imports it."""

from reader_edge_export.blocks.block_type import BLOCK_TYPES, BlockType
from reader_edge_export.blocks.blocks import Array, Blocks

__all__ = ["BLOCK_TYPES", "Array", "BlockType", "Blocks"]
