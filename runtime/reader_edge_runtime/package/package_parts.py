"""What a manifest says of parts of a model: of a trained speculator, of its eyes, and of a stage.

The speculator is a small network beside the target, which reads some of its states. Its graph follows the contract of
`manifest`, but for this (N1 nodes that the target has scored, N2 others; a pass has nodes of one kind alone; E numbers
of its own states, T of the target's, J states read, K top_k):

    target_states  float32 (B, N1, J * T)   of the token before, as the target has it
    own_states     float32 (B, N2, E)       `next_states` of the parent

    top_ids, top_logits  int64, float32 (B, R, K), tokens of the target    log_sum_exp  float32 (B, R)
    next_states          float32 (B, N, E)

A node for a text's token i + 1 reads the states of token i, and says what follows token i + 1.

A speculator that drafts a block has rows of tokens that the target has scored, which fill its KV cache, and behind
them those of the block: the pending token and masks (C rows and N, at least one of each; a pass's rows are both):

    input_ids, logit_rows    int64 (B, N), (B, R), of the block alone    position_ids  int64 (B, C + N)
    tree_mask, with a window tree_mask_sliding too   float32 (B, 1, C + N, M)
    target_states            float32 (B, C, J * T)   of the same tokens

It has neither own_states nor next_states. Where it tells what a token before changes, there is besides

    pair_logits    float32 (B, R, K, K), of each of a row's top_ids behind each of those of the row before it, of the
                   first behind the pending token: logit_rows are in order, without a gap

One to which the target lends keys and values keeps none: its passes only read those of the text before the pending
token, and all nodes of a tree have the pending token's position (M of these rows that are visible, S as the cache has):

    past_key.{layer}, past_value.{layer}             as the target's graph has them, of each layer that lends
    tree_mask, with a window tree_mask_sliding too   float32 (B, 1, N, M)

A model that sees images has a graph for what is made of one of them, or of one of its tiles. It gives L tokens:

    image_features  float32 (L, E), with num_deepstack (L, (1 + num_deepstack) * E): a row for each of its inputs

Its other graph, of texts, follows the contract of `manifest`, but for this (K rows of features, one at least):

    image_index     int64 (B, N)    the row that a node has in place of its embedding; -1 of a text's token
    image_features  float32 (K, E)
    deepstack.0 and so on, num_deepstack of them
                    float32 (K, E)  what the same row adds to its node behind the layer of this number
    position_ids    int64 (3, B, N), of time, row and column, with 3 position_axes

`input_ids` of nodes that have rows are the token_id.

A model whose package takes adapters of low rank (A of them, S numbers of each) has two inputs more:

    adapter_ids    int64 (B,)      of each sequence, -1 for none
    adapter_table  float16 (A, S)  what `adapters.adapter_table` makes of their factors; float32 in precision fp32

A stage is some layers of a model that several boxes run, as a package of its own. Its graph follows the contract of
`manifest`, but for this (E: size of the residual stream, which alone crosses a cut):

    hidden_in   float32 (B, N, E)  in the place of input_ids, in every stage but the first
    hidden_out  float32 (B, N, E)  in the place of all that tells of answers, in every stage but the last

Inputs that none of its layers reads are left out. Its layers are numbered from 0, and its KV cache is theirs alone.
"""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from reader_edge_runtime.package.images import ImageRules
from reader_edge_runtime.untrusted.untrusted_json import Sha256, Text, one_of

SPECULATOR_GRAPH_NAME = "speculator.onnx"
SPECULATOR_WEIGHTS_NAME = "speculator.onnx.data"

MLP, EAGLE3, MTP, DFLASH, ASSISTANT = "mlp", "eagle3", "mtp", "dflash", "assistant"
SPECULATOR_FORMATS = (MLP, EAGLE3, MTP, DFLASH, ASSISTANT)
SPECULATOR_AGREEMENT = "speculator_target_agreement"  # among a package's checks: its best token is the target's
MAX_OUTPUTS = 1 << 24  # of a matrix, and inputs
STEP, PANEL = 32, 64  # to which factors of adapters are filled up, of inputs and of outputs
MOST_STATES = 16  # of a target that a package reports

_Size = Annotated[int, Meta(ge=1, le=1 << 12)]


