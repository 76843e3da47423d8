"""A source's tokenizer, and its part of a package: tokenizer.json and the chat templates."""

import warnings
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer as FastTokenizer
from transformers import PreTrainedTokenizerFast

from reader_edge_runtime.errors import ChatTemplateError, PromptError, TokenizerError
from reader_edge_runtime.package.manifest import CHAT_TEMPLATE_NAME, TOKENIZER_NAME, TOOL_TEMPLATE_NAME
from reader_edge_runtime.text.conversation import Conversation
from reader_edge_runtime.text.template.chat_template import MAX_TEMPLATE_BYTES, ChatTemplate
from reader_edge_runtime.text.tokenizer import Tokenizer

_DEFAULT, _WITH_TOOLS = "default", "tool_use"  # kinds of templates


def check_ids(fast: FastTokenizer, given: Iterable[tuple[int, str]], path: Path) -> None:
    """Raise TokenizerError where two tokens share an id, so that one's text is lost, or one has another id than given.

    given: (id, token) of tokens, by the file at `path`. The library numbers added tokens behind as many as there are,
    wherever a vocabulary has a hole, and says nothing.
    """
    vocabulary = fast.get_vocab()
    added = {token_id: token.content for token_id, token in fast.get_added_tokens_decoder().items()}
    tokens = dict(added)
    for token, token_id in vocabulary.items():
        if (other := tokens.setdefault(token_id, token)) != token:
            raise TokenizerError(
                f"'{path}' has the id {token_id} for {token!r:.80} and for {other!r:.80}, so that the first is lost: "
                "its vocabulary has a hole, or numbers them wrongly; give the second an id of its own."
            )
    for token_id, token in given:
        if (number := vocabulary.get(token)) != token_id:
            raise TokenizerError(
                f"'{path}' gives {token!r:.80} the id {token_id}, where the vocabulary has {number}: correct it, or "
                "save the tokenizer that the model was trained with."
            )


def write_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write tokenizer.json and the chat templates that the tokenizer has."""
    text = tokenizer.backend_tokenizer.to_str(pretty=True)  # its own `save` raises bare exceptions on a full disk
    (folder / TOKENIZER_NAME).write_bytes(text.encode())
    write_chat_templates(tokenizer, folder)


def text_tokenizer(tokenizer: PreTrainedTokenizerFast) -> Tokenizer:
    """The tokenizer as a package's prompts go through it, before there is a package: its chat template included."""
    fast = FastTokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    return Tokenizer(fast, chat_template_of(tokenizer))


def check_chat_template(tokenizer: Tokenizer, max_context: int) -> None:
    """Warn where the chat template does not take the plainest of conversations: no chat will go better."""
    if not tokenizer.has_chat_template:
        return
    try:
        num_tokens = len(tokenizer.encode_chat(Conversation([{"role": "user", "content": "Hello"}])))
        problem = None if 0 < num_tokens < max_context else f"it makes {num_tokens} tokens of a short one"
    except ChatTemplateError as error:
        problem = f"it fails: {error.reason}"
    except PromptError as error:
        problem = str(error)
    if problem is not None:
        remedy = "ask it with --raw, or correct the template and export again"
        warnings.warn(f"The model's chat template takes no messages ({problem.rstrip('.')}): {remedy}.", stacklevel=2)


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
