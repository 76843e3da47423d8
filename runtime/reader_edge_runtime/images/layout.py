"""How an image of so many pixels is resized and cut, and the tokens and the text that stand for it.

Sizes follow transformers 5.23's image processors, texts its processors.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from reader_edge_runtime.errors import ImageError
from reader_edge_runtime.package.images import MAX_IMAGE_TOKENS, MAX_RESIZED, QWEN_FAMILIES, TILED_FAMILIES, ImageRules

Size = tuple[int, int]  # height and width, or rows and columns

_LONGEST_OF_QWEN = 200  # times as long as wide
_TOLERANCE_OF_LFM2 = 2.0  # times the most tokens: larger images are cut into tiles


@dataclass(frozen=True, slots=True)
class ImagePart:
    """What a pass of the tower sees: an image, or a tile of it.

    size: in pixels. grid: rows and columns of tokens. text: stands for it; those of an image's parts follow each other.
    """

    size: Size
    grid: Size
    text: str

    @property
    def num_tokens(self) -> int:
        """Features, and placeholders in the text."""
        return self.grid[0] * self.grid[1]


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """sizes: to which an image is resized, one after the other. tiles: rows and columns of tiles that it is cut into
    then, (0, 0) where it stays whole. parts: tiles by rows, and then the whole in small, if any."""

    sizes: tuple[Size, ...]
    tiles: Size
    parts: tuple[ImagePart, ...]

    @property
    def num_tokens(self) -> int:
        """Features, and placeholders in the text."""
        return sum(part.num_tokens for part in self.parts)

    @property
    def text(self) -> str:
        """What stands for the image in a prompt, in the place of `ImageRules.template_mark`."""
        return "".join(part.text for part in self.parts)


def lay_out(width: int, height: int, rules: ImageRules, name: str = "The image") -> ImageLayout:
    """Of an image of so many pixels. name: what sentences call it.

    Raises ImageError for one too narrow for its model, or too large.
    """
    if max(width, height) > (most := _most_aspect(rules)) * min(width, height):
        remedy = f"crop it to at most {most} times as long as wide"
        raise ImageError(f"{name} has {width} x {height} pixels, too narrow for this model: {remedy}.")
    sizes, tiles, overview = _SIZES[rules.family](height, width, rules)
    tile = (rules.tile_size, rules.tile_size)
    parts = [tile] * (tiles[0] * tiles[1]) + ([overview] if overview else [])
    grids = [
        (part[0] // rules.patch_size // rules.merge_size, part[1] // rules.patch_size // rules.merge_size)
        for part in parts
    ]
    if max(map(math.prod, sizes)) > MAX_RESIZED or sum(map(math.prod, grids)) > MAX_IMAGE_TOKENS:
        too_many = f"more than {MAX_RESIZED} pixels or {MAX_IMAGE_TOKENS} tokens"
        raise ImageError(
            f"{name} of {width} x {height} pixels would have {too_many} for this model: shrink or crop it."
        )
    texts = _texts(grids, tiles, rules)
    return ImageLayout(sizes, tiles, tuple(map(ImagePart, parts, grids, texts)))


def num_tokens(width: int, height: int, rules: ImageRules) -> int:
    """Features of an image of so many pixels. Raises ImageError for one too narrow for its model."""
    return lay_out(width, height, rules).num_tokens


_Sizes = tuple[tuple[Size, ...], Size, Size | None]  # sizes, tiles, and that of the whole behind or in place of tiles


def _whole(height: int, width: int) -> _Sizes:
    return ((height, width),), (0, 0), (height, width)


def _most_aspect(rules: ImageRules) -> float:
    """How many times as long as wide an image may be."""
    if rules.family in QWEN_FAMILIES:
        return _LONGEST_OF_QWEN
    return rules.longest_edge if rules.family == "mistral3" else math.inf


def _within_area(height: int, width: int, rules: ImageRules, least: int) -> Size:
    """Multiples of a token's side, near to the image's own form. least: of what is rounded first."""
    unit = rules.unit
    rounded = [max(least, round(side / unit) * unit) for side in (height, width)]
    if math.prod(rounded) > rules.max_pixels:
        shrink = math.sqrt(height * width / rules.max_pixels)
        rounded = [max(unit, math.floor(side / shrink / unit) * unit) for side in (height, width)]
    elif math.prod(rounded) < rules.min_pixels:
        grow = math.sqrt(rules.min_pixels / (height * width))
        rounded = [math.ceil(side * grow / unit) * unit for side in (height, width)]
    return rounded[0], rounded[1]


def _qwen(height: int, width: int, rules: ImageRules) -> _Sizes:
    return _whole(*_within_area(height, width, rules, 0))


def _mistral3(height: int, width: int, rules: ImageRules) -> _Sizes:
    """Shrunk to the longest edge, then enlarged to whole tokens."""
    ratio = max(height / rules.longest_edge, width / rules.longest_edge)
    sides = [math.floor(side / ratio) for side in (height, width)] if ratio > 1 else [height, width]
    return _whole(*(math.ceil(side / rules.unit) * rules.unit for side in sides))


def _gemma3(height: int, width: int, rules: ImageRules) -> _Sizes:
    return _whole(rules.tile_size, rules.tile_size)


def _gemma4(height: int, width: int, rules: ImageRules) -> _Sizes:
    """The largest multiples of a token's side within the area; narrow images are one token wide."""
    unit = rules.unit
    factor = math.sqrt(rules.max_pixels / (height * width))
    rows, columns = (math.floor(factor * side / unit) for side in (height, width))
    longest = min(max(height, width) // min(height, width), rules.max_pixels // unit**2)
    if not rows:
        rows, columns = 1, longest
    elif not columns:
        rows, columns = longest, 1
    return _whole(rows * unit, columns * unit)


def _lfm2(height: int, width: int, rules: ImageRules) -> _Sizes:
    """Tiles in the grid whose form is nearest, where there are too many pixels for one."""
    unit, tile = rules.unit, rules.tile_size
    whole = _within_area(height, width, rules, unit)
    area = math.prod(max(rules.patch_size, round(side / unit) * unit) for side in (height, width))
    if not rules.cuts_tiles or area <= rules.max_pixels * _TOLERANCE_OF_LFM2:
        return _whole(*whole)
    rows, columns = _nearest_grid(height, width, rules)
    return ((rows * tile, columns * tile),), (rows, columns), whole if rules.has_overview else None


def _nearest_grid(height: int, width: int, rules: ImageRules) -> Size:
    """Of grids that are equally near, the larger where the image fills half of it."""
    sides = range(1, rules.max_tiles + 1)
    grids = [(y, x) for x in sides for y in sides if rules.min_tiles <= x * y <= rules.max_tiles]
    best, best_off = (1, 1), math.inf
    for y, x in sorted(grids, key=math.prod):
        off = abs(width / height - x / y)
        if off < best_off or (off == best_off and width * height > 0.5 * rules.tile_size**2 * x * y):
            best, best_off = (y, x), off
    return best


def _tiled(height: int, width: int, rules: ImageRules) -> _Sizes:
    """Of Idefics 3 and SmolVLM: to the longest edge, to whole tiles, and these again to one tile."""
    longest, tile = rules.longest_edge, rules.tile_size
    aspect = width / height
    if width >= height:
        first = (max(int(longest / aspect) + int(longest / aspect) % 2, 1), longest)
    else:
        first = (longest, max(int(longest * aspect) + int(longest * aspect) % 2, 1))
    if not rules.cuts_tiles:
        return (first, (tile, tile)), (0, 0), (tile, tile)
    height, width = first
    aspect = width / height
    if width >= height:
        columns = math.ceil(width / tile)
        rows = math.ceil(int(columns * tile / aspect) / tile)
    else:
        rows = math.ceil(height / tile)
        columns = math.ceil(int(rows * tile * aspect) / tile)
    sizes = (first, (rows * tile, columns * tile))
    return sizes, (rows, columns) if rows * columns > 1 else (0, 0), (tile, tile)


_SIZES: dict[str, Callable[[int, int, ImageRules], _Sizes]] = {
    **dict.fromkeys(QWEN_FAMILIES, _qwen),
    **dict.fromkeys(TILED_FAMILIES, _tiled),
    "mistral3": _mistral3,
    "lfm2_vl": _lfm2,
    "gemma3": _gemma3,
    "gemma4": _gemma4,
}


def _texts(grids: list[Size], tiles: Size, rules: ImageRules) -> list[str]:
    """Of each part."""
    runs = [rules.placeholder * (rows * columns) for rows, columns in grids]
    places = [(row + 1, column + 1) for row in range(tiles[0]) for column in range(tiles[1])]
    match rules.family:
        case "gemma3":
            return [f"\n\n<start_of_image>{runs[0]}<end_of_image>\n\n"]
        case "gemma4":
            return [f"<|image>{runs[0]}<image|>"]
        case "mistral3":
            rows, columns = grids[0]
            return ["[IMG_BREAK]".join([rules.placeholder * columns] * rows) + "[IMG_END]"]
        case "lfm2_vl":
            marks = [f"<|img_row_{row}_col_{column}|>" for row, column in places]
            marks += ["<|img_thumbnail|>" if places else ""] * (len(grids) - len(places))
            texts = [mark + run for mark, run in zip(marks, runs, strict=True)]
            texts[0] = "<|image_start|>" + texts[0]
            texts[-1] += "<|image_end|>"
            return texts
        case "smolvlm" | "idefics3":
            fake = "<fake_token_around_image>"
            ends = ["\n" if column == tiles[1] else "" for _, column in places]
            marks = [f"{fake}<row_{row}_col_{column}>" for row, column in places]
            texts = [mark + run + end for mark, run, end in zip(marks, runs, ends, strict=False)]
            start = "\n" if places else ""
            return [*texts, f"{start}{fake}<global-img>{runs[-1]}{fake}"]
        case _:
            return runs
