"""What visits to the same few questions share: their plain answers, drafters that learn on, and a datastore."""

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from reader_edge.verify.logit_comparer import PlainAnswer
from reader_edge.verify.stress import HostileSource, StressDrafter
from reader_edge.verify.variants import SOURCE_SETS, Setting, Variant
from reader_edge_runtime import DraftConfig, Engine
from reader_edge_runtime.drafting.drafter import Drafter
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.drafting.sources.datastore.builder import DatastoreBuilder
from reader_edge_runtime.drafting.sources.datastore.datastore import Datastore
from reader_edge_runtime.drafting.sources.datastore.header import DatastoreFacts
from reader_edge_runtime.drafting.sources.own_answers import OwnAnswers
from reader_edge_runtime.drafting.sources.source import DraftSource
from reader_edge_runtime.drafting.sources.successor_table import SuccessorTable


class DrafterMaker:
    """Makes the drafters of a proof by name. further: names of those with sources beside every engine's, and these."""

    def __init__(self, engine: Engine, further: Sequence[DraftSource]) -> None:
        sets = dict.fromkeys((*((source,) for source in further), tuple(further)))
        self.further = {" + ".join(("all sources", *(source.name for source in few))): few for few in sets if few}
        self.fingerprint = engine.tokenizer.fingerprint()
        self.vocab_size = engine.decoder.target.manifest.vocab_size
        self._table = SuccessorTable.of_package(engine.package, self.fingerprint)
        self._own_answers = OwnAnswers.of_package(engine.package)

    def make(self, name: str, shared: "SharedDrafters", variant: Variant) -> Drafter:
        """A drafter that has learned nothing yet."""
        if name == "stress":
            return StressDrafter(shared.texts(variant), self.vocab_size)
        own = self.further.get(name, ())
        sources = SOURCE_SETS.get("all sources" if own else name, frozenset())
        config = DraftConfig(is_history_used="history" in sources, is_logits_used="logits" in sources)
        further = [HostileSource(range(self.vocab_size))] if "hostile" in sources else own
        datastores = [shared.datastore(variant)] if "datastore" in sources else []
        return RetrievalDrafter(config, further, datastores, None, self._table, self._own_answers).wait()


class SharedDrafters:
    """To be closed in the end."""

    def __init__(self, maker: DrafterMaker) -> None:
        self._maker = maker
        self._files = ExitStack()
        self._drafters: dict[tuple[str, Variant], Drafter] = {}
        self._datastores: dict[tuple[bool, bool], Datastore] = {}
        self._texts: dict[tuple[bool, bool], list[tuple[tuple[int, ...], list[int]]]] = {}

    def close(self) -> None:
        """Forget the drafters, and remove the files of datastores."""
        self._drafters.clear()
        self._datastores.clear()
        self._files.close()

    def take(self, answers: Sequence[PlainAnswer], variant: Variant) -> None:
        """Plain answers that the visits from now on compare."""
        texts = self.texts(variant)
        texts += [text for answer in answers if (text := (answer.prompt, answer.token_ids)) not in texts]

    def texts(self, variant: Variant) -> list[tuple[tuple[int, ...], list[int]]]:
        """Prompts and answers of a variant, which become more."""
        return self._texts.setdefault((variant.is_sampled, variant.is_arriving), [])

    def drafter(self, setting: Setting) -> Drafter:
        """One for all batch sizes: with a history, the later ones know the answers by heart."""
        place = setting.drafter, setting.variant
        if place not in self._drafters:
            self._drafters[place] = self._maker.make(setting.drafter, self, setting.variant)
        return self._drafters[place]

    def datastore(self, variant: Variant) -> Datastore:
        """A file that holds every second prompt with its answer: some drafts are right all along, some go astray."""
        place = variant.is_sampled, variant.is_arriving
        if place not in self._datastores:
            builder = DatastoreBuilder(self._maker.fingerprint, self._maker.vocab_size)
            for prompt, token_ids in self.texts(variant)[::2]:
                builder.add([*prompt, *token_ids])
                builder.end_document()
            path = Path(self._files.enter_context(tempfile.TemporaryDirectory(prefix="reader-edge-verify-")))
            builder.write(path / "answers.ds", DatastoreFacts(("answers",), 0), lambda stage: None)
            self._datastores[place] = Datastore.open(
                path / "answers.ds", self._maker.fingerprint, self._maker.vocab_size
            )
        return self._datastores[place]
