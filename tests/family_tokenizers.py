"""Small vocabularies with the added tokens of model families, of the kinds that these have there.

All fit the demo model, whose end token has the id 0: what it says with them is nonsense, held and read as any answer.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, decoders, models, normalizers, trainers
from tokenizers import Tokenizer as FastTokenizer

from reader_edge_runtime import Engine
from reader_edge_runtime.text.template.chat_template import ChatTemplate
from reader_edge_runtime.text.tokenizer import Tokenizer

_ROOT = Path(__file__).parent.parent
_DEMO = _ROOT / "models" / "demo" / "package" / "tokenizer.json"
_TURNS = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"

DEEPSEEK_TOKENS = tuple(
    f"<\uff5ctool\u2581{name}\uff5c>"
    for name in ("sep", "call\u2581begin", "call\u2581end", "calls\u2581begin", "calls\u2581end")
)


class Family(NamedTuple):
    """special: control tokens. plain: added tokens that are text. marks: what its chat template writes."""

    is_byte_level: bool
    special: tuple[str, ...]
    plain: tuple[str, ...] = ()
    marks: str = ""


FAMILIES = {
    "qwen": Family(
        True,
        ("<|im_start|>", "<|im_end|>"),
        ("<tool_call>", "</tool_call>", "<think>", "</think>"),
        "<tool_call> </think>",
    ),
    "gemma": Family(
        False,
        ("<bos>", "<start_of_turn>", "<end_of_turn>"),
        ("<b>", "</b>", "<h1>", "\n\n", "<unused0>", "[multimodal]"),
    ),
    "llama3": Family(
        True, ("<|begin_of_text|>", "<|eot_id|>", "<|python_tag|>"), (), '{"name": "x", "parameters": {}}'
    ),
    "tekken": Family(
        True,
        ("<s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"),
        (),
        "[TOOL_CALLS] [ARGS] [THINK]",
    ),
    "mistral-v3": Family(False, ("<s>", "[INST]", "[/INST]", "[TOOL_CALLS]"), (), "[TOOL_CALLS] [{"),
    "gpt-oss": Family(
        True,
        ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>"),
        (),
        "<|channel|>analysis to=functions. <|constrain|>",
    ),
}
_TAGS = ("<tool_call>", "</tool_call>")
# Vocabularies as above, and chat templates that ask for calls in other forms.
MORE_FAMILIES = {
    "hermes": Family(True, ("<|im_end|>", *_TAGS), (), "<tool_call>"),  # its tags are special ones
    "qwen-coder": Family(True, ("<|im_end|>",), _TAGS, "<tool_call> <function= <parameter="),
    "glm": Family(True, ("<|user|>",), (*_TAGS, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"), "<arg_key>"),
    "deepseek": Family(True, ("<\uff5cUser\uff5c>", *DEEPSEEK_TOKENS), (), f"{DEEPSEEK_TOKENS[1]} ```json"),
    "granite": Family(True, ("<|tool_call|>", "<|start_of_role|>"), (), "<|tool_call|>"),
    "apertus": Family(True, ("<|tools_prefix|>", "<|tools_suffix|>"), (), "<|tools_prefix|>"),
    "phi": Family(True, ("<|tool_call|>", "<|/tool_call|>"), (), "<|tool_call|> <|/tool_call|>"),
    "lfm2": Family(True, ("<|tool_call_start|>", "<|tool_call_end|>"), (), "<|tool_call_start|>"),
    "minicpm": Family(True, ("<|im_end|>",), ("<function", "<param"), '<function name="f"><param name="k">'),
    "nemotron": Family(True, ("<s>",), (), "<TOOLCALL>"),
}


@cache
def family_tokenizer(name: str) -> Tokenizer:
    """The tokenizer of one of the families, with a chat template."""
    family = (FAMILIES | MORE_FAMILIES)[name]
    fast = _byte_level(family) if family.is_byte_level else _pieces(family)
    fast.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in family.special])
    fast.add_tokens([AddedToken(text, special=False, normalized=False) for text in family.plain])
    template = f"{{% if tools %}}{{{{ {json.dumps(family.marks)} }}}}{{% endif %}}" + _TURNS
    return Tokenizer(fast, ChatTemplate(template, {}))


@cache
def family_engine(engine: Engine, name: str) -> Engine:
    """An engine whose model says the family's tokens."""
    return Engine(engine.package, family_tokenizer(name), engine.decoder, engine.width_report)


def _byte_level(family: Family) -> FastTokenizer:
    """The demo's own, without its last merges, in whose place the family's tokens come."""
    fields: dict[str, Any] = json.loads(_DEMO.read_text(encoding="utf-8"))
    model, num_added = fields["model"], len(family.special) + len(family.plain)
    vocab_size = len(model["vocab"]) - num_added
    model["vocab"] = {text: i for text, i in model["vocab"].items() if i < vocab_size}
    model["merges"] = model["merges"][:-num_added]
    return FastTokenizer.from_str(json.dumps(fields))


def _pieces(family: Family) -> FastTokenizer:
    """As SentencePiece's: a mark for each space, one before the text, and bytes for what has no piece."""
    fast = FastTokenizer(models.BPE(byte_fallback=True))
    fast.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    fast.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=2000, special_tokens=["</s>", "<unk>", *bytes_], show_progress=False)
    fast.train_from_iterator((_ROOT / "README.md").read_text(encoding="utf-8").splitlines(), trainer)
    fields = json.loads(fast.to_str())
    fields["added_tokens"] = [token for token in fields["added_tokens"] if token["id"] < 2]  # bytes are no added ones
    return FastTokenizer.from_str(json.dumps(fields))
