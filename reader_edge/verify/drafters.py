"""The drafters of a proof: the usual one, shared by jobs, and some that make verification hard."""

import math
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import numpy as np

from reader_edge.verify.logit_comparer import PlainAnswer
from reader_edge.verify.variants import SOURCE_SETS, Setting, Variant
from reader_edge_runtime import DraftConfig, Engine
from reader_edge_runtime.decoding.planning.planner import Draft, Planner, StepPlan
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.drafter import Drafter, DraftRequest, RequestContext, RequestDrafter
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.drafting.sources.datastore.builder import DatastoreBuilder
from reader_edge_runtime.drafting.sources.datastore.datastore import Datastore
from reader_edge_runtime.drafting.sources.datastore.header import DatastoreFacts
from reader_edge_runtime.drafting.sources.source import DraftSource
from reader_edge_runtime.drafting.sources.successor_store import SuccessorTable
from reader_edge_runtime.drafting.sources.warmup_answers import WarmupAnswers
from reader_edge_runtime.errors import ReaderEdgeError

_MAX_NODES = 40
_MAX_RIGHT = 12
_MAX_PROPOSED = 24


class DrafterMaker:
    """Makes the drafters of a proof by name. further: names of those with sources beside every engine's, and these."""

    def __init__(self, engine: Engine, further: Sequence[DraftSource]) -> None:
        sets = dict.fromkeys((*((source,) for source in further), tuple(further)))
        self.further = {" + ".join(("all sources", *(source.name for source in few))): few for few in sets if few}
        self.fingerprint = engine.tokenizer.fingerprint()
        self.vocab_size = engine.decoder.target.manifest.vocab_size
        self._table = SuccessorTable.of_package(engine.package, self.fingerprint)
        self._warmup_answers = WarmupAnswers.of_package(engine.package)

    def make(self, name: str, shared: "SharedDrafters", variant: Variant) -> Drafter:
        """A drafter that has learned nothing yet."""
        if name == "stress":
            return StressDrafter(shared.texts(variant), self.vocab_size)
        own = self.further.get(name, ())
        sources = SOURCE_SETS.get("all sources" if own else name, frozenset())
        config = DraftConfig(is_history_used="history" in sources, is_logits_used="logits" in sources)
        further = [HostileSource(range(self.vocab_size))] if "hostile" in sources else own
        datastores = [shared.datastore(variant)] if "datastore" in sources else []
        return RetrievalDrafter(config, further, datastores, None, self._table, self._warmup_answers).wait()


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
        """Plain answers that the runs from now on compare."""
        texts = self.texts(variant)
        given = [(tuple(answer.prompt.text_ids), answer.token_ids) for answer in answers]
        texts += [text for text in given if text not in texts]

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
            builder.write(path / "answers.ds", DatastoreFacts(("answers",), 0), lambda phase: None)
            self._datastores[place] = Datastore.open(
                path / "answers.ds", self._maker.fingerprint, self._maker.vocab_size
            )
        return self._datastores[place]


class StressDrafter(Drafter):
    """Random trees that hold 0 to 12 tokens of the plain answer's continuation, among random siblings and dead ends.

    So accepted paths are long, their KV rows lie apart and must be moved, and every tree also holds rejections.
    answers: token ids of prompts, and those that plain decoding gives, in one way or several. The same seed gives the
    same trees.
    """

    num_harvested_rows = 3  # so that a prompt's end is read at more than one row

    def __init__(
        self, answers: Sequence[tuple[tuple[int, ...], Sequence[int]]], vocab_size: int, seed: int = 0
    ) -> None:
        self._answers = answers
        self._vocab_size = vocab_size
        self._random = np.random.Generator(np.random.Philox(seed))

    def begin(self, context: RequestContext) -> "StressRequest":
        prompt = tuple(context.token_ids)
        return StressRequest(context, [answer for known_prompt, answer in self._answers if known_prompt == prompt])

    def draft(self, draft_requests: Sequence[DraftRequest]) -> list[DraftTree | ReaderEdgeError]:
        return [
            self._tree(cast(StressRequest, draft_request.request), draft_request.max_nodes, draft_request.max_depth)
            for draft_request in draft_requests
        ]

    def _tree(self, request: "StressRequest", max_nodes: int, max_depth: int) -> DraftTree:
        num_right = min(int(self._random.integers(_MAX_RIGHT + 1)), max_depth)
        right = request.following(num_right)
        tree = DraftTree.root(request.token_ids[-1])
        depths = [0]
        last_right = 0
        for _ in range(min(max_nodes, _MAX_NODES) - 1):
            if right and self._random.random() < 0.4:
                last_right = _child(tree, depths, last_right, right.pop(0), "right")
                continue
            parent = int(self._random.integers(len(tree)))
            if depths[parent] < max_depth:
                _child(tree, depths, parent, int(self._random.integers(self._vocab_size)), "wrong")
        return tree


