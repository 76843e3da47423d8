"""The chat template of a model: messages in, the text of a prompt out."""

import contextlib
import json
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reader_edge_runtime.errors import PromptError, TokenizerError
from reader_edge_runtime.text.call_form import CallForm, knows_tools
from reader_edge_runtime.text.conversation import Conversation, as_texts, check_conversation, knows_system
from reader_edge_runtime.text.final_message import cut_at_tag, tag_final_text
from reader_edge_runtime.text.thinking import ThinkingForm

_WORKER = Path(__file__).with_name("template_worker.py")
MAX_TEMPLATE_BYTES = 1 << 20


class ChatTemplate:
    """A jinja2 template, rendered by a process that is bounded in time and memory: it is a program from outside.

    special_tokens: texts that the template may name, such as "bos_token". Thread-safe.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self._source = source
        self._special_tokens = special_tokens
        self._lock = threading.Lock()
        self._worker: subprocess.Popen[str] | None = None

    @classmethod
    def open(cls, path: Path, special_tokens: Mapping[str, str]) -> "ChatTemplate":
        """Read a template. Raises TokenizerError."""
        num_bytes = path.stat().st_size
        if num_bytes > MAX_TEMPLATE_BYTES:
            raise TokenizerError(f"'{path}' has {num_bytes} bytes, more than a template may have: export again.")
        try:
            return cls(path.read_text(encoding="utf-8"), special_tokens)
        except UnicodeDecodeError as error:
            raise TokenizerError(f"'{path}' is not UTF-8 text (byte {error.start}): export the model again.") from None

    @property
    def call_form(self) -> CallForm:
        """How the model writes calls of tools."""
        return CallForm.of_template(self._source)

    @property
    def thinking_form(self) -> ThinkingForm | None:
        """How the model writes what it thinks before it answers."""
        return ThinkingForm.of_template(self._source)

    def render(self, conversation: Conversation) -> str:
        """A conversation's text, up to where the assistant's answer begins or goes on. Raises PromptError."""
        check_conversation(conversation)
        is_continued = conversation.continues_final_message
        try:
            request = json.dumps(
                {"template": self._source, "variables": self._variables(conversation)}, default=_as_dict
            )
        except (TypeError, ValueError, RecursionError) as error:
            raise PromptError(f"A message holds what JSON has no word for ({error}): give texts.") from None
        with self._lock:
            reply = self._ask(request)
        if "text" not in reply:
            raise PromptError(f"The model's chat template refuses these messages: {reply['error']}.")
        return cut_at_tag(reply["text"]) if is_continued else reply["text"]

    def _variables(self, conversation: Conversation) -> dict[str, Any]:
        """What the template is given. Raises TypeError, ValueError or RecursionError for what is no JSON."""
        messages, tools = conversation.messages, conversation.tools
        is_known = knows_tools(self._source)
        shown = messages if is_known else as_texts(messages, tools, knows_system(self._source))
        return {
            "messages": tag_final_text(shown) if conversation.continues_final_message else shown,
            "tools": tools if is_known and tools else None,  # which some ask for
            "documents": None,
            "add_generation_prompt": not conversation.continues_final_message,
            **self._special_tokens,
            **conversation.template_args,
        }

    def _ask(self, request: str) -> dict[str, str]:
        try:
            worker = self._worker = self._worker or self._start()
        except OSError as error:  # no memory for a process, or no Python in a program that it is a part of
            return {"error": f"no process to render it can be started ({error.strerror})"}
        assert worker.stdin is not None
        assert worker.stdout is not None
        try:
            worker.stdin.write(request + "\n")
            worker.stdin.flush()
            reply: dict[str, str] = json.loads(worker.stdout.readline())
        except BaseException as error:
            self._worker = None  # whatever cut the exchange short, Ctrl-C too: the next one must not read its reply
            _end(worker)
            if not isinstance(error, OSError | ValueError):
                raise
            return {"error": "it takes more time or memory than a template may"}
        return reply

    def _start(self) -> "subprocess.Popen[str]":
        worker = subprocess.Popen(
            [sys.executable, "-P", "-S", str(_WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="ascii",
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            start_new_session=True,  # Ctrl-C is for the answer, not for the worker
        )
        weakref.finalize(self, _end, worker)
        return worker


def _as_dict(value: object) -> object:
    """A mapping of another kind, as JSON's encoder wants it."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON serializable")


def _end(worker: "subprocess.Popen[str]") -> None:
    with contextlib.suppress(BrokenPipeError), worker:  # of a request that it did not live to read
        worker.kill()
