"""Answers drafted from all that an engine can have, with what proposes and without it.

That is past answers, the package's table and own answers, datastores, and a head beside what proposes. Past are the
answers to all other prompts of the recording, as an engine has them that answered these before; never those of the same
conversation.
"""

from collections.abc import Sequence
from functools import partial

from benchmarks.fusion.trained_proposer import Begin
from reader_edge.bench.decode.fixed_budget import budget_config
from reader_edge.bench.decode.source_sets import SourceStock
from reader_edge.bench.recording import RecordedRequest, RecordedTurn
from reader_edge.bench.replay.heard_answer import ReplayedAnswer
from reader_edge_runtime.drafting.drafter import PROMPT_TAIL
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter


class AllSources:
    """stock: the last of its further sources is what proposes. begin: an answer that hears what these sources read.

    begins: ways to draft, by their names in a table.
    """

    def __init__(self, stock: SourceStock, begin: Begin, requests: Sequence[RecordedRequest], max_nodes: int) -> None:
        names, proposing = stock.sets(is_warm=True)[-1], stock.further[-1].name
        config = budget_config(max_nodes)
        before = [name for name in names if name != proposing]
        self._begin = begin
        self._turns = [turn for request in requests for turn in request.turns]
        self.begins = {
            "all, without": partial(self._begun, stock.drafter(before, config)),
            "all, with it": partial(self._begun, stock.drafter(names, config)),
        }

    def _begun(self, drafter: RetrievalDrafter, turn: RecordedTurn) -> ReplayedAnswer:
        drafter.forget()
        for text in past_answers(self._turns, turn):
            drafter.learn_later(text)
        return self._begin(drafter, turn)


def past_answers(turns: Sequence[RecordedTurn], turn: RecordedTurn) -> list[list[int]]:
    """Those of other conversations than a turn's, each behind the end of its prompt, as an engine keeps them."""
    return [[*each.prompt[-PROMPT_TAIL:], *each.output] for each in turns if _are_apart(each.prompt, turn.prompt)]


def _are_apart(first: list[int], second: list[int]) -> bool:
    """Whether neither text goes on with the other."""
    num_both = min(len(first), len(second))
    return first[:num_both] != second[:num_both]
