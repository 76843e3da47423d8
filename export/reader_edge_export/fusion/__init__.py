"""Chains of small operators become the one operator that they spell out, for providers that pay per operator."""

from reader_edge_export.fusion.casts import drop_plain_casts
from reader_edge_export.fusion.heads import fuse_heads
from reader_edge_export.fusion.linear import unflatten_products
from reader_edge_export.fusion.merged_heads import fuse_merged_heads
from reader_edge_export.fusion.norm import fuse_norms
from reader_edge_export.fusion.rotary import fuse_rotary
from reader_edge_export.fusion.swiglu import fuse_swiglu

__all__ = [
    "drop_plain_casts",
    "fuse_heads",
    "fuse_merged_heads",
    "fuse_norms",
    "fuse_rotary",
    "fuse_swiglu",
    "unflatten_products",
]
