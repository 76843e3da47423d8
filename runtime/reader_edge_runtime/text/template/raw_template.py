"""A chat template as it is: rendered with what transformers 5 would give it, without remedies."""

import json
from collections.abc import Mapping
from typing import Any

from reader_edge_runtime.text.conversation import Conversation
from reader_edge_runtime.text.template.null_readings import null_readings
from reader_edge_runtime.text.template.template_process import TOO_MUCH, TemplateProcess


class RawTemplate:
    """special_tokens: texts that the template may name, such as "bos_token"."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], process: TemplateProcess) -> None:
        self.source = source
        self._special_tokens = special_tokens
        self._process = process

    def render(self, conversation: Conversation) -> str | None:
        """The text of a conversation; None where the template refuses it."""
        return self.reply(conversation).get("text")

    def reply(self, conversation: Conversation) -> dict[str, str]:
        """The "text" of a conversation, or the "refusal" or "error" of the first way to read what is null in it.

        Raises TypeError, ValueError or RecursionError for values that JSON has no word for.
        """
        replies = []
        for messages in null_readings(conversation.messages, self.source):
            variables: dict[str, Any] = {
                "messages": messages,
                "tools": conversation.tools or None,  # which some ask for
                "documents": None,
                "add_generation_prompt": not conversation.continues_final_message,
                **self._special_tokens,
                **conversation.template_args,
            }
            request = json.dumps({"template": self.source, "variables": variables}, default=_as_dict)
            replies.append(self._process.ask(request))
            if "text" in replies[-1] or replies[-1].get("error") == TOO_MUCH:
                return replies[-1]
        return replies[0]


def _as_dict(value: object) -> object:
    """A mapping of another kind, as JSON's encoder wants it."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON serializable")