class StressRequest(RequestDrafter):
    """One request of a StressDrafter. answers: what plain decoding may give."""

    def __init__(self, context: RequestContext, answers: Sequence[Sequence[int]]) -> None:
        super().__init__(context)
        self._answers = answers

    def following(self, num_tokens: int) -> list[int]:
        """The next tokens of a plain answer that begins as this one does."""
        output = list(self.token_ids[self.num_prompt_tokens :])
        known = (answer for answer in self._answers if list(answer[: len(output)]) == output)
        return list(next(known, ())[len(output) : len(output) + num_tokens])


def _child(tree: DraftTree, depths: list[int], parent: int, token_id: int, source: str) -> int:
    """The child of `parent` that bears the token, added where there is none: siblings must differ."""
    known = tree.child(parent, token_id)
    if known >= 0:
        return known
    depths.append(depths[parent] + 1)
    return tree.add(token_id, parent, source)


class HostileSource(DraftSource):
    """Random trees of random tokens, siblings named twice and more, with claims from unlikely to sure.

    token_ids: the ids it draws from; outside the vocabulary they must end in an error that names this source. The same
    seed gives the same trees.
    """

    name = "hostile"

    def __init__(self, token_ids: range, seed: int = 0) -> None:
        self._token_ids = token_ids
        self._random = np.random.Generator(np.random.Philox(seed))

    def begin(self, context: RequestContext) -> RequestDrafter:
        """It does not care about the text."""
        return RequestDrafter(context)

    def propose(self, draft_requests: Sequence[DraftRequest]) -> list[DraftTree]:
        """A tree for each request."""
        return [self._tree(draft_request.request.token_ids[-1]) for draft_request in draft_requests]

    def _tree(self, root: int) -> DraftTree:
        """Few distinct tokens, so that siblings repeat and some trees are chains."""
        num = int(self._random.integers(1, _MAX_PROPOSED + 1))
        few = self._random.choice(self._token_ids, size=4).tolist()
        parents = [int(self._random.integers(-1, i)) for i in range(num)]
        token_ids = [few[i] for i in self._random.integers(4, size=num)]
        tree = DraftTree.root(root)
        for token_id, parent, share in zip(token_ids, parents, self._random.random(num).tolist(), strict=True):
            tree.add(token_id, 1 + parent, self.name, share * tree.values[1 + parent])
        return tree


class RandomWidths(Planner):
    """Verifies what would not pay, so that a proof sees every source's drafts; nothing backs off, no plain step is due.

    Draws the width of each tree at random, 2 to as many nodes as were drafted; the same seed gives the same widths.
    splits: have a tree that steps alone go in two passes, cut at random; of a target over links.
    """

    is_plain_due = False

    def __init__(self, seed: int = 0, splits: bool = False) -> None:
        super().__init__()
        self._splits = splits
        self.max_drafted = self.times.max_width
        self._random = np.random.Generator(np.random.Philox(seed))

    def plan(
        self, requests: Sequence[Request], pasts: Sequence[int], room: int, draft: Draft, given_room: int | None = None
    ) -> StepPlan:
        plan = super().plan(requests, pasts, room, draft, given_room)
        # A second pass of one node may be padded to two.
        if not self._splits or len(requests) > 1 or not 1 < plan.width < room:
            return plan
        return plan._replace(num_first=int(self._random.integers(1, plan.width)))

    def choose(
        self, requests: Sequence[Request], drafts: Sequence[DraftTree | None], pasts: Sequence[int]
    ) -> tuple[list[int], list[float]]:
        """Nodes of each tree; every draft counts as worth its time."""
        most = [1 if draft is None else len(draft) for draft in drafts]
        return [int(self._random.integers(2, each + 1)) if each > 1 else 1 for each in most], [math.inf] * len(drafts)
