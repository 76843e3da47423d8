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
    is_json = path.suffix == ".jsonl"
    prompts = [
        _json_prompt(line, path, number) if is_json else line for number, line in enumerate(lines, 1) if line.strip()
    ]
    if not prompts:
        raise PromptError(f"'{path}' holds no prompt: write one a line.")
    return prompts


def _json_prompt(line: str, path: Path, number: int) -> str:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        fields = None
    prompt = fields.get("prompt") if isinstance(fields, dict) else None
    if not isinstance(prompt, str) or not prompt:
        raise PromptError(f"Line {number} of '{path}' is no JSON object with a text \"prompt\".")
    return prompt
