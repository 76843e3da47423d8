"""A source's tokenizer, and its part of a package: tokenizer.json and the chat template."""

from pathlib import Path

from tokenizers import Tokenizer as FastTokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from reader_edge_export.sources.source import Source
from reader_edge_runtime.errors import TokenizerError
from reader_edge_runtime.package.manifest import CHAT_TEMPLATE_NAME, TOKENIZER_NAME
from reader_edge_runtime.text.chat_template import ChatTemplate
from reader_edge_runtime.text.tokenizer import Tokenizer


def load_tokenizer(folder: Path, vocab_size: int) -> PreTrainedTokenizerFast:
    """The fast tokenizer in a folder of Hugging Face format.

    Raises TokenizerError where it cannot be read or knows more tokens than the model.
    """
    has_config = (folder / "tokenizer_config.json").is_file()
    try:
        if has_config:
            tokenizer = AutoTokenizer.from_pretrained(folder, use_fast=True, trust_remote_code=False)
        else:
            # Without its config a class guessed from the model type would add special tokens of its own.
            tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    except Exception as error:  # tokenizers raises bare Exception for a broken file
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise TokenizerError(f"The tokenizer in '{folder}' cannot be read: {reason}") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise TokenizerError(f"The tokenizer in '{folder}' has no fast form: save it as tokenizer.json.")
    _check_vocabulary(tokenizer, vocab_size, folder)
    return tokenizer


def write_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write tokenizer.json and, where the tokenizer has one, chat_template.jinja."""
    tokenizer.backend_tokenizer.save(str(folder / TOKENIZER_NAME))
    template = _chat_template(tokenizer)
    if template:
        (folder / CHAT_TEMPLATE_NAME).write_text(template, encoding="utf-8")


def text_tokenizer(source: Source, tokenizer: PreTrainedTokenizerFast) -> Tokenizer:
    """The tokenizer as a package's prompts go through it, before there is a package: its chat template included."""
    eos_token_ids, bos_token_id = source.special_token_ids(tokenizer)
    fast = FastTokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    ids = {"bos_token": bos_token_id, "eos_token": next(iter(eos_token_ids), None)}
    special = {name: fast.id_to_token(i) or "" for name, i in ids.items() if i is not None}
    template = _chat_template(tokenizer)
    return Tokenizer(fast, ChatTemplate(template, special) if template else None)


def _chat_template(tokenizer: PreTrainedTokenizerFast) -> str | None:
    template = tokenizer.chat_template
    return template.get("default") if isinstance(template, dict) else template


def _check_vocabulary(tokenizer: PreTrainedTokenizerFast, vocab_size: int, folder: Path) -> None:
    largest = max(tokenizer.get_vocab().values(), default=-1)
    if largest < 0:
        raise TokenizerError(f"The tokenizer in '{folder}' knows no token: save it again.")
    if largest >= vocab_size:
        raise TokenizerError(
            f"The tokenizer in '{folder}' has token id {largest}, but the model's vocabulary ends at "
            f"{vocab_size - 1}: give the tokenizer that belongs to this model."
        )
