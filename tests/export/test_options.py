"""Options of an export that cannot be, or not together, are refused when they are made."""

from pathlib import Path

import pytest

from reader_edge_export import ExportOptions
from reader_edge_runtime.errors import ConfigError


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_calibration_text_is_refused_where_nothing_is_calibrated(precision: str) -> None:
    with pytest.raises(ConfigError, match="is not calibrated: leave calibration_text out"):
        ExportOptions(precision, "exact", calibration_text=Path("text"))


@pytest.mark.parametrize(
    "options",
    [
        {"precision": "fp8"},
        {"attention": "slow"},
        {"max_context": 0},
        {"precision": "int4", "attention": "portable"},
        {"precision": "bf16", "attention": "portable"},
        {"kv": "int4"},
        {"precision": "fp32", "kv": "int8"},
        {"attention": "fast", "kv": "int8"},
        {"attention": "portable", "kv": "fp16"},
        {"precision": "fp16", "attention": "fast", "kv": "fp16"},
        {"precision": "fp16", "kv": "fp32"},
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        ExportOptions(**options)  # type: ignore[arg-type]
