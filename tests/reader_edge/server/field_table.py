"""The table of fields in docs/server.md, made from the classes of the contract: `python -m` this prints it."""

from typing import Any

from msgspec import inspect

from reader_edge.server.contract import words_of
from reader_edge.server.endpoints import ENDPOINTS

_NAMES = {"/v1/chat/completions": "chats", "/v1/completions": "completions", "/v1/responses": "responses"}


def field_table() -> str:
    """Lines of Markdown: fields with what they may be, then those of no effect, and those that may ask for nothing."""
    rows: dict[tuple[str, str], list[str]] = {}
    ignored: dict[str, None] = {}
    unsupported: dict[str, None] = {}
    for path, endpoint in ENDPOINTS.items():
        kind: Any = inspect.type_info(endpoint.body_type)
        for field in kind.fields:
            extra = getattr(field.type, "extra", None) or {}
            if extra.get("is_ignored"):
                ignored[field.encode_name] = None
            elif extra.get("is_unsupported"):
                unsupported[field.encode_name] = None
            else:
                rows.setdefault((field.encode_name, words_of(field.type)), []).append(_NAMES[path])
    lines = ["| field | in | what it may be |", "|---|---|---|"]
    for (name, words), places in rows.items():
        where = "all" if len(places) == len(ENDPOINTS) else ", ".join(places)
        lines.append(f"| `{name}` | {where} | {words.replace('|', '/')} |")
    lines.append(f"| {_listed(ignored)} | | taken for other systems' sake, without effect |")
    lines.append(f"| {_listed(unsupported)} | | may only have the value that asks for nothing |")
    return "\n".join(lines)


def _listed(names: dict[str, None]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


if __name__ == "__main__":
    print(field_table())  # noqa: T201
