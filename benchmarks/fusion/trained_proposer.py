"""What proposes for a package: its head."""

from pathlib import Path

from benchmarks.fusion.head_proposer import HeadProposer
from benchmarks.fusion.proposer import Proposer
from reader_edge_runtime import EngineConfig
from reader_edge_runtime.assembly import settled_target
from reader_edge_runtime.drafting.sources.head_file import HeadFile
from reader_edge_runtime.execution.providers import open_head
from reader_edge_runtime.package.model_package import ModelPackage


def open_proposer(package: ModelPackage, head_path: Path) -> Proposer:
    target, _ = settled_target(package, EngineConfig(is_probed=False))
    head = HeadFile.read(head_path, package.manifest)
    return HeadProposer(head, open_head(head, package.manifest), target)
