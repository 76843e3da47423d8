"""A tokenizer's chat templates and what they are given of it, as a package keeps them."""

import warnings
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from reader_edge_runtime.errors import TokenizerError
from reader_edge_runtime.package.manifest import CHAT_TEMPLATE_NAME, TOOL_TEMPLATE_NAME
from reader_edge_runtime.text.template.chat_template import MAX_TEMPLATE_BYTES, ChatTemplate

_DEFAULT, _WITH_TOOLS = "default", "tool_use"


def special_tokens_of(tokenizer: PreTrainedTokenizerFast) -> dict[str, str]:
    """Texts that templates may name, such as "bos_token", as the tokenizer itself maps them."""
    return {name: text for name, text in tokenizer.special_tokens_map.items() if isinstance(text, str)}


def chat_template_of(tokenizer: PreTrainedTokenizerFast) -> ChatTemplate | None:
    """The tokenizer's template as a package's prompts go through it. Raises TokenizerError."""
    sources = _sources(tokenizer)
    if _DEFAULT not in sources:
        return None
    special = special_tokens_of(tokenizer)
    for_tools = ChatTemplate(sources[_WITH_TOOLS], special) if _WITH_TOOLS in sources else None
    return ChatTemplate(sources[_DEFAULT], special, for_tools=for_tools)


def write_chat_templates(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the template and, where there is one of its own for tools, that too. Raises TokenizerError."""
    names = {_DEFAULT: CHAT_TEMPLATE_NAME, _WITH_TOOLS: TOOL_TEMPLATE_NAME}
    sources = _sources(tokenizer)
    for kind, name in names.items():
        if kind in sources:
            (folder / name).write_text(sources[kind], encoding="utf-8")


def _sources(tokenizer: PreTrainedTokenizerFast) -> dict[str, str]:
    """Templates by what transformers takes them for. Raises TokenizerError for one that no package can have."""
    given = tokenizer.chat_template or {}
    named = given if isinstance(given, dict) else {_DEFAULT: given}
    sources = {kind: _checked(named[kind]) for kind in (_DEFAULT, _WITH_TOOLS) if named.get(kind)}
    if named and _DEFAULT not in sources:
        first = next(iter(named))
        warnings.warn(
            f"The model has chat templates ({', '.join(map(str, named))}), but none is called 'default': "
            f"'{first}' is taken for all chats.",
            stacklevel=2,
        )
        sources[_DEFAULT] = _checked(named[first])
    return sources


def _checked(template: object) -> str:
    try:
        num_bytes = len(template.encode())  # type: ignore[attr-defined]
    except (AttributeError, UnicodeEncodeError):
        raise TokenizerError(f"The model's chat template is {template!r:.80}, which is no text: remove it.") from None
    if num_bytes > MAX_TEMPLATE_BYTES:
        raise TokenizerError(
            f"The model's chat template has {num_bytes} bytes, of which {MAX_TEMPLATE_BYTES} can be: remove it."
        )
    return str(template)
