"""What a manifest says of a speculator is believed only where it can be."""

from dataclasses import asdict
from typing import Any

import pytest

from reader_edge_runtime.package.speculator_part import SpeculatorPart, read_speculator_part

_PART = SpeculatorPart("eagle3", 1, 4, 2, 16, 48, 100, 16, (2, 0, 1))
_FIELDS = asdict(_PART) | {"state_ids": [2, 0, 1]}


def test_what_was_written_is_read() -> None:
    assert read_speculator_part(_FIELDS, (0, 1, 2, 3)) == _PART


@pytest.mark.parametrize("state_ids", [None, [], [4], [[0]], [{}], [True], [2.0], "012", [0] * 17], ids=str)
def test_states_that_cannot_be_are_refused_by_name(state_ids: Any) -> None:
    with pytest.raises(ValueError, match=r"^state_ids$"):
        read_speculator_part(_FIELDS | {"state_ids": state_ids}, (0, 1, 2, 3))


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"format": "eagle1"}, "format"),
        ({"format": ["eagle3"]}, "format"),
        ({"num_layers": 0}, "num_layers"),
        ({"num_kv_heads": True}, "num_kv_heads"),
        ({"hidden_size": 1 << 40}, "hidden_size"),
        ({"top_k": 16.0}, "top_k"),
    ],
)
def test_a_field_that_cannot_be_is_refused_by_its_name(changed: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=rf"^{named}$"):
        read_speculator_part(_FIELDS | changed, (0, 1, 2, 3))


def test_what_is_no_object_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^speculator$"):
        read_speculator_part("eagle3", (0,))
