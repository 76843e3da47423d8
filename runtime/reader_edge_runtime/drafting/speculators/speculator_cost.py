"""What a trained speculator costs and brings on this machine: pass times, whether it pays off, how far trees grow."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from reader_edge_runtime.cache import Cache
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.payoff import moved
from reader_edge_runtime.drafting.speculators.speculated_tree import FrontierNode
from reader_edge_runtime.drafting.speculators.speculator import Speculator, TreeStep
from reader_edge_runtime.package.package_parts import BlockPart

PASS_NODES = 8  # of a pass of the target with drafts
# Measured: docs/explanation/measured/drafts/speculators.md
TOKENS_A_PASS, USUALLY_ADDED = 2.0, 0.25  # without a speculator, and by one that is called where that pays
USUALLY_ADDED_BY_BLOCKS = 1.0  # less than published ones add in chats: they have 3.4 tokens a pass and more there
STEP_NODES = (2, 4)  # nodes of the passes of the speculator that a call takes, before the first
_BESIDE_S = 6e-4  # beside them: the tree is drafted again behind each, and now and then without it

WIDTHS = (1, 2, 4, 8, 16, 64)  # nodes of the passes that are measured
_ROUNDS = 2
_OTHER_BYTES = 64 << 20  # read before each pass, as the target's weights are: its own leave the processor's caches
_READ_AT_ONCE = 2  # tokens that came since a block was drafted, where that was measured

MAX_STEPS = 8
_WIDTHS = (1, 2, 4, 8)  # nodes that a pass may score
_UNTIMED_WIDTH = 4  # where nothing was measured
_FIRST_RATE = 0.35
_MEMORY = 0.03  # weight of the newest draft in a rate
_RETRIED = 1e-3  # by which a place that was left out nears the one before, until it is computed again


def asking_seconds(seconds: Callable[[int], float]) -> float:
    """What asking takes in a step. seconds: of a pass of the speculator, by its nodes; called with STEP_NODES."""
    return _BESIDE_S + sum(map(seconds, STEP_NODES))


def needed_tokens(asking_s: float, pass_s: float) -> float:
    """Tokens that asking has to add to a pass. pass_s: of the target, over PASS_NODES."""
    return TOKENS_A_PASS * asking_s / pass_s


def pays_off(asking_s: float, pass_s: float, added: float = USUALLY_ADDED) -> bool:
    """Whether what speculators usually add makes up for what asking takes. added: tokens a pass."""
    return needed_tokens(asking_s, pass_s) <= added


class SpeculatorTimes:
    """Seconds of passes of a speculator, T_s(n). seconds: of each of WIDTHS. block_s: of one that tells of a block, of
    num_drafts places.

    asking_s: what asking takes in a step, before it was tried. place_s: what each further place of a block takes.
    """

    def __init__(self, seconds: Sequence[float], block_s: float | None = None, num_drafts: int = 1) -> None:
        self._seconds = list(seconds)
        self.asking_s = asking_seconds(self.seconds) if block_s is None else block_asking_seconds(block_s)
        self.place_s = max((block_s or 0.0) - self.seconds(_READ_AT_ONCE), 0.0) / max(num_drafts - 1, 1)

    @classmethod
    def measure(cls, speculator: Speculator) -> "SpeculatorTimes":
        """Of one text. Raises ProviderError for a speculator that does not run."""
        block = speculator.part.block
        most = speculator.max_context - (1 if block is None else 1 + block.size)
        widths = [min(width, most) for width in WIDTHS]
        cache = speculator.new_cache(1, min(2 * max(widths), speculator.max_context))
        cache.fill(0, 1)
        found: dict[tuple[int, int], list[float]] = {(width, 1): [] for width in widths}
        of_block = block_pass(block) if block is not None else (0, 0)
        if block is not None:
            found[of_block] = []
        others = np.ones(_OTHER_BYTES // 8)
        for _ in range(1 + _ROUNDS):  # the first time, memory is laid out
            for (width, num_drafts), times in found.items():
                others.sum()
                began = time.perf_counter()
                try_pass(speculator, cache, width, num_drafts)
                times.append(time.perf_counter() - began)
        least = {sizes: min(times[1:]) for sizes, times in found.items()}
        return cls([least[width, 1] for width in widths], least.get(of_block), of_block[1])

    def seconds(self, num_nodes: int) -> float:
        """Of a pass of so many nodes: between those measured on a line, beyond them in proportion."""
        if num_nodes > WIDTHS[-1]:
            return self._seconds[-1] * num_nodes / WIDTHS[-1]
        return float(np.interp(num_nodes, WIDTHS, self._seconds))

    def learn(self, num_nodes: int, seconds: float) -> None:
        """A pass of so many nodes took so long."""
        if num_nodes <= WIDTHS[-1]:
            nearest = min(range(len(WIDTHS)), key=lambda i: abs(WIDTHS[i] - num_nodes))
            expected = self.seconds(num_nodes)
            if expected > 0:
                self._seconds[nearest] = moved(self._seconds[nearest], self._seconds[nearest] * seconds / expected)


def block_pass(block: BlockPart) -> tuple[int, int]:
    """Tokens that came since a block was drafted, and drafts, of the pass that is timed."""
    return _READ_AT_ONCE, min(block.max_drafts, PASS_NODES - 1)


def block_asking_seconds(block_s: float) -> float:
    """What asking takes in a step. block_s: of a pass as `block_pass` says."""
    return _BESIDE_S + block_s


def try_pass(speculator: Speculator, cache: Cache, width: int, num_drafts: int) -> None:
    """A pass over so many nodes, or over so many tokens and the block behind them."""
    if speculator.part.block is not None:
        states = np.zeros((width, speculator.state_size), np.float32)
        speculator.catch_up(cache, 0, [[0] * width], [states], num_drafts)
        return
    states = np.zeros((width, speculator.part.hidden_size), np.float32)
    speculator.step(cache, 0, [TreeStep(DraftTree.chain([0] * (1 + width)), 1, states)])


class BlockPlaces:
    """Learns how far a block is worth its time: each place takes time, and the later it is, the seldomer it is right.

    place_s: seconds of a place. rates: of each place, the share of steps in which the token there came and was the
    block's more than any other source's.
    """

    def __init__(self, num_places: int, place_s: float) -> None:
        self.rates = [_FIRST_RATE] * num_places
        self._place_s = place_s

    def worth(self, token_s: float) -> int:
        """Places that pay, one at least. token_s: seconds that a token saves; 0 where nothing was measured."""
        pay = [rate * token_s >= self._place_s or not token_s for rate in self.rates[1:]]
        return 1 + (*pay, False).index(False)

    def learn(self, num_places: int, came: Sequence[bool]) -> None:
        """Learn from a step in which so many were computed. came: of accepted tokens, whether each was the block's."""
        for place, rate in enumerate(self.rates):
            if place < num_places:
                self.rates[place] += _MEMORY * ((place < len(came) and came[place]) - rate)
            elif place:
                self.rates[place] += _RETRIED * (self.rates[place - 1] - rate)


