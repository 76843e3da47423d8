"""A pass that was sent directly behind another, whose answer may be of no use once the other's is known."""

from collections.abc import Callable

from reader_edge_runtime.errors import StageLostError
from reader_edge_runtime.execution.pipeline.under_way import RowsLostError, UnderWay
from reader_edge_runtime.forward_result import ForwardResult


class SentBehind:
    """A `reader_edge_runtime.target.PassBehind`.

    number: of the pass that is under way. epoch: of `UnderWay`, when it was sent. scored: what it says, from what the
    stages that follow hand on of it. scored_again: the same, by a pass over the nodes of the first one as well, where a
    stage has lost its rows.
    """

    def __init__(
        self,
        under_way: UnderWay,
        number: int,
        epoch: int,
        scored: Callable[[memoryview], ForwardResult],
        scored_again: Callable[[], ForwardResult],
    ) -> None:
        self._under_way = under_way
        self._number = number
        self._epoch = epoch
        self._scored = scored
        self._scored_again = scored_again

    def result(self) -> ForwardResult:
        try:
            data = self._under_way.wait(self._number)
        except RowsLostError:
            return self._scored_again()
        except StageLostError as lost:
            self._under_way.come_back(lost, self._epoch)
            return self._scored_again()
        return self._scored(data)

    def drop(self) -> None:
        self._under_way.give_up([self._number])
