"""How a model writes calls of tools, as its chat template asks for them."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

CALL_BEGIN, CALL_END = "<tool_call>\n", "\n</tool_call>"


class Notation(Enum):
    """How what a call says is written; call_body_parser.py reads them."""

    OBJECT = "object"  # {"name": "f", "arguments": {"a": 1}}, or a list of such
    KEYED = "keyed"  # {"f": {"a": 1}}, or a list of such
    NAMED = "named"  # the name, a text, and the arguments as a JSON object
    XML = "xml"  # <function=f>, and <parameter=a> 1 </parameter> for each argument
    KEYS = "keys"  # the name, and <arg_key>a</arg_key> <arg_value>1</arg_value> for each argument
    PYTHON = "python"  # [f(a=1)]
    BRACES = "braces"  # call:f{a:1,b:<escape>text<escape>}


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """What stands around calls, and how each is written.

    begin, end: around each call. between: after its name, where the notation is NAMED or XML. opening, closing: around
    all of them; joint: between two, None where an answer has but one. name, arguments: keys of an object.
    others: texts that begin a call where it is read, each with what ends it, if these are not the texts above.
    parameter: before an argument's key, between key and value, and behind the value, where the notation is XML or KEYS.
    has_cdata: whether <![CDATA[ and ]]> stand around arguments that hold tags or lines, where the notation is XML.
    quote: in which texts stand as they are, without escapes, where the notation is PYTHON; "" for Python's own.
    recipient: around a tool's name before its call, where each message of an answer says whom it is for.
    special_tokens: those of the vocabulary, with their ids.
    """

    begin: str = CALL_BEGIN
    end: str = CALL_END
    arguments: str = "arguments"
    name: str = "name"
    notation: Notation = Notation.OBJECT
    between: str = ""
    opening: str = ""
    closing: str = ""
    joint: str | None = "\n"
    others: tuple[tuple[str, str], ...] = ()
    parameter: tuple[str, str, str] = ("<parameter=", ">\n", "\n</parameter>\n")
    has_cdata: bool = False
    quote: str = ""
    recipient: tuple[str, str] | None = None
    special_tokens: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of_template(cls, source: str) -> "CallSyntax":
        """The syntax that a chat template asks for: between tags, unless it knows tools and none of the known marks."""
        if not knows_tools(source):
            return cls()
        for marks, syntax in _SYNTAXES:
            if all(mark in source for mark in marks):
                quoted = _QUOTED.search(source) if syntax.notation is Notation.PYTHON else None
                return syntax if quoted is None else replace(syntax, quote=quoted["quote"])
        return replace(BARE, arguments="parameters" if _HAS_PARAMETERS.search(source) else "arguments")

    @property
    def tag(self) -> str:
        """What tells that a call begins; "" where a call is the whole answer."""
        return (self.opening + self.begin).strip()

    @property
    def tags(self) -> tuple[tuple[str, str], ...]:
        """Texts that begin calls, each with what ends it; "" where the next one or the answer's end does."""
        return self.others or ((self.tag.removesuffix("["), (self.end + self.closing).strip().removeprefix("]")),)

    def tags_of(self, names: Iterable[str]) -> tuple[tuple[str, str], ...]:
        """The same, with those that name one of these tools before its call."""
        if self.recipient is None:
            return self.tags
        before, behind = self.recipient
        headed = (f"{begin}{name}{behind}" for name in names for begin in (before, before.lstrip()))
        return (*((text, self.tags[0][1]) for text in headed), *self.tags)

    @property
    def texts(self) -> tuple[str, ...]:
        """What the syntax is recognised by. Special tokens in it must be kept in the text that is read for calls."""
        others = (text for pair in self.others for text in pair)
        around = self.recipient or ()
        return (self.opening, self.begin, self.between, self.end, self.closing, *others, *around)


