"""What depends on an image's size alone, beside what transformers makes of it."""

import numpy as np
import pytest
import torch
from transformers.vision_utils import get_vision_interpolation_indices_and_weights, get_vision_position_ids

from reader_edge_runtime.images.patches import prepare
from reader_edge_runtime.package.images import ImageRules
from tests.export.images.seeing_models import window_inputs
from tests.runtime.images.published_rules import PICTURES, RULES

SIZES = [(480, 640), (37, 1000), (700, 1301), (1500, 90), (28, 28)]


def test_inputs_of_positions_are_those_of_transformers() -> None:
    for name in ("qwen3_5", "qwen2_5_vl"):
        rules = RULES[name]
        for size in SIZES:
            (part,) = prepare(PICTURES["gradient"](*size), rules)
            grid = torch.tensor([[1, *(side * rules.merge_size for side in part.grid)]])
            expected = {"positions": get_vision_position_ids(grid, rules.merge_size)}
            if name == "qwen3_5":
                found = get_vision_interpolation_indices_and_weights(grid, rules.position_side, "bilinear", True, 2)
                expected |= dict(zip(("interp_indices", "interp_weights"), found, strict=True))
            else:
                expected |= window_inputs(grid, rules.window_size, rules.patch_size)
            assert part.inputs.keys() == {"patches", *expected}
            for key, value in expected.items():
                assert part.inputs[key].dtype == value.numpy().dtype
                assert np.array_equal(part.inputs[key], value.numpy()), (name, size, key)


@pytest.mark.parametrize("size", [(512, 512), (64, 2048), (333, 501), (1024, 96)])
def test_weights_of_positions_resize_a_table_as_torch_does(size: tuple[int, int]) -> None:
    """`resize_positional_embeddings` of Siglip 2, to which LFM2-VL's tower leaves it."""
    rules: ImageRules = RULES["lfm2_vl whole"]
    (part,) = prepare(PICTURES["gradient"](*size), rules)
    rows, columns = (side * rules.merge_size for side in part.grid)
    table = torch.randn(16, 16, 24, generator=torch.Generator().manual_seed(3))
    resized = torch.nn.functional.interpolate(
        table.permute(2, 0, 1)[None], (rows, columns), mode="bilinear", align_corners=False, antialias=True
    )
    by_rows = resized[0].permute(1, 2, 0).reshape(rows // 2, 2, columns // 2, 2, 24).permute(0, 2, 1, 3, 4)
    found = part.inputs["position_weights"] @ table.reshape(256, 24).numpy()
    assert part.inputs["position_weights"].dtype == np.float32
    assert np.abs(found - by_rows.reshape(-1, 24).numpy()).max() < 5e-6
