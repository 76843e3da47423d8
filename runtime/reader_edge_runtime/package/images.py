"""What a manifest says of the images that a model sees: the rules by which pixels become its tower's inputs."""

import math
from typing import Annotated, Literal

from msgspec import Meta, Struct, structs

QWEN_FAMILIES = ("qwen3_5", "qwen3_vl", "qwen2_5_vl")
TILED_FAMILIES = ("smolvlm", "idefics3")

Family = Literal[
    "qwen3_5", "qwen3_vl", "qwen2_5_vl", "mistral3", "lfm2_vl", "gemma3", "gemma4", "smolvlm", "idefics3"
]  # `model_type` of the source
Filter = Literal["bilinear", "bicubic", "lanczos"]

_AREA = ("min_pixels", "max_pixels")
_TILES = ("longest_edge", "tile_size")
_NUMBERS = {  # those that a family's rules have, beside the ones that all have
    "qwen3_5": (*_AREA, "position_side"),
    "qwen3_vl": (*_AREA, "position_side"),
    "qwen2_5_vl": (*_AREA, "window_size"),
    "mistral3": ("longest_edge",),
    "lfm2_vl": (*_AREA, "tile_size", "min_tiles", "max_tiles", "position_side"),
    "gemma3": ("tile_size",),
    "gemma4": ("max_pixels",),
    "smolvlm": _TILES,
    "idefics3": _TILES,
}
_OPTIONAL_NUMBERS = sorted({name for names in _NUMBERS.values() for name in names})
_PLACEHOLDERS = {"mistral3": "[IMG]", "gemma3": "<image_soft_token>", "gemma4": "<|image|>"} | dict.fromkeys(
    QWEN_FAMILIES, "<|image_pad|>"
)
MAX_TILES = 256
MAX_IMAGE_TOKENS = 1 << 20  # of an image
MAX_RESIZED = 1 << 26  # pixels of an image in any of its sizes
_MOST_POSITION_WEIGHTS = 1 << 23
_LEAST_STD = 2.0**-10  # of values from 0 to 1: beyond, pixels would be no finite numbers

_Side = Annotated[int, Meta(ge=1, le=64)]
_Pixels = Annotated[int, Meta(ge=0, le=MAX_RESIZED)]
_Edge = Annotated[int, Meta(ge=0, le=4096)]
_Channels = Annotated[tuple[Annotated[float, Meta(ge=-16, le=16)], ...], Meta(max_length=3)]


def placeholder_of(family: str) -> str:
    """See `ImageRules.placeholder`."""
    return _PLACEHOLDERS.get(family, "<image>")


class ImageRules(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How an image becomes the inputs of a vision tower, as transformers' processor of the model does it.

    patch_size: pixels of the side of a patch. merge_size: patches of the side of a token. filter: of the resize.
    mean, std: of each channel, whose values are from 0 to 1; both () where values stay so.
    Those that a family does not have are 0: min_pixels, max_pixels: of a resized image; longest_edge: its longer side
    (at most, in mistral3). tile_size: pixels of the side of a tile, in gemma3 of every image. cuts_tiles: whether large
    images are cut into tiles, from min_tiles to max_tiles in lfm2_vl; has_overview: whether there a small whole image
    comes behind them, as it does in other families. position_side: rows, and columns, of the tower's table of
    positions. window_size: pixels of the side of a window of attention.
    """

    family: Family
    patch_size: _Side
    merge_size: _Side
    filter: Filter
    mean: _Channels = ()
    std: _Channels = ()
    min_pixels: _Pixels = 0
    max_pixels: _Pixels = 0
    longest_edge: _Edge = 0
    tile_size: _Edge = 0
    cuts_tiles: bool = False
    min_tiles: Annotated[int, Meta(ge=0, le=MAX_TILES)] = 0
    max_tiles: Annotated[int, Meta(ge=0, le=MAX_TILES)] = 0
    has_overview: bool = False
    position_side: Annotated[int, Meta(ge=0, le=1024)] = 0
    window_size: _Edge = 0

    def __post_init__(self) -> None:
        for name in _OPTIONAL_NUMBERS:
            if bool(getattr(self, name)) != (name in _NUMBERS[self.family]):
                raise ValueError(f"{name} is a number of other families, or is missing in {self.family}")
        if (len(self.mean), len(self.std)) not in ((0, 0), (3, 3)) or not all(
            abs(each) >= _LEAST_STD for each in self.std
        ):
            raise ValueError("mean and std are three numbers each or none, and no std is near 0")
        self._check_sizes()

    def _check_sizes(self) -> None:
        if self.max_pixels and not self.unit**2 <= max(self.min_pixels, self.unit**2) <= self.max_pixels:
            raise ValueError("max_pixels is less than min_pixels, or than a token's pixels")
        side = self.tile_size // self.patch_size
        if self.tile_size and (not side or side % self.merge_size):
            raise ValueError("tile_size is no whole number of tokens")
        if self.family in ("gemma3", "lfm2_vl") and self.tile_size % self.unit:
            raise ValueError("tile_size is no multiple of patch_size * merge_size")
        num_tiles = math.ceil(self.longest_edge / self.tile_size) ** 2 if self.tile_size else 0
        if num_tiles > MAX_TILES or (self.max_tiles and not 2 <= self.min_tiles <= self.max_tiles):
            raise ValueError(f"an image has from 2 to {MAX_TILES} tiles")
        if self.max_tiles * self.tile_size**2 > MAX_RESIZED:
            raise ValueError(f"an image's tiles have at most {MAX_RESIZED} pixels together")
        num_patches = max(self.tile_size**2, self.max_pixels) // self.patch_size**2
        if self.family == "lfm2_vl" and num_patches * self.position_side**2 > _MOST_POSITION_WEIGHTS:
            raise ValueError(f"positions have at most {_MOST_POSITION_WEIGHTS} weights")
        if self.window_size % self.unit:
            raise ValueError("window_size is no multiple of patch_size * merge_size")

    def within(self, max_tokens: int) -> "ImageRules":
        """The same, by which images that are seen whole have at most so many tokens, 256 or more."""
        if self.family == "mistral3":
            return structs.replace(self, longest_edge=min(self.longest_edge, math.isqrt(max_tokens) * self.unit))
        if self.tile_size:
            return self
        most = min(self.max_pixels, max_tokens * self.unit**2)
        return structs.replace(self, max_pixels=most, min_pixels=min(self.min_pixels, most))

    @property
    def unit(self) -> int:
        """Pixels of the side of a token."""
        return self.patch_size * self.merge_size

    @property
    def placeholder(self) -> str:
        """The text of the token in whose place a feature comes: as many as there are features."""
        return placeholder_of(self.family)

    @property
    def template_mark(self) -> str:
        """What a chat template writes for an image, in whose place `ImageLayout.text` comes before it is tokenised."""
        return "<start_of_image>" if self.family == "gemma3" else self.placeholder
