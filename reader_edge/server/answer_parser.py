"""What an answer is made of, found while it comes: thoughts, text, and calls of tools."""

from collections.abc import Callable

from reader_edge_runtime import GenerationChunk, GenerationResult
from reader_edge_runtime.text.tool_calls.call_parser import ToolCallParser
from reader_edge_runtime.text.tool_calls.tool_use import AnswerDelta

THOUGHT = -2  # in place of a call's number: what the model thinks before it answers


class AnswerParser:
    """Takes one answer apart. calls: what finds calls in its text, where there may be any.

    compare: gets the name and the arguments of each call of an answer that came to its end.
    """

    def __init__(
        self, calls: ToolCallParser | None = None, compare: Callable[[str, str], object] | None = None
    ) -> None:
        self._calls = calls
        self._compare = compare
        self._called: dict[int, tuple[str, str]] = {}

    @property
    def num_calls(self) -> int:
        """Calls of tools that were found so far."""
        return 0 if self._calls is None else self._calls.num_calls

    @property
    def is_inside_call(self) -> bool:
        """Whether a call was begun whose arguments have not ended, as where a stop cuts them."""
        return self._calls is not None and self._calls.is_inside_call

    def push(self, answered: GenerationChunk | GenerationResult) -> list[AnswerDelta]:
        """What a further piece says, or the whole answer."""
        text = answered.text
        deltas = (
            [AnswerDelta(text)] if self._calls is None else self._calls.push(text, answered.finish_reason is not None)
        )
        if self._compare is not None:
            self._follow(deltas, self._compare if answered.finish_reason == "stop" else None)
        return [
            each for each in (AnswerDelta(answered.reasoning, THOUGHT), *deltas) if each.text or each.name is not None
        ]

    def _follow(self, pieces: list[AnswerDelta], compare: Callable[[str, str], object] | None) -> None:
        """Put calls together; compare: for the last time."""
        for piece in pieces:
            if piece.call >= 0:
                name, arguments = self._called.get(piece.call, ("", ""))
                self._called[piece.call] = piece.name or name, arguments + piece.text
        if compare is not None and not self.is_inside_call:
            for name, arguments in self._called.values():
                compare(name, arguments)


def text_in(deltas: list[AnswerDelta], call: int = -1) -> str:
    """The text of the answer, or what was thought, among pieces."""
    return "".join(each.text for each in deltas if each.call == call)
