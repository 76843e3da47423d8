"""Where names of `reader_edge_export.blocks` used to be; gone when nothing imports it."""

from reader_edge_export.blocks.definitions import CODES_4

__all__ = ["CODES_4"]