@dataclass(frozen=True, slots=True)
class BlockPart:
    """What a package says of blocks that its speculator drafts.

    size: rows of one at most, of which all but the first, the pending token's, are of mask_token_id. tells_next:
    whether a row tells of the token behind it, else of its own: then the first tells nothing. is_causal,
    is_window_causal: whether rows see no later ones of the block, in layers without a window and in those with one.
    window: rows that these see as far back, and as far ahead, their own included; None without such layers. has_pairs:
    whether the graph reports pair_logits.
    """

    size: Annotated[int, Meta(ge=2, le=64)]
    mask_token_id: Annotated[int, Meta(ge=0, lt=1 << 24)]
    tells_next: bool = False
    is_causal: bool = False
    is_window_causal: bool = False
    window: Annotated[int, Meta(ge=1, le=1 << 28)] | None = None
    has_pairs: bool = False

    @property
    def max_drafts(self) -> int:
        """Tokens that a pass can tell of."""
        return self.size - (not self.tells_next)


@dataclass(frozen=True, slots=True)
class LentPart:
    """What a target lends to its speculator. layers: by number, those whose keys and values it reads.

    window: of the target's rows, the last ones that its windowed layers see; None without such layers.
    """

    layers: Annotated[tuple[Annotated[int, Meta(ge=0, lt=1 << 12)], ...], Meta(min_length=1, max_length=2)]
    window: Annotated[int, Meta(ge=1, le=1 << 28)] | None = None


@dataclass(frozen=True, slots=True)
class SpeculatorPart:
    """What a package says of its speculator.

    format: one of SPECULATOR_FORMATS. num_layers, num_heads, num_kv_heads, head_dim: of its own attention, which an MLP
    has not: 0 layers. hidden_size: E. draft_vocab_size: tokens that it can name. top_k: successors that it reports of a
    node.
    state_ids: of the target's states (`Manifest.state_ids`) those that it reads, in the order in which it joins them.
    block: of one that drafts blocks.
    lent: the keys and values that it reads in the place of its own; None where there are none.
    """

    format: Annotated[str, one_of(*SPECULATOR_FORMATS)]
    num_layers: Annotated[int, Meta(ge=0, le=64)]
    num_heads: _Size
    num_kv_heads: _Size
    head_dim: _Size
    hidden_size: Annotated[int, Meta(ge=1, le=1 << 20)]
    draft_vocab_size: Annotated[int, Meta(ge=1, le=1 << 24)]
    top_k: Annotated[int, Meta(ge=1, le=256)]
    state_ids: Annotated[tuple[int, ...], Meta(min_length=1, max_length=MOST_STATES)]
    block: BlockPart | None = None
    lent: LentPart | None = None

    @property
    def kv_row_bytes(self) -> int:
        """Of a token in its own KV cache: float32 keys and values of all layers and heads."""
        return 2 * 4 * self.num_layers * self.num_kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class LowRankPart:
    """A matrix (J, K) of a product. name: of its module in transformers. num_outputs: J, in that module's order."""

    name: Text
    num_outputs: Annotated[int, Meta(ge=1, le=MAX_OUTPUTS)]


@dataclass(frozen=True, slots=True)
class LowRankProduct:
    """A product to whose outputs those of adapters are added. num_inputs: K. parts: outputs one beside another."""

    num_inputs: Annotated[int, Meta(ge=1, le=MAX_OUTPUTS)]
    parts: Annotated[tuple[LowRankPart, ...], Meta(min_length=1, max_length=16)]

    @property
    def rank_size(self) -> int:
        """Numbers that an adapter of rank one has for it, in `adapters.adapter_table`."""
        return sum(-(-self.num_inputs // STEP) * STEP + -(-part.num_outputs // PANEL) * PANEL for part in self.parts)


VISION_GRAPH_NAME = "vision.onnx"
VISION_WEIGHTS_NAME = "vision.onnx.data"


@dataclass(frozen=True, slots=True)
class ImagesPart:
    """What a package says of the images that its model sees.

    token_id: of the token that stands for one of an image. width: E. rules: by which pixels become inputs.
    num_deepstack: so many first layers of the text model get rows of an image too (DeepStack, Meng et al., 2024).
    position_axes: 1, or 3 where a token has positions of its row and its column in an image too.
    sees_whole_image: in which layers an image's tokens see later ones of it: in "none", in "all", or in the windowed
    ("sliding").
    """

    token_id: Annotated[int, Meta(ge=0, lt=1 << 24)]
    width: Annotated[int, Meta(ge=1, le=1 << 20)]
    rules: ImageRules
    position_axes: Annotated[int, Meta(ge=1, le=3)] = 1
    sees_whole_image: Annotated[str, one_of("none", "all", "sliding")] = "none"
    num_deepstack: Annotated[int, Meta(ge=0, le=64)] = 0

    @property
    def row_size(self) -> int:
        """Numbers that an image's token has."""
        return self.width * (1 + self.num_deepstack)


def feature_names(num_deepstack: int) -> tuple[str, ...]:
    """The text graph's inputs for rows of images, which an image's token has one behind the other."""
    return ("image_features", *(f"deepstack.{layer}" for layer in range(num_deepstack)))


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
