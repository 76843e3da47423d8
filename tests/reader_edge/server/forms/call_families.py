"""Answers with calls of tools as model families write them, and what is to be read of them."""

import json

from reader_edge_runtime.text.tool_calls.call_parser import ToolCallParser
from reader_edge_runtime.text.tool_calls.call_syntax import CallSyntax
from reader_edge_runtime.text.tool_calls.tool_use import AnswerDelta, ToolUse

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "more": {"type": "object"}, "is_now": {}},
}
TOOLS = (
    {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "time.now"}},
)
USE = ToolUse(TOOLS, ("weather", "time.now"))
WEATHER = {"city": 'Ulm <b>\n"x"', "days": 2, "more": {"a": [1, None, True, -2.5]}, "is_now": False}
PLAIN = {"city": "Ulm", "days": 2, "is_now": True}
W, P, EMPTY = json.dumps(WEATHER), json.dumps(PLAIN), "{}"
SEP, CALL, END, CALLS, ENDS = (
    f"<\uff5ctool\u2581{name}\uff5c>"
    for name in ("sep", "call\u2581begin", "call\u2581end", "calls\u2581begin", "calls\u2581end")
)
# marks of a template, an answer, its text, its calls
FORMS: dict[str, tuple[str, str, str, list[tuple[str, object]]]] = {
    "hermes": (
        "<tool_call>",
        f'Well.\n<tool_call>\n{{"name": "weather", "arguments": {W}}}\n</tool_call>\n<tool_call>{{"name": "time.now", '
        '"arguments": {}}</tool_call>',
        "Well.\n",
        [("weather", WEATHER), ("time.now", {})],
    ),
    "qwen3-coder": (
        "<tool_call>\n<function=example>\n<parameter=x>",
        'Well.\n<tool_call>\n<function=weather>\n<parameter=city>\nUlm <b>\n"x"\n</parameter>\n<parameter=days>\n2\n'
        '</parameter>\n<parameter=more>\n{"a": [1, null, true, -2.5]}\n</parameter>\n<parameter=is_now>\nFalse\n'
        "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=time.now>\n</function>\n</tool_call>",
        "Well.\n",
        [("weather", WEATHER), ("time.now", {})],
    ),
    "qwen3-coder without its tag": (
        "<function= <parameter=",
        "Well. <function=weather>\n<parameter=city>\nUlm\n</parameter>\n</function>\n</tool_call>\n",
        "Well. ",
        [("weather", {"city": "Ulm"})],
    ),
    "glm": (
        "<tool_call>{function-name} <arg_key>",
        '<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Ulm <b>\n"x"</arg_value>\n<arg_key>days</arg_key>\n'
        '<arg_value>2</arg_value>\n<arg_key>more</arg_key><arg_value>{"a": [1, null, true, -2.5]}</arg_value>'
        "<arg_key>is_now</arg_key><arg_value>false</arg_value>\n</tool_call><tool_call>time.now</tool_call>",
        "",
        [("weather", WEATHER), ("time.now", {})],
    ),
    "glm-4-0414": ("使用 Json 格式表示调用的参数", f"\nweather\n{W}", "", [("weather", WEATHER)]),
    "llama 3": (
        '<|python_tag|> {"name": x, "parameters": y}',
        f'{{"name": "weather", "parameters": {W}}}; {{"name": "time.now", "parameters": {{}}}}',
        "",
        [("weather", WEATHER), ("time.now", {})],
    ),
    "llama 3 with its tag": (
        '<|python_tag|> {"name": x, "parameters": y}',
        f'<|python_tag|>{{"name": "weather", "parameters": {W}}}',
        "",
        [("weather", WEATHER)],
    ),
    "mistral": (
        "[TOOL_CALLS] [",
        f'[TOOL_CALLS] [{{"name": "weather", "arguments": {W}}}, {{"name": "time.now", "arguments": {{}}}}]',
        "",
        [("weather", WEATHER), ("time.now", {})],
    ),
    "mistral with names": (
        "[TOOL_CALLS] [ARGS]",
        f"Well.[TOOL_CALLS]weather[ARGS]{W}[TOOL_CALLS]time.now[CALL_ID]abcdefghi[ARGS]{{}}",
        "Well.",
        [("weather", WEATHER), ("time.now", {})],
    ),
    "gpt-oss": (
        "<|channel|>commentary to=functions.",
        f"<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{W}<|call|>",
        "",
        [("weather", WEATHER)],
    ),
    "gpt-oss with the recipient first": (
        "<|channel|>commentary to=functions.",
        f" to=functions.weather<|channel|>commentary json<|message|>{W}",
        "",
        [("weather", WEATHER)],
    ),
    "deepseek v3": (
        CALL + "```json",
        f"Well.{CALLS}{CALL}function{SEP}weather\n```json\n{W}\n```{END}\n{CALL}function{SEP}time.now\n```json\n{{}}\n"
        f"```{END}{ENDS}",
        "Well.",
        [("weather", WEATHER), ("time.now", {})],
    ),
    "deepseek v3.1": (
        CALL,
        f"{CALLS}{CALL}weather{SEP}{W}{END}{CALL}time.now{SEP}{{}}{END}{ENDS}",
        "",
        [("weather", WEATHER), ("time.now", {})],
    ),
    "kimi": (
        "<|tool_call_begin|>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
        f"{W}<|tool_call_end|><|tool_call_begin|>functions.time.now:1<|tool_call_argument_begin|>{{}}<|tool_call_end|>"
        "<|tool_calls_section_end|>",
        "",
        [("weather", WEATHER), ("time.now", {})],
    ),
    "lfm2": (
        "<|tool_call_start|>",
        "<|tool_call_start|>[weather(city='Ulm <b>\\n\"x\"', days=2, more={'a': [1, None, True, -2.5]}, is_now=False), "
        "time.now()]<|tool_call_end|>Well.",
        "Well.",
        [("weather", WEATHER), ("time.now", {})],
    ),
    "olmo 3": (
        "<function_calls>",
        '<function_calls>\nweather(city="Ulm", days=2, is_now=true)\ntime.now()\n</function_calls>',
        "",
        [("weather", PLAIN), ("time.now", {})],
    ),
    "gemma 4": (
        "<|tool_call>call:",
        '<|tool_call>call:weather{city:<|"|>Ulm <b>\n"x"<|"|>,days:2,more:{a:[1,null,true,-2.5]},is_now:false}'
        "<tool_call|><|tool_call>call:time.now{}<tool_call|>",
        "",
        [("weather", WEATHER), ("time.now", {})],
    ),
    "functiongemma": (
        "<start_function_call>",
        "<start_function_call>call:weather{city:<escape>Ulm<escape>,days:2,is_now:true}<end_function_call>",
        "",
        [("weather", PLAIN)],
    ),
    "granite 3": (
        "<|tool_call|>",
        f'<|tool_call|>[{{"name": "weather", "arguments": {W}}}]',
        "",
        [("weather", WEATHER)],
    ),
    "phi 4 mini": (
        "<|tool_call|><|/tool_call|>",
        f'<|tool_call|>[{{"name": "weather", "arguments": {W}}}]<|/tool_call|>',
        "",
        [("weather", WEATHER)],
    ),
    "command": (
        "<|START_ACTION|>",
        f'<|START_ACTION|>[{{"tool_call_id": "0", "tool_name": "weather", "parameters": {W}}}]<|END_ACTION|>',
        "",
        [("weather", WEATHER)],
    ),
    "seed-oss": (
        "<seed:tool_call>",
        "<seed:tool_call>\n<function=weather>\n<parameter=city>Ulm</parameter>\n</function>\n</seed:tool_call>",
        "",
        [("weather", {"city": "Ulm"})],
    ),
    "muse glimmer": (
        "<atem:function_calls>",
        ' to=weather<|message|><atem:function_calls>\n<atem:invoke name="weather">\n<atem:parameter name="city">Ulm '
        '<b>\n"x"</atem:parameter>\n<atem:parameter name="days">2</atem:parameter>\n<atem:parameter name="more">'
        '{"a": [1, null, true, -2.5]}</atem:parameter>\n<atem:parameter name="is_now">false</atem:parameter>\n'
        "</atem:invoke>\n</atem:function_calls>to=time.now<|message|><atem:function_calls>\n<atem:invoke "
        'name="time.now">\n</atem:invoke>\n</atem:function_calls>',
        "",
        [("weather", WEATHER), ("time.now", {})],
    ),
    "nemotron": (
        "<TOOLCALL>",
        f'<TOOLCALL>[{{"name": "weather", "arguments": {P}}}]</TOOLCALL>',
        "",
        [("weather", PLAIN)],
    ),
    "hunyuan": (
        "<tool_calls> <tool_call>name\n```json\n{}\n```</tool_call>",
        f"Well.<tool_calls><tool_call>weather\n```json\n{W}\n```</tool_call>\n<tool_call>time.now\n```json\n{{}}\n"
        "```</tool_call></tool_calls>",
        "Well.",
        [("weather", WEATHER), ("time.now", {})],
    ),
    "minicpm 5": (
        '<function name="name"><param name="key">value</param></function>',
        'Well.\n<function name="weather"><param name="city"><![CDATA[Ulm <b>\n"x"]]></param><param name="days">2'
        "</param><param name=\"more\">{'a': [1, None, True, -2.5]}</param>"
        '<param name="is_now">False</param></function>\n<function name="time.now"></function>',
        "Well.\n",
        [("weather", WEATHER), ("time.now", {})],
    ),
    "apertus": (
        "<|tools_prefix|>",
        f'Well.<|tools_prefix|>[{{"weather": {W}}}, {{"time.now": {{}}}}]<|tools_suffix|>',
        "Well.",
        [("weather", WEATHER), ("time.now", {})],
    ),
    "gigachat": (
        "<|function_call|>",
        f'<|function_call|>{{"name": "weather", "arguments": {W}}}',
        "",
        [("weather", WEATHER)],
    ),
    "minimax m1": (
        "<tool_calls>",
        f'<tool_calls>\n{{"name": "weather", "arguments": {W}}}\n{{"name": "time.now", "arguments": {{}}}}\n'
        "</tool_calls>",
        "",
        [("weather", WEATHER), ("time.now", {})],
    ),
    "apriel": (
        "<tool_call> <tool_calls>[",
        f'<tool_calls>[{{"name": "weather", "arguments": {W}, "id": "1"}}]</tool_calls>',
        "",
        [("weather", WEATHER)],
    ),
    "functionary": ("<function=x></function>", f"<function=weather>{W}</function>", "", [("weather", WEATHER)]),
}


def form_of(name: str) -> CallSyntax:
    return CallSyntax.of_template("{% if tools %}" + FORMS[name][0])


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
