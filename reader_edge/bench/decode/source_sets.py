"""Sets of the sources that a package and a command offer, from the request's own text alone to all of them."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from reader_edge_runtime import DraftConfig, Engine
from reader_edge_runtime.assembly import make_decoder
from reader_edge_runtime.drafting.draft_sources import FilePath
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.drafting.sources.datastore.datastore import Datastore, open_datastores
from reader_edge_runtime.drafting.sources.own_answers import OwnAnswers
from reader_edge_runtime.drafting.sources.source import DraftSource
from reader_edge_runtime.drafting.sources.successor_table import SuccessorTable
from reader_edge_runtime.measuring.cost_cache import load_or_measure


@dataclass(frozen=True, slots=True)
class SourceStock:
    """All that may be drafted from beside a request's own text and past ones. None: the package has none."""

    datastores: Sequence[Datastore]
    table: SuccessorTable | None
    own_answers: OwnAnswers | None
    further: Sequence[DraftSource]

    @classmethod
    def of_engine(
        cls, engine: Engine, datastores: Sequence[FilePath] = (), further: Sequence[DraftSource] = ()
    ) -> "SourceStock":
        """What an engine's package has, with files of `reader-edge datastore build`. Raises DatastoreError."""
        fingerprint, package = engine.tokenizer.fingerprint(), engine.package
        opened = open_datastores(datastores, fingerprint, package.manifest.vocab_size) if datastores else []
        table, own_answers = SuccessorTable.of_package(package, fingerprint), OwnAnswers.of_package(package)
        return cls(opened, table, own_answers, further)

    def sets(self, is_warm: bool) -> list[tuple[str, ...]]:
        """Names of sources, each set with one more than the last; where there are datastores, also with them.

        is_warm: with past requests.
        """
        names = ["logits", *["table"] * (self.table is not None), *["own answers"] * (self.own_answers is not None)]
        names += [source.name for source in self.further]
        first, last = ("context", *["history"] * is_warm), [(), ("datastore",)] if self.datastores else [()]
        subsets = [tuple(names[:count]) for count in range(len(names) + 1)]
        return [(*first, *middle, *end) for middle, end in itertools.product(subsets, last)]

    def drafter(self, names: Sequence[str], config: DraftConfig) -> RetrievalDrafter:
        """One that drafts from the sources of these names alone, ready."""
        used = replace(
            config,
            is_history_used="history" in names or "own answers" in names,
            is_logits_used="logits" in names,
        )
        return RetrievalDrafter(
            used,
            [source for source in self.further if source.name in names],
            datastores=self.datastores if "datastore" in names else (),
            table=self.table if "table" in names else None,
            own_answers=self.own_answers if "own answers" in names else None,
        ).wait()

    def engines(self, engine: Engine) -> dict[str, Engine]:
        """One for each set of an engine that has no past, by its names; the last, of all sources, is the engine itself.

        They share its model, and have KV caches and planners of their own.
        """
        *sets, everything = self.sets(is_warm=False)
        return {" + ".join(names): self._engine(engine, names) for names in sets} | {" + ".join(everything): engine}

    def _engine(self, engine: Engine, names: Sequence[str]) -> Engine:
        target, config, report = engine.decoder.target, engine.decoder.config, engine.width_report
        costs = [load_or_measure(target, config.threads, 1)] if config.is_calibrated else []
        decoder = make_decoder(target, self.drafter(names, DraftConfig()), config, costs, report)
        return Engine(engine.package, engine.tokenizer, decoder, report)
