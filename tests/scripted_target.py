"""A target whose answers are written by a script: the whole engine runs above it, and no model need be large.

It reads conversations as the chat template rendered them, so a script sees what a model would see.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from reader_edge_runtime import DraftConfig, Engine, EngineConfig
from reader_edge_runtime.arrays import Int64Array
from reader_edge_runtime.assembly import make_decoder
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.package.manifest import CHAT_TEMPLATE_NAME, TOKENIZER_NAME, Manifest, file_entry
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.text.tokenizer import Tokenizer
from tests.fake_target import FakeTarget, make_manifest

ROOT = Path(__file__).resolve().parent.parent  # not the tests' own, whose import sets a cache of models for tests

Script = Callable[[str], str]  # a rendered conversation, up to where the answer begins -> the answer

BEGIN, END = "<|im_start|>", "<|im_end|>"
_HEADER = f"{BEGIN}assistant\n"
_TEMPLATE = ROOT / "tests" / "data" / "templates" / "qwen2.5.jinja"  # ChatML, and calls as Hermes writes them
_DEMO_TOKENIZER = ROOT / "models" / "demo" / "package" / TOKENIZER_NAME
_CERTAIN = 100.0  # a logit that draws at any usual temperature choose
_ENDING = 50.0  # where a grammar forbids what the script wants: the answer ends as soon as it may


class ScriptedTarget(FakeTarget):
    """After a conversation its likeliest tokens are the script's answer, also at every node of a draft tree.

    What leaves the answer is followed by the end token.
    """

    provider = "ScriptedExecutionProvider"

    def __init__(self, manifest: Manifest, tokenizer: Tokenizer, script: Script) -> None:
        super().__init__(manifest)
        self.script = script
        self._tokenizer = tokenizer
        self._header = np.array(tokenizer.encode(_HEADER, adds_special_tokens=False))
        self._end = manifest.eos_token_ids[0]
        self._answers: dict[bytes, Int64Array] = {}

    def row_logits(self, token_ids: Int64Array) -> npt.NDArray[np.float32]:
        logits = np.zeros(self.manifest.vocab_size, np.float32)
        logits[self._end] = _ENDING
        logits[self._next_token(token_ids)] = _CERTAIN
        return logits

    def _next_token(self, token_ids: Int64Array) -> int:
        turns = np.flatnonzero(token_ids == self._header[0])
        start = turns[-1] + len(self._header) if turns.size else len(token_ids) + 1
        if start > len(token_ids) or not np.array_equal(token_ids[turns[-1] : start], self._header):
            return self._end  # inside the prompt, where nobody asks
        answer, given = self._answer_to(token_ids[:start]), token_ids[start:]
        is_on_it = len(given) < len(answer) and np.array_equal(given, answer[: len(given)])
        return int(answer[len(given)]) if is_on_it else self._end

    def _answer_to(self, prompt: Int64Array) -> Int64Array:
        key = prompt.tobytes()
        if key not in self._answers:
            text = self.script(self._tokenizer.spelled(prompt.tolist()))
            self._answers[key] = np.array(self._tokenizer.encode(text, adds_special_tokens=False), np.int64)
        return self._answers[key]


def scripted_engine(
    script: Script, folder: Path, tokenizer_file: Path | None = None, max_context: int = 1 << 18, **config: Any
) -> Engine:
    """An engine, drafting from texts as any other, of a model that follows a script.

    folder: an empty one, for the package's tokenizer and chat template. tokenizer_file: the tokenizer.json of a ChatML
    model; without it the demo's, with tokens for turns and calls. config: fields of EngineConfig.
    """
    text = _with_turns(_DEMO_TOKENIZER) if tokenizer_file is None else tokenizer_file.read_text("utf-8")
    (folder / TOKENIZER_NAME).write_text(text, "utf-8")
    (folder / CHAT_TEMPLATE_NAME).write_bytes(_TEMPLATE.read_bytes())
    plain = Tokenizer.from_file(folder / TOKENIZER_NAME)
    (end,) = plain.encode(END, adds_special_tokens=False)
    files = {name: file_entry(folder / name) for name in (TOKENIZER_NAME, CHAT_TEMPLATE_NAME)}
    manifest = replace(make_manifest(plain.vocab_size, max_context, (end,)), files=files)
    package = ModelPackage(folder, manifest)
    tokenizer = Tokenizer.open(package)
    settings = EngineConfig(is_calibrated=False, **config)
    drafter = RetrievalDrafter(DraftConfig()).wait()  # else the first answers would not be drafted
    return Engine(package, tokenizer, make_decoder(ScriptedTarget(manifest, tokenizer, script), drafter, settings))


def _with_turns(path: Path) -> str:
    """A tokenizer.json with tokens for turns and calls."""
    fields = json.loads(path.read_text("utf-8"))
    first = len(fields["model"]["vocab"])
    for number, text in enumerate((BEGIN, END, "<tool_call>", "</tool_call>")):
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        added = {"id": first + number, "content": text, "special": text in (BEGIN, END), **flags}
        fields["added_tokens"].append(added)
    return json.dumps(fields)
