"""The tokenizer in a folder of Hugging Face format, of transformers 4 or 5, whatever its Python class is called.

tokenizer.json alone makes text into ids, as it is, and says whether a text begins and ends with special tokens: like
transformers 5, this ignores `add_bos_token` beside it. The files beside it add names of special tokens, tokens that are
special, whether a space goes before a text, and chat templates.
"""

import json
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, models
from tokenizers import Tokenizer as FastTokenizer
from transformers import PreTrainedTokenizerFast

from reader_edge_export.sources.folder.folder_files import read_json
from reader_edge_export.sources.tokenizer import check_ids
from reader_edge_runtime.errors import TokenizerError
from reader_edge_runtime.package.manifest import TOKENIZER_NAME
from reader_edge_runtime.text.template.chat_template import MAX_TEMPLATE_BYTES
from reader_edge_runtime.text.tokenizer_file import check_patterns
from reader_edge_runtime.untrusted.plain_file import check_plain_file
from reader_edge_runtime.untrusted.user_input import as_text

_CONFIG_FILE, _MAP_FILE = "tokenizer_config.json", "special_tokens_map.json"
_OPTIONAL_NAMES = ("unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_NAMES = ("bos_token", "eos_token", *_OPTIONAL_NAMES)
_PLACEHOLDERS = ("image_token", "audio_token", "video_token")
_TOKEN_FIELDS = ("lstrip", "rstrip", "single_word", "normalized", "special")
_MAX_ADDED_TOKENS = 1 << 14
_FORCED_CLEANING = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"
_FILE, _FURTHER = "chat_template.jinja", "additional_chat_templates"
_PROCESSOR_FILE = "chat_template.json"
_MAX_TEMPLATES = 64


def load_tokenizer(folder: Path, vocab_size: int) -> PreTrainedTokenizerFast:
    """The fast tokenizer in a folder. vocab_size: of the model.

    Raises TokenizerError where a file cannot be read, or the tokenizer knows more tokens than the model.
    """
    settings = _settings(folder)
    if settings.get("split_special_tokens"):  # tokenizer.json has no place for it
        raise TokenizerError(
            f"{_CONFIG_FILE} sets split_special_tokens, so that special tokens in texts would be plain text, which a "
            "package cannot hold: set it to false, and run the package with --text-is-text."
        )
    try:
        fields = json.loads((folder / TOKENIZER_NAME).read_bytes())
        added = fields.get("added_tokens") or []
        if rowless := _rowless_placeholders(settings, added, vocab_size):
            added = fields["added_tokens"] = [token for token in added if token["content"] not in rowless]
            fast, settings = FastTokenizer.from_str(json.dumps(fields)), _without(settings, rowless)
        else:
            fast = FastTokenizer.from_file(str(folder / TOKENIZER_NAME))
        check_patterns(fast, folder / TOKENIZER_NAME, "fetch the model again")
        check_ids(fast, ((token["id"], token["content"]) for token in added), folder / TOKENIZER_NAME)
        _check_spaces(settings, fast)
        _set_prefix_space(fast, settings)
        named = _named_tokens(settings, fast, vocab_size)
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=fast,
            added_tokens_decoder=_added_tokens(settings),
            **_extra_tokens(settings, fast),
            **named,
        )
    except TokenizerError:
        raise
    except Exception as error:  # tokenizers raises bare Exception for a broken file
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise TokenizerError(f"The tokenizer in '{folder}' cannot be read ({reason:.200}): save it again.") from error
    tokenizer.chat_template = chat_templates_of(folder, settings)
    _check_vocabulary(tokenizer, vocab_size, folder)
    given = ((token_id, token.content) for token_id, token in _added_tokens(settings).items())
    check_ids(tokenizer.backend_tokenizer, given, folder / _CONFIG_FILE)
    return tokenizer