@dataclass(slots=True)
class DraftProgress:
    """Of one draft. num_tokens: that it promises. num_open: how likely it ended at the nodes that were scored last."""

    num_steps: int = 0
    num_tokens: float = 0.0
    num_open: float = 0.0


class TreeGrowth:
    """Learns from every pass how many tokens a draft promised more behind it, for what it scored.

    What a draft promises is calibrated by what comes true, so that it need not be waited for. rates: by the number of
    the pass, promised tokens for each that the scored nodes are expected to be reached.
    """

    def __init__(self) -> None:
        self.rates = [_FIRST_RATE] * MAX_STEPS

    def learn(self, progress: DraftProgress, draft: DraftTree) -> None:
        """Compare a draft with the one before the last pass."""
        num_tokens = promised(draft)
        if progress.num_open > 0:
            number = progress.num_steps - 1
            rate = min(max((num_tokens - progress.num_tokens) / progress.num_open, 0.0), 1.0)
            self.rates[number] += _MEMORY * (rate - self.rates[number])
        progress.num_tokens, progress.num_open = num_tokens, 0.0

    def chosen(
        self, progress: DraftProgress, candidates: Sequence[FrontierNode], token_s: float, times: SpeculatorTimes
    ) -> list[FrontierNode]:
        """The first candidates, as many as a pass over them saves the most time; none where it saves none.

        token_s: seconds of a token without a draft; 0 where nothing was measured.
        """
        if progress.num_steps == MAX_STEPS or not candidates:
            return []
        # A token more a pass saves what one takes with the drafts that there are.
        value_s = self.rates[progress.num_steps] * token_s / (1 + progress.num_tokens)
        best, saved_s = 0 if token_s else _UNTIMED_WIDTH, 0.0
        for width in _WIDTHS if token_s else ():
            gained_s = value_s * sum(each.open for each in candidates[:width]) - times.seconds(width)
            if gained_s > saved_s:
                best, saved_s = width, gained_s
        found = list(candidates[:best])
        if found:
            progress.num_steps += 1
            progress.num_open = sum(each.open for each in found)
        return found


def promised(draft: DraftTree) -> float:
    """Tokens that the better half of a draft promises: about as many nodes as its pass will have."""
    values = sorted(draft.values[1:], reverse=True)
    return sum(values[: (len(values) + 1) // 2])
