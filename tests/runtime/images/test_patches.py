import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from reader_edge_runtime.images.layout import lay_out, num_tokens
from reader_edge_runtime.images.patches import PreparedImage, prepare
from reader_edge_runtime.package.images import ImageRules
from tests.runtime.images.published_rules import CASES, PICTURES, RULES, case_name
from tests.runtime.images.record_pixels import FILE, digest, text_digest

RECORDED: dict[str, list[str]] = json.loads(FILE.read_text("utf-8"))


def by_rows(part: PreparedImage, rules: ImageRules) -> npt.NDArray[np.float32]:
    """Patches as they lie in the image, row by row, where transformers has them so; pixels as they are."""
    if "pixels" in part.inputs:
        return part.inputs["pixels"]
    patches = part.inputs["patches"]
    if rules.family.startswith("qwen"):
        return patches
    merge = rules.merge_size
    rows, columns = (side * merge for side in part.grid)
    places = [
        (block_row * merge + row) * columns + block_column * merge + column
        for block_row in range(rows // merge)
        for block_column in range(columns // merge)
        for row in range(merge)
        for column in range(merge)
    ]
    found = np.empty_like(patches)
    found[places] = patches
    return found


@pytest.mark.parametrize(("name", "picture", "size"), CASES, ids=[case_name(*case) for case in CASES])
def test_pixels_have_the_bits_of_transformers_and_the_text_is_its_own(
    name: str, picture: str, size: tuple[int, int]
) -> None:
    rules, (height, width) = RULES[name], size
    parts = prepare(PICTURES[picture](*size), rules)
    layout = lay_out(width, height, rules)  # of the size alone
    assert [(part.grid, part.text) for part in parts] == [(part.grid, part.text) for part in layout.parts]
    assert num_tokens(width, height, rules) == layout.text.count(rules.placeholder)
    for part in parts:
        patches = {len(value) for key, value in part.inputs.items() if not key.startswith(("pixels", "window"))}
        assert patches <= {part.num_tokens * rules.merge_size**2}
    pixels, text = RECORDED[case_name(name, picture, size)]
    assert text_digest("".join(part.text for part in parts)) == text
    assert digest([by_rows(part, rules) for part in parts]) == pixels


def test_a_grid_of_one_token_has_inputs() -> None:
    """Of Qwen 2.5 and Mistral 3, which do not enlarge."""
    rules = RULES["qwen2_5_vl"]
    small = ImageRules("qwen2_5_vl", 14, 2, "bicubic", rules.mean, rules.std, 1, 784, window_size=112)
    (part,) = prepare(PICTURES["noise"](20, 30), small)
    shapes: dict[str, Any] = {name: value.shape for name, value in part.inputs.items()}
    assert part.grid == (1, 1)
    assert shapes == {
        **{"patches": (4, 1176), "positions": (4, 2), "window_index": (1,), "windows": (1, 4)},
    }
