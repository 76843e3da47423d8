"""The chat templates in a folder of Hugging Face format, wherever versions of transformers have put them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reader_edge_export.sources.folder.folder_files import read_json
from reader_edge_runtime.errors import TokenizerError
from reader_edge_runtime.text.template.chat_template import MAX_TEMPLATE_BYTES
from reader_edge_runtime.untrusted.plain_file import check_plain_file
from reader_edge_runtime.untrusted.user_input import as_text

_FILE, _FURTHER = "chat_template.jinja", "additional_chat_templates"
_PROCESSOR_FILE = "chat_template.json"
_MAX_TEMPLATES = 64


def chat_templates_of(folder: Path, settings: Mapping[str, Any]) -> Any:
    """A template, or templates by their names, or None: of files of their own, else of tokenizer_config.json.

    settings: what tokenizer_config.json says. Raises TokenizerError for a file that holds no template.
    """
    files = {"default": folder / _FILE} if (folder / _FILE).exists() else {}
    files |= {path.stem: path for path in sorted((folder / _FURTHER).glob("*.jinja"))[:_MAX_TEMPLATES]}
    found = {name: _read(path) for name, path in files.items()}
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


def _read(path: Path) -> str:
    check_plain_file(path, TokenizerError, "fetch the model again")
    num_bytes = path.stat().st_size
    if num_bytes > MAX_TEMPLATE_BYTES:
        raise TokenizerError(f"'{path}' has {num_bytes} bytes, of which {MAX_TEMPLATE_BYTES} can be: remove it.")
    try:
        return as_text(path.read_bytes())
    except UnicodeDecodeError:
        raise TokenizerError(f"'{path}' is no text in UTF-8: remove it.") from None
