"""Chat templates rendered in the test's own process, which is quicker than in one of theirs and renders the same."""

import json
from collections.abc import Mapping

from reader_edge_runtime.text.template.chat_template import ChatTemplate
from reader_edge_runtime.text.template.raw_template import TemplateProcess
from reader_edge_runtime.text.template.template_worker import reply_to

SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


class HereProcess(TemplateProcess):
    """No process at all."""

    def ask(self, request: str) -> dict[str, str]:
        return reply_to(json.loads(request))


def template(source: str, special_tokens: Mapping[str, str] = SPECIAL_TOKENS) -> ChatTemplate:
    return ChatTemplate(source, special_tokens, HereProcess())
