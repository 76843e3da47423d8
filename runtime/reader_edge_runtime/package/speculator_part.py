"""A trained speculator in a package: a small network beside the target, which reads some of its states.

Its graph follows the contract of `manifest`, but for this (N1 nodes that the target was heard on, N2 others; a pass has
nodes of one kind alone; E numbers of its own states, T of the target's, J states read, K top_k):

    target_states  float32 (B, N1, J * T)   of the token before, as the target said it
    own_states     float32 (B, N2, E)       `next_states` of the parent

    top_ids, top_logits  int64, float32 (B, R, K), tokens of the target    log_sum_exp  float32 (B, R)
    next_states          float32 (B, N, E)

A node for a text's token i + 1 reads the states of token i, and says what follows token i + 1.
"""

from dataclasses import dataclass
from typing import Any

SPECULATOR_GRAPH_NAME = "speculator.onnx"
SPECULATOR_WEIGHTS_NAME = "speculator.onnx.data"

EAGLE3, MTP = "eagle3", "mtp"
SPECULATOR_FORMATS = (EAGLE3, MTP)
SPECULATOR_AGREEMENT = "speculator_target_agreement"  # among a package's checks: its best token is the target's
MOST_STATES = 16  # of a target that a package reports

_SIZES = {
    "num_layers": 64,
    "num_heads": 1 << 12,
    "num_kv_heads": 1 << 12,
    "head_dim": 1 << 12,
    "hidden_size": 1 << 20,
    "draft_vocab_size": 1 << 24,
    "top_k": 256,
}


@dataclass(frozen=True, slots=True)
class SpeculatorPart:
    """What a package says of its speculator.

    format: one of SPECULATOR_FORMATS. num_layers, num_heads, num_kv_heads, head_dim: of its own attention.
    hidden_size: E. draft_vocab_size: tokens that it can name. top_k: successors that it reports of a node.
    state_ids: of the target's states (`Manifest.state_ids`) those that it reads, in the order in which it joins them.
    """

    format: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    draft_vocab_size: int
    top_k: int
    state_ids: tuple[int, ...]

    @property
    def kv_row_bytes(self) -> int:
        """Of a token in its own KV cache: float32 keys and values of all layers and heads."""
        return 2 * 4 * self.num_layers * self.num_kv_heads * self.head_dim


def read_speculator_part(fields: Any, state_ids: tuple[int, ...]) -> SpeculatorPart:
    """From a manifest's fields. state_ids: that the package reports. Raises ValueError, which names an unusable one."""
    if not isinstance(fields, dict):
        raise ValueError("speculator")
    if fields.get("format") not in SPECULATOR_FORMATS:
        raise ValueError("format")
    for name, most in _SIZES.items():
        if type(value := fields.get(name)) is not int or not 0 < value <= most:
            raise ValueError(name)
    read = fields.get("state_ids")
    if not isinstance(read, list) or not 0 < len(read) <= MOST_STATES:
        raise ValueError("state_ids")
    if any(type(each) is not int or each not in state_ids for each in read):
        raise ValueError("state_ids")
    return SpeculatorPart(format=fields["format"], state_ids=tuple(read), **{name: fields[name] for name in _SIZES})