def _settings(folder: Path) -> dict[str, Any]:
    """What tokenizer_config.json says, and special_tokens_map.json, which newer folders do without."""
    config, special = (
        read_json(folder / name) if (folder / name).exists() else {} for name in (_CONFIG_FILE, _MAP_FILE)
    )
    # transformers reads the map only where tokenizer_config.json does not list the added tokens.
    return config if "added_tokens_decoder" in config else config | special


def _rowless_placeholders(settings: Mapping[str, Any], added: list[Any], vocab_size: int) -> set[str]:
    """Added tokens that stand for images or sounds and have no row in a model of texts, as Gemma 3's smallest ones."""
    extra = settings.get("extra_special_tokens")
    named = {**settings, **(extra if isinstance(extra, dict) else {})}
    texts = {_text_of(named.get(name)) for name in _PLACEHOLDERS}
    return {token["content"] for token in added if token["id"] >= vocab_size and token["content"] in texts}


def _text_of(token: object) -> str | None:
    """Of a token that is given as a text, or as an object of its text and how it is found."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _without(settings: Mapping[str, Any], texts: set[str]) -> dict[str, Any]:
    """Settings that name none of these tokens, by themselves, in a list or in an object."""

    def left(value: Any) -> Any:
        if isinstance(value, list):
            return [token for token in value if _text_of(token) not in texts]
        if isinstance(value, dict):
            return {key: token for key, token in value.items() if _text_of(token) not in texts}
        return value

    return {key: left(value) for key, value in settings.items() if _text_of(value) not in texts}


def _check_spaces(settings: Mapping[str, Any], fast: FastTokenizer) -> None:
    """Refuse settings by which transformers rewrites decoded texts ("a ." to "a."); those of BPE only where forced."""
    is_cleaned = not isinstance(fast.model, models.BPE) or settings.get(_FORCED_CLEANING)
    if settings.get("clean_up_tokenization_spaces") and is_cleaned:
        raise TokenizerError(
            f"{_CONFIG_FILE} sets clean_up_tokenization_spaces, which removes spaces before punctuation from "
            "answers and cannot be done here: set it to false."
        )


def _named_tokens(settings: Mapping[str, Any], fast: FastTokenizer, vocab_size: int) -> dict[str, AddedToken]:
    """Special tokens by their names, without those that the model has no row for and can do without."""
    named = {name: _token(name, settings[name]) for name in _NAMES if settings.get(name) is not None}
    is_full = fast.get_vocab_size() >= vocab_size
    return {
        name: token
        for name, token in named.items()
        if not (is_full and name in _OPTIONAL_NAMES and fast.token_to_id(token.content) is None)
    }


def _extra_tokens(settings: Mapping[str, Any], fast: FastTokenizer) -> dict[str, Any]:
    """Special tokens without a name, and those whose names only the model's templates know.

    transformers 4 calls the first `additional_special_tokens`, transformers 5 `extra_special_tokens`, as a list; as an
    object that holds the second. Those may also have keys of their own, such as `image_token`.
    """
    extra = settings.get("extra_special_tokens")
    own = {name: value for name, value in settings.items() if _is_own_name(name, value, fast)}
    named = own | (extra if isinstance(extra, dict) else {})
    lists = (
        ("additional_special_tokens",)
        if isinstance(extra, dict)
        else ("additional_special_tokens", "extra_special_tokens")
    )
    return {
        "extra_special_tokens": [_token(name, token) for name in lists for token in _list_of(settings, name)],
        "model_specific_special_tokens": {name: _token(name, token) for name, token in named.items()},
    }


def _is_own_name(name: str, value: object, fast: FastTokenizer) -> bool:
    is_name = name.endswith("_token") and name not in _NAMES
    return is_name and isinstance(value, str) and fast.token_to_id(value) is not None


def _added_tokens(settings: Mapping[str, Any]) -> dict[int, AddedToken]:
    added = settings.get("added_tokens_decoder") or {}
    if not isinstance(added, dict) or not all(str(token_id).isdecimal() for token_id in added):
        raise _unusable("added_tokens_decoder", added)
    if len(added) > _MAX_ADDED_TOKENS:
        raise TokenizerError(f"{_CONFIG_FILE} adds {len(added)} tokens, of which {_MAX_ADDED_TOKENS} can be.")
    return {int(token_id): _token("added_tokens_decoder", token) for token_id, token in added.items()}


def _token(name: str, value: object) -> AddedToken:
    """A token given as a text, or as an object of its text and how it is found."""
    if isinstance(value, str):
        return AddedToken(value, special=True)
    fields = value if isinstance(value, dict) else {}
    flags = {key: fields[key] for key in _TOKEN_FIELDS if key in fields}
    if not isinstance(fields.get("content"), str) or not all(isinstance(flag, bool) for flag in flags.values()):
        raise _unusable(name, value)
    return AddedToken(fields["content"], **({"special": True} | flags))


def _list_of(settings: Mapping[str, Any], name: str) -> list[Any]:
    value = settings.get(name) or []
    if not isinstance(value, list) or len(value) > _MAX_ADDED_TOKENS:
        raise _unusable(name, value)
    return value


def _unusable(name: str, value: object) -> TokenizerError:
    return TokenizerError(f"{_CONFIG_FILE} gives {name} as {reprlib.repr(value)}, which names no token: correct it.")


def _set_prefix_space(fast: FastTokenizer, settings: Mapping[str, Any]) -> None:
    """A space before a text, as tokenizer_config.json says; where it says nothing, tokenizer.json does."""
    wanted, pre_tokenizer = settings.get("add_prefix_space"), fast.pre_tokenizer
    if wanted is not None and hasattr(pre_tokenizer, "add_prefix_space"):
        pre_tokenizer.add_prefix_space = bool(wanted)
        fast.pre_tokenizer = pre_tokenizer


def _check_vocabulary(tokenizer: PreTrainedTokenizerFast, vocab_size: int, folder: Path) -> None:
    largest = max(tokenizer.get_vocab().values(), default=-1)
    if largest < 0:
        raise TokenizerError(f"The tokenizer in '{folder}' knows no token: save it again.")
    if largest >= vocab_size:
        raise TokenizerError(
            f"The tokenizer in '{folder}' has token id {largest}, but the model's vocabulary ends at "
            f"{vocab_size - 1}: give the tokenizer that belongs to this model."
        )


def chat_templates_of(folder: Path, settings: Mapping[str, Any]) -> Any:
    """A template, or templates by their names, or None: of files of their own, else of tokenizer_config.json.

    settings: what tokenizer_config.json says. Raises TokenizerError for a file that holds no template.
    """
    files = {"default": folder / _FILE} if (folder / _FILE).exists() else {}
    files |= {path.stem: path for path in sorted((folder / _FURTHER).glob("*.jinja"))[:_MAX_TEMPLATES]}
    found = {name: read_template(path) for name, path in files.items()}
    if found:
        return found["default"] if list(found) == ["default"] else found
    given = settings.get("chat_template")
    if given is None and (folder / _PROCESSOR_FILE).exists():
        given = read_json(folder / _PROCESSOR_FILE).get("chat_template")
    return _by_name(given) if isinstance(given, list) else given


def _by_name(templates: list[Any]) -> dict[str, Any]:
    """name -> template, from a list of {"name": ..., "template": ...}. Raises TokenizerError for other lists."""
    try:
        return {str(each["name"]): each["template"] for each in templates}
    except (TypeError, KeyError):
        raise TokenizerError(
            f"The model's chat template is {templates!r:.80}, a list of something else than names and templates: "
            "remove it."
        ) from None


def read_template(path: Path) -> str:
    """A chat template from its file. Raises TokenizerError."""
    check_plain_file(path, TokenizerError, "fetch the model again")
    num_bytes = path.stat().st_size
    if num_bytes > MAX_TEMPLATE_BYTES:
        raise TokenizerError(f"'{path}' has {num_bytes} bytes, of which {MAX_TEMPLATE_BYTES} can be: remove it.")
    try:
        return as_text(path.read_bytes())
    except UnicodeDecodeError:
        raise TokenizerError(f"'{path}' is no text in UTF-8: remove it.") from None
