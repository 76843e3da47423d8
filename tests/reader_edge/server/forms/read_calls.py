"""An answer's text that comes in pieces, as a reader of calls takes it apart."""

from reader_edge_runtime.text.tool_calls.call_parser import ToolCallParser
from reader_edge_runtime.text.tool_calls.call_syntax import CallSyntax
from reader_edge_runtime.text.tool_calls.tool_use import AnswerDelta, ToolUse


def read_calls(
    text: str, size: int, use: ToolUse, form: CallSyntax, is_formed: bool = False
) -> tuple[str, list[tuple[str, str]]]:
    """The text, and the names and arguments of the calls, of an answer that comes in pieces of this size."""
    reader = ToolCallParser(use, form, is_formed)
    output: list[AnswerDelta] = []
    for place in range(0, len(text), size):
        output += reader.push(text[place : place + size], is_last=False)
    output += reader.push("", is_last=True)
    calls: list[tuple[str, str]] = []
    for each in output:
        if each.name is not None:
            calls.append((each.name, ""))
        if each.call >= 0:
            assert each.call == len(calls) - 1
            calls[-1] = (calls[-1][0], calls[-1][1] + each.text)
    assert reader.num_calls == len(calls)
    return "".join(each.text for each in output if each.call < 0), calls