_HAS_PARAMETERS = re.compile(r"""["']parameters["']\s*:""")
_QUOTED = re.compile(r"""(?P<q>["'])\\?(?P<quote>["'])(?P=q)\s*[+~]\s*[\w.]+\s*[+~]\s*(?P=q)\\?(?P=quote)(?P=q)""")
_HERMES = ("<tool_call>", "</tool_call>")
BARE = CallSyntax("", "", joint=None, others=(("<|python_tag|>", ""), _HERMES))  # an object is the whole answer
_XML = CallSyntax(
    "<tool_call>\n<function=",
    "</function>\n</tool_call>",
    notation=Notation.XML,
    between=">\n",
    others=(_HERMES, ("<function=", "</function>")),
)
_PHI = CallSyntax("", "", opening="<|tool_call|>[", closing="]<|/tool_call|>", joint=", ")
_MISTRAL = CallSyntax("", "", opening="[TOOL_CALLS][", closing="]", joint=", ", others=(("[TOOL_CALLS]", ""),))
_SEP, _CALL_BEGIN, _CALL_END, _CALLS_BEGIN, _CALLS_END = (
    f"<\uff5ctool\u2581{name}\uff5c>"
    for name in ("sep", "call\u2581begin", "call\u2581end", "calls\u2581begin", "calls\u2581end")
)
_DEEPSEEK = CallSyntax(
    _CALL_BEGIN + "function" + _SEP,
    "\n```" + _CALL_END,
    notation=Notation.NAMED,
    between="\n```json\n",
    opening=_CALLS_BEGIN,
    closing=_CALLS_END,
    others=((_CALL_BEGIN, _CALL_END), (_CALLS_BEGIN, _CALL_END)),
)
_LFM2 = CallSyntax("<|tool_call_start|>", "<|tool_call_end|>", notation=Notation.PYTHON)
_CHANNEL = "<|channel|>commentary to=functions."

