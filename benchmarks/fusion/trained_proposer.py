"""What proposes for a package: its trained speculator, or a head; alone, and as a source of our mixture."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks.fusion.head_proposer import HeadProposer
from benchmarks.fusion.proposer import Proposer
from benchmarks.fusion.speculator_proposer import SpeculatorProposer
from reader_edge.bench.recording import RecordedTurn
from reader_edge.bench.replay.heard_answer import ReplayedAnswer, hidden_states, layer_states
from reader_edge_runtime import EngineConfig
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.assembly import open_head_source, open_speculator_source, settled_target
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.drafting.sources.head_file import HeadFile
from reader_edge_runtime.drafting.sources.source import DraftSource
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.execution.providers import open_head, open_speculator
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Target

Begin = Callable[[RetrievalDrafter, RecordedTurn], ReplayedAnswer]


class TrainedProposer(NamedTuple):
    """target: of the package. proposer: grows trees of its own. source: the same network beside others.

    begin: an answer of a drafter with that source, which hears the states that it and a head beside it read.
    """

    target: Target
    proposer: Proposer
    source: DraftSource
    begin: Begin

    @classmethod
    def open(cls, package: ModelPackage, head: Path | None, is_head_beside: bool = False) -> "TrainedProposer":
        """The head, where one is given, else the package's speculator. Raises what opening raises.

        is_head_beside: whether what begins hears what a head reads, too.
        """
        config = EngineConfig(is_probed=False)
        target, _ = settled_target(package, config)
        told: dict[int, tuple[Float32Array | None, Float32Array | None]] = {}  # of each turn, by its `id`

        def begin(drafter: RetrievalDrafter, turn: RecordedTurn) -> ReplayedAnswer:
            if id(turn) not in told:
                hidden = hidden_states(target, turn) if is_head_beside or head is not None else None
                told[id(turn)] = hidden, layer_states(target, turn) if head is None else None
            return ReplayedAnswer(drafter, turn, *told[id(turn)])

        if head is not None:
            file = HeadFile.read(head, package.manifest)
            proposer = HeadProposer(file, open_head(file, package.manifest), target)
            return cls(target, proposer, open_head_source(head, package), begin)
        if package.manifest.speculator is None:
            raise ConfigError(f"'{package.folder}' has no speculator: name a head of it with --head.")
        speculator = SpeculatorProposer(open_speculator(package, target, config), target)
        return cls(target, speculator, open_speculator_source(package, target, config), begin)
