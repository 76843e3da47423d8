"""A speculator's graph takes and gives what its manifest says, or is refused in one sentence."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from reader_edge_runtime.errors import ProviderError
from reader_edge_runtime.execution.onnxruntime.speculator_contract import check_speculator
from reader_edge_runtime.package.speculator_part import SpeculatorPart
from tests.fake_target import make_manifest

MANIFEST = replace(
    make_manifest(),
    hidden_size=48,
    state_ids=(0, 1),
    speculator=SpeculatorPart("eagle3", 1, 4, 2, 16, 32, 32, 8, (0, 1)),
)
Tensors = dict[str, tuple[str, list[Any] | None]]

IDS, NUMBERS = "tensor(int64)", "tensor(float)"
INPUTS: Tensors = {
    "input_ids": (IDS, ["B", "N"]),
    "position_ids": (IDS, ["B", "N"]),
    "tree_mask": (NUMBERS, ["B", 1, "N", "S"]),
    "write_pos": (IDS, ["B"]),
    "logit_rows": (IDS, ["B", "R"]),
    "target_states": (NUMBERS, ["B", "N1", 96]),
    "own_states": (NUMBERS, ["B", "N2", 32]),
    "past_key.0": (NUMBERS, ["B", 2, "S", 16]),
    "past_value.0": (NUMBERS, ["B", 2, "S", 16]),
}
OUTPUTS: Tensors = {
    "top_ids": (IDS, ["B", "R", 8]),
    "top_logits": (NUMBERS, ["B", "R", 8]),
    "log_sum_exp": (NUMBERS, ["B", "R"]),
    "next_states": (NUMBERS, ["B", "N", 32]),
    "present_key.0": (NUMBERS, ["B", 2, "N", 16]),
    "present_value.0": (NUMBERS, ["B", 2, "N", 16]),
}


def session(inputs: Tensors, outputs: Tensors) -> Any:
    def told(tensors: Tensors) -> Callable[[], list[SimpleNamespace]]:
        return lambda: [SimpleNamespace(name=name, type=kind, shape=shape) for name, (kind, shape) in tensors.items()]

    return SimpleNamespace(get_inputs=told(inputs), get_outputs=told(outputs))


def test_a_graph_that_keeps_its_contract_passes() -> None:
    check_speculator(session(INPUTS, OUTPUTS), MANIFEST)


@pytest.mark.parametrize(
    ("inputs", "outputs", "sentence"),
    [
        ({"past_key.1": (NUMBERS, [])}, {}, "The speculator's inputs differ from the manifest ('past_key.1'):"),
        ({}, {"\x1b[2J": (NUMBERS, [])}, "The speculator's outputs differ from the manifest ('\\x1b[2J'):"),
        ({"target_states": (NUMBERS, ["B", "N1", 48])}, {}, "target_states is a tensor(float) of ['B', 'N1', 48]"),
        ({"own_states": ("tensor(float16)", ["B", "N2", 32])}, {}, "own_states is a tensor(float16) of"),
        ({"past_key.0": (NUMBERS, ["B", 4, "S", 16])}, {}, "the manifest says tensor(float) with [2, 16]"),
        ({}, {"top_ids": (IDS, ["B", "R", 7])}, "the manifest says tensor(int64) with [8]: export the model again."),
        ({}, {"next_states": (NUMBERS, None)}, "next_states is a tensor(float) of []"),
    ],
)
def test_a_graph_that_breaks_it_is_refused(inputs: Tensors, outputs: Tensors, sentence: str) -> None:
    with pytest.raises(ProviderError) as refused:
        check_speculator(session(INPUTS | inputs, OUTPUTS | outputs), MANIFEST)
    assert sentence in str(refused.value)
    assert str(refused.value).isprintable()


def test_names_that_are_no_text_are_refused() -> None:
    def get_inputs() -> None:
        b"\xff".decode()

    with pytest.raises(ProviderError, match=r"The speculator's names are not UTF-8 .*: export the model again\."):
        check_speculator(SimpleNamespace(get_inputs=get_inputs), MANIFEST)