# The first all of whose marks a template holds.
_SYNTAXES: tuple[tuple[tuple[str, ...], CallSyntax], ...] = (
    (
        ("<|channel|>", "functions."),  # gpt-oss
        CallSyntax(
            _CHANNEL,
            "",
            notation=Notation.NAMED,
            between=" <|constrain|>json<|message|>",
            joint=None,
            others=tuple(
                (text, "<|call|>")
                for text in (_CHANNEL, "<|channel|>analysis to=functions.", " to=functions.", "to=functions.")
            ),
        ),
    ),
    (
        ("[TOOL_CALLS]", "[ARGS]"),  # Mistral, since Small 3.1
        CallSyntax(
            "[TOOL_CALLS]",
            "",
            notation=Notation.NAMED,
            between="[ARGS]",
            joint="",
            others=(("[TOOL_CALLS]", ""),),
        ),
    ),
    (("[TOOL_CALLS] [",), replace(_MISTRAL, opening="[TOOL_CALLS] [")),  # Mistral, before
    (("[TOOL_CALLS]",), _MISTRAL),
    ((_CALL_BEGIN, "```json"), _DEEPSEEK),  # DeepSeek V3 and R1
    (
        (_CALL_BEGIN,),  # DeepSeek V3.1
        replace(
            _DEEPSEEK,
            begin=_CALL_BEGIN,
            between=_SEP,
            end=_CALL_END,
            joint="",
        ),
    ),
    (
        ("<|tool_call_begin|>",),  # Kimi K2
        CallSyntax(
            "<|tool_call_begin|>functions.",
            "<|tool_call_end|>",
            notation=Notation.NAMED,
            between=":0<|tool_call_argument_begin|>",
            opening="<|tool_calls_section_begin|>",
            closing="<|tool_calls_section_end|>",
            joint=None,
            others=tuple(
                (text, "<|tool_call_end|>") for text in ("<|tool_calls_section_begin|>", "<|tool_call_begin|>")
            ),
        ),
    ),
    (("<|tool_call_start|>",), _LFM2),
    (("<|tool_list_start|>",), _LFM2),  # whose templates may leave calls to the content
    (("<function_calls>",), CallSyntax("<function_calls>", "</function_calls>", notation=Notation.PYTHON)),  # OLMo 3
    (("<|tool_call>", "call:"), CallSyntax("<|tool_call>", "<tool_call|>", notation=Notation.BRACES)),  # Gemma 4
    (
        ("<start_function_call>",),  # FunctionGemma
        CallSyntax("<start_function_call>", "<end_function_call>", notation=Notation.BRACES),
    ),
    (
        ("<seed:tool_call>",),  # Seed-OSS
        replace(
            _XML,
            begin="<seed:tool_call>\n<function=",
            end="</function>\n</seed:tool_call>",
            others=(("<seed:tool_call>", "</seed:tool_call>"),),
            parameter=("<parameter=", ">", "</parameter>\n"),
        ),
    ),
    (
        ("<minimax:tool_call>", "<invoke name="),  # MiniMax M2
        replace(
            _XML,
            begin='<minimax:tool_call>\n<invoke name="',
            end="</invoke>\n</minimax:tool_call>",
            between='">\n',
            others=(("<minimax:tool_call>", "</minimax:tool_call>"),),
            parameter=('<parameter name="', '">', "</parameter>\n"),
        ),
    ),
    (
        ("<atem:function_calls>",),  # Muse Glimmer
        replace(
            _XML,
            begin='<atem:function_calls>\n<atem:invoke name="',
            end="</atem:invoke>\n</atem:function_calls>",
            between='">\n',
            others=(("<atem:function_calls>", "</atem:function_calls>"),),
            parameter=('<atem:parameter name="', '">', "</atem:parameter>\n"),
            recipient=(" to=", "<|message|><atem:function_calls>"),
        ),
    ),
    (
        ("<function name=", "<param name="),  # MiniCPM5
        replace(
            _XML,
            begin='<function name="',
            end="</function>",
            between='">',
            others=(),
            parameter=('<param name="', '">', "</param>"),
            has_cdata=True,
        ),
    ),
    (("<function=", "<parameter="), _XML),  # Qwen3-Coder, Qwen3-Coder-Next, Qwen3.5, Nemotron 3
    (
        ("<arg_key>",),  # GLM
        CallSyntax(
            "<tool_call>",
            "</tool_call>",
            notation=Notation.KEYS,
            parameter=("\n<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>"),
        ),
    ),
    (
        ("使用 Json 格式表示调用的参数",),  # GLM-4, whose call is the whole answer
        CallSyntax("", "", notation=Notation.NAMED, between="\n", joint=None, others=(_HERMES,)),
    ),
    (
        ("<function=", "</function>"),  # Llama 3 as Functionary has it
        CallSyntax("<function=", "</function>", notation=Notation.NAMED, between=">", joint=""),
    ),
    (("<|tool_call|>", "<|/tool_call|>"), _PHI),  # Phi-4-mini
    (("<|tool_call|>",), replace(_PHI, closing="]", others=(("<|tool_call|>", ""),))),  # Granite 3
    (
        ("<tool_calls>", "<tool_call>", "```json"),  # Hunyuan, dense
        CallSyntax(
            "<tool_call>",
            "\n```</tool_call>",
            notation=Notation.NAMED,
            between="\n```json\n",
            opening="<tool_calls>",
            closing="</tool_calls>",
            others=(("<tool_call>", "</tool_call>"), ("<tool_calls>", "</tool_call>")),
        ),
    ),
    (
        ("<tool_calls>[",),
        CallSyntax("", "", opening="<tool_calls>[", closing="]</tool_calls>", joint=", "),
    ),  # Jamba, Apriel
    (("<tool_call>",), CallSyntax()),  # Hermes, Qwen, Falcon-H1, ERNIE 4.5, SmolLM3, Granite 4 ...
    (("<TOOLCALL>",), CallSyntax("", "", opening="<TOOLCALL>[", closing="]</TOOLCALL>", joint=", ")),  # Nemotron
    (("<tool_calls>",), CallSyntax("", "", opening="<tool_calls>\n", closing="\n</tool_calls>")),  # MiniMax M1
    (("<|function_call|>",), CallSyntax("<|function_call|>", "", joint=None)),  # GigaChat
    (
        ("<|tools_prefix|>",),  # Apertus
        CallSyntax(
            "",
            "",
            notation=Notation.KEYED,
            opening="<|tools_prefix|>[",
            closing="]<|tools_suffix|>",
            joint=", ",
        ),
    ),
    (
        ("<|START_ACTION|>",),  # Command
        CallSyntax(
            "", "", "parameters", "tool_name", opening="<|START_ACTION|>[", closing="]<|END_ACTION|>", joint=", "
        ),
    ),
    (("List of tools: [",), _LFM2),  # LFM2.5, likewise
)


def knows_tools(source: str) -> bool:
    """Whether a chat template asks which tools there are."""
    return re.search(r"\btools\b", source) is not None
