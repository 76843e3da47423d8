"""Ways in which a device and a server answer together: what crosses the air, who drafts, and with how many nodes."""

from dataclasses import dataclass

import numpy as np

from benchmarks.fleet.answers import WIDTHS, Emitted
from benchmarks.fleet.costs import Round
from benchmarks.fleet.pass_times import PassTimes
from benchmarks.fleet.scenario import Fleet

_HEADER_BITS = 8 * 16  # epoch, position, length
_NODE_BITS = 8 * 4  # a token's id and its parent's number
_TOKEN_BITS = 8 * 3  # a token of the answer
_HINT_NODES = 32


@dataclass(frozen=True, slots=True)
class Way:
    """width: nodes of a tree at most, the pending token included. is_reserved: a server's computing is divided by fixed
    shares, as in the paper; else each of its passes takes in all who wait. is_streamed: the server goes on by itself,
    and the device is sent what was said. is_drafted: the device drafts. is_modelled: by a small model, a pass a token.
    row_bits: that are sent along with each drafted token."""

    name: str
    width: int
    is_reserved: bool = False
    is_streamed: bool = False
    is_drafted: bool = True
    is_modelled: bool = False
    row_bits: float = 0.0

    @property
    def up_bits(self) -> float:
        """Of a round: a tree, or a hint."""
        if self.is_streamed:
            return _HEADER_BITS + _HINT_NODES * _NODE_BITS if self.is_drafted else 0.0
        return _HEADER_BITS + _NODE_BITS * self.width + self.row_bits * (self.width - 1)

    def down_bits(self, emitted: float) -> float:
        """Of a round that says so many tokens."""
        return _HEADER_BITS + _TOKEN_BITS * emitted

    def round(self, fleet: Fleet, times: PassTimes, emitted: Emitted) -> Round:
        """What a planner expects of a round. times: of the target's passes."""
        pass_s = np.array([times.seconds(self.width, past) for past in fleet.pasts])
        said = emitted[self.is_drafted][self.width]
        return Round(self.up_bits, self.down_bits(said), pass_s, self.drafted_s(fleet, times))

    def drafted_s(self, fleet: Fleet, times: PassTimes) -> float:
        """What a draft takes on the machine on which passes were measured: a pass of the model that was measured for
        each token. Retrieval takes microseconds, which are left out."""
        if not self.is_modelled:
            return 0.0
        return (self.width - 1) * times.seconds(1, float(np.mean(fleet.pasts))) / fleet.scenario.pass_scale

    def widths(self) -> list[int]:
        """Trees that a server may cut a round's tree to."""
        return [width for width in WIDTHS if width <= self.width]


WAYS = {
    way.name: way
    for way in (
        Way("paper", 8, is_reserved=True, is_modelled=True),
        Way("paper, rows", 8, is_reserved=True, is_modelled=True, row_bits=16 * 49152),  # of its model's probabilities
        Way("lock-step", 32),
        Way("hints", 16, is_streamed=True),
        Way("server alone", 16, is_streamed=True, is_drafted=False),
    )
}
