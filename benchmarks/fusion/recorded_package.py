"""A package, and recorded answers of its model that say what it thought likely."""

from pathlib import Path

from reader_edge.bench.recording import read_recording
from reader_edge.bench.replay.replay import check_successors
from reader_edge_runtime.drafting.sources.successor_table import SuccessorTable
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.text.tokenizer import Tokenizer


class RecordedPackage:
    """requests: all that the recording has. fingerprint: of the package's tokenizer. table: the model's own, None where
    the package has none."""

    def __init__(self, recording: Path, package: ModelPackage) -> None:
        """Raises ConfigError for what is no recording with successors, made with the package's tokenizer."""
        tokenizer = Tokenizer.open(package)
        self.requests = read_recording(recording, tokenizer)
        check_successors([recording], [self.requests])
        self.fingerprint = tokenizer.fingerprint()
        self.table = SuccessorTable.of_package(package, self.fingerprint)
