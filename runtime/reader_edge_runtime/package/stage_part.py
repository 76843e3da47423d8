"""A stage: some layers of a model that several boxes run, as a package of its own.

Its graph follows the contract of `manifest`, but for this (E: size of the residual stream, which alone crosses a cut):

    hidden_in   float32 (B, N, E)  in the place of input_ids, in every stage but the first
    hidden_out  float32 (B, N, E)  in the place of all that tells of answers, in every stage but the last

Inputs that none of its layers reads are left out. Its layers are numbered from 0, and its KV cache is theirs alone.
"""

import re
from dataclasses import dataclass
from typing import Any

HANDED_IN, HANDED_OUT = "hidden_in", "hidden_out"
MAX_STAGES = 64

_FINGERPRINT = re.compile(r"[0-9a-f]{64}")
_MOST = {
    "number": MAX_STAGES,
    "num_stages": MAX_STAGES,
    "first_layer": 4096,
    "num_model_layers": 4096,
    "width": 1 << 16,
}


@dataclass(frozen=True, slots=True)
class StagePart:
    """What a package says of the model that it is a stage of.

    number: from 1 to num_stages, in the order in which tokens go through. first_layer: of the model, which this stage's
    layer 0 is. num_model_layers: of the whole. width: E. whole: the fingerprint of the package that was cut, in
    hexadecimal digits.
    """

    number: int
    num_stages: int
    first_layer: int
    num_model_layers: int
    width: int
    whole: str

    @property
    def is_first(self) -> bool:
        return self.number == 1

    @property
    def is_last(self) -> bool:
        return self.number == self.num_stages


def read_stage_part(fields: Any, num_layers: int) -> StagePart:
    """From a manifest's fields. num_layers: of the stage. Raises ValueError, which names an unusable one."""
    if not isinstance(fields, dict):
        raise ValueError("stage")
    for name, most in _MOST.items():
        if type(value := fields.get(name)) is not int or not (name != "first_layer") <= value <= most:
            raise ValueError(name)
    whole = fields.get("whole")
    if not isinstance(whole, str) or not _FINGERPRINT.fullmatch(whole):
        raise ValueError("whole")
    part = StagePart(whole=whole, **{name: fields[name] for name in _MOST})
    if part.num_stages < 2 or part.number > part.num_stages:
        raise ValueError("number")
    end = part.first_layer + num_layers
    if part.is_first != (part.first_layer == 0) or end > part.num_model_layers:
        raise ValueError("first_layer")
    if part.is_last != (end == part.num_model_layers):
        raise ValueError("num_model_layers")
    return part
