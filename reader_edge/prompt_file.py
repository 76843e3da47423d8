"""Prompts from a file: one a line, or JSON lines with a "prompt"."""

import json
from pathlib import Path

from reader_edge_runtime.errors import PromptError

VERIFY_PROMPTS = Path(__file__).with_name("verify_prompts.jsonl")


def read_prompts(path: Path) -> list[str]:
    """The prompts of a text file (one a line, empty lines skipped) or of a .jsonl file. Raises PromptError."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PromptError(f"'{path}' is not UTF-8 text (byte {error.start}).") from None
    lines = text.replace("\r\n", "\n").split("\n")  # not splitlines: a prompt may hold what Unicode calls a line end
    prompts = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        prompt = json_text(line, "prompt") if path.suffix == ".jsonl" else line
        if not prompt:
            raise PromptError(f"Line {number} of '{path}' is no JSON object with a text \"prompt\".")
        prompts.append(prompt)
    if not prompts:
        raise PromptError(f"'{path}' holds no prompt: write one a line.")
    return prompts


def json_text(line: str | bytes, field: str) -> str | None:
    """The text in a field of the JSON object that a line holds; None where there is none."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    text = fields.get(field) if isinstance(fields, dict) else None
    return text if isinstance(text, str) else None
