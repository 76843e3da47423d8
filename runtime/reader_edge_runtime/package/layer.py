"""What a layer keeps of a text in a cache: keys and values, its own or another layer's, states, both, or nothing."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field
from msgspec.structs import replace

Kind = Literal["attention", "recurrent", "hybrid", "none"]

_MAX_HEADS = 1 << 12
_MAX_NUMBERS = 1 << 26  # of a state
_Heads = Annotated[int, Meta(ge=0, le=_MAX_HEADS)]
_Name = Annotated[str, Meta(pattern=r"\A[a-z][a-z0-9]{0,15}\Z")]  # of a kind of state
_Sizes = Annotated[tuple[Annotated[int, Meta(ge=1, le=1 << 16)], ...], Meta(min_length=1, max_length=4)]
_Numbers = Annotated[int, Meta(ge=1, le=_MAX_NUMBERS)]


class Layer(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One layer of a model.

    kind: "hybrid" attends and keeps states, side by side; "none" does neither, as an MLP alone.
    num_kv_heads, head_dim: sizes of its keys and values; 0 where it has no attention. cache: "own", or the layer whose
    KV cache it reads in place of one of its own. is_latent: whether its values are its keys, which are kept once.
    states: sizes of each of its recurrent states, of one text, by kind. capsules: how many numbers of a node it takes
    to move each state on, by the same kinds.
    """

    kind: Kind
    num_kv_heads: _Heads = 0
    head_dim: _Heads = 0
    cache: Literal["own"] | Annotated[int, Meta(ge=0)] | None = None
    states: Annotated[Mapping[_Name, _Sizes], Meta(max_length=4)] = field(default_factory=dict)
    capsules: Mapping[_Name, _Numbers] = field(default_factory=dict)
    is_latent: bool = False

    def __post_init__(self) -> None:
        has_attention = self.cache is not None and bool(self.num_kv_heads and self.head_dim)
        has_none = self.cache is None and not self.num_kv_heads and not self.head_dim
        if not (has_attention if self.kind in ("attention", "hybrid") else has_none and not self.is_latent):
            raise ValueError("sizes and cache are those of attention")
        if bool(self.states) != (self.kind in ("recurrent", "hybrid")) or self.states.keys() != self.capsules.keys():
            raise ValueError("states and capsules are those of recurrent layers")
        if any(math.prod(sizes) > _MAX_NUMBERS for sizes in self.states.values()):
            raise ValueError(f"a state has {_MAX_NUMBERS} numbers at most")

    @classmethod
    def attention(cls, num_kv_heads: int, head_dim: int, shares: int | None = None, is_latent: bool = False) -> "Layer":
        cache: Any = "own" if shares is None else shares
        return cls("attention", num_kv_heads, head_dim, cache, is_latent=is_latent)

    @classmethod
    def recurrent(cls, states: Mapping[str, Sequence[int]], capsules: Mapping[str, int]) -> "Layer":
        return cls.none().with_states(states, capsules)

    @classmethod
    def none(cls) -> "Layer":
        return cls("none")

    def with_states(self, states: Mapping[str, Sequence[int]], capsules: Mapping[str, int]) -> "Layer":
        """The same, which keeps these states too."""
        kind: Kind = "hybrid" if self.kind == "attention" else "recurrent"
        sizes = {kind: tuple(each) for kind, each in states.items()}
        return replace(self, kind=kind, states=sizes, capsules=dict(capsules))

    @property
    def shares(self) -> int | None:
        """The layer whose KV cache it reads."""
        return self.cache if isinstance(self.cache, int) else None

    @property
    def has_cache(self) -> bool:
        """Whether it has keys and values of its own."""
        return self.cache == "own"

    @property
    def kept(self) -> tuple[str, ...]:
        """What its cache holds of a token, by the names of the graph's inputs and outputs."""
        return ("key",) if self.is_latent else ("key", "value")

    def can_share(self, before: Sequence["Layer"]) -> bool:
        """Whether the layer whose cache it reads, if any, is one of these, has one, and of the same sizes."""
        if self.shares is None:
            return True
        other = before[self.shares] if self.shares < len(before) else Layer.none()
        return other.has_cache and other._sizes == self._sizes

    @property
    def _sizes(self) -> tuple[int, int, bool]:
        return self.num_kv_heads, self.head_dim, self.is_latent
