"""What a manifest says of the model that its package is a stage of: all of it fits together, or one field is named."""

from typing import Any

import pytest

from reader_edge_runtime.package.stage_part import read_stage_part

FIELDS = {"number": 2, "num_stages": 3, "first_layer": 4, "num_model_layers": 9, "width": 256, "whole": "0a" * 32}


def test_a_stage_knows_whether_it_is_an_end() -> None:
    first, middle, last = (
        read_stage_part(FIELDS | {"number": number, "first_layer": 3 * (number - 1)}, 3) for number in (1, 2, 3)
    )
    assert [(part.is_first, part.is_last) for part in (first, middle, last)] == [
        (True, False),
        (False, False),
        (False, True),
    ]


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"number": 0}, "number"),
        ({"number": True}, "number"),
        ({"number": 4}, "number"),
        ({"num_stages": 65}, "num_stages"),
        ({"num_stages": None}, "num_stages"),
        ({"number": 1, "num_stages": 1}, "number"),
        ({"first_layer": -1}, "first_layer"),
        ({"first_layer": 0}, "first_layer"),
        ({"number": 1}, "first_layer"),
        ({"first_layer": 7}, "first_layer"),
        ({"first_layer": 6}, "num_model_layers"),
        ({"number": 3}, "num_model_layers"),
        ({"num_model_layers": 1 << 20}, "num_model_layers"),
        ({"width": 1.5}, "width"),
        ({"whole": "0A" * 32}, "whole"),
        ({"whole": 7}, "whole"),
    ],
)
def test_the_field_that_cannot_be_is_named(changed: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=rf"^{named}$"):
        read_stage_part(FIELDS | changed, 3)


def test_what_is_no_object_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^stage$"):
        read_stage_part([1, 2], 3)
