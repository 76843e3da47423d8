"""A stage: some layers of a model that several boxes run, as a package of its own.

Its graph follows the contract of `manifest`, but for this (E: size of the residual stream, which alone crosses a cut):

    hidden_in   float32 (B, N, E)  in the place of input_ids, in every stage but the first
    hidden_out  float32 (B, N, E)  in the place of all that tells of answers, in every stage but the last

Inputs that none of its layers reads are left out. Its layers are numbered from 0, and its KV cache is theirs alone.
"""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from reader_edge_runtime.untrusted.untrusted_json import Sha256

HANDED_IN, HANDED_OUT = "hidden_in", "hidden_out"
MAX_STAGES = 64


@dataclass(frozen=True, slots=True)
class StagePart:
    """What a package says of the model that it is a stage of.

    number: from 1 to num_stages, in the order in which tokens go through. first_layer: of the model, which this stage's
    layer 0 is. num_model_layers: of the whole. width: E. whole: the fingerprint of the package that was cut, in
    hexadecimal digits.
    """

    number: Annotated[int, Meta(ge=1, le=MAX_STAGES)]
    num_stages: Annotated[int, Meta(ge=2, le=MAX_STAGES)]
    first_layer: Annotated[int, Meta(ge=0, le=4096)]
    num_model_layers: Annotated[int, Meta(ge=1, le=4096)]
    width: Annotated[int, Meta(ge=1, le=1 << 16)]
    whole: Sha256

    @property
    def is_first(self) -> bool:
        return self.number == 1

    @property
    def is_last(self) -> bool:
        return self.number == self.num_stages

    def misfit(self, num_layers: int) -> str | None:
        """The name of a field that does not fit to the others, of a stage of so many layers; None for none."""
        end = self.first_layer + num_layers
        if self.number > self.num_stages:
            return "number"
        if self.is_first != (self.first_layer == 0) or end > self.num_model_layers:
            return "first_layer"
        return None if self.is_last == (end == self.num_model_layers) else "num_model_layers"
