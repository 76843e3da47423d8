"""Hints for drafting an answer: the caller's prediction, declared tools, a remote client's drafts. None changes it."""

from collections.abc import Sequence
from dataclasses import dataclass

from reader_edge_runtime.config import GenerationConfig
from reader_edge_runtime.drafting.remote_drafts import RemoteDrafts
from reader_edge_runtime.text.conversation import Conversation, Encodable
from reader_edge_runtime.text.tokenizer import Tokenizer
from reader_edge_runtime.text.tool_calls.call_predictor import CallPredictor
from reader_edge_runtime.text.tool_calls.call_syntax import Notation

_CHARACTERS_A_TOKEN = 16  # beyond which a prediction is cut before it is encoded
_TAIL = 8  # tokens, as many as matches are looked up by


@dataclass(frozen=True, slots=True)
class DraftHints:
    """What is known of an answer.

    texts: of tokens, drafted from as if they came before the prompt. predictor: follows the answer and tells what calls
    of the tools that its conversation declares allow next; None without tools. remote: drafts of a remote client of the
    server; None where there is none.
    """

    texts: Sequence[Sequence[int]] = ()
    predictor: CallPredictor | None = None
    remote: RemoteDrafts | None = None

    def __bool__(self) -> bool:
        return bool(self.texts) or self.predictor is not None or self.remote is not None


NO_HINTS: DraftHints = DraftHints()


def answer_hints(
    prompt: Encodable, token_ids: Sequence[int], config: GenerationConfig, tokenizer: Tokenizer, max_context: int
) -> DraftHints:
    """The caller's prediction, and calls of the tools that a conversation declares.

    token_ids: the prompt's, whose end comes before the prediction, so that the answer's beginning is drafted too.
    Longer than the context no prediction can be of use. Raises PromptError for what cannot be encoded.
    """
    if not config.is_drafted:
        return NO_HINTS
    texts = []
    if config.prediction:
        text = config.prediction[: max_context * _CHARACTERS_A_TOKEN]
        predicted = tokenizer.encode(text, adds_special_tokens=False)[:max_context]
        texts.append([*token_ids[-_TAIL:], *predicted])
    if isinstance(prompt, Conversation) and prompt.tools and tokenizer.call_syntax.notation is Notation.OBJECT:
        return DraftHints(texts, CallPredictor(prompt, token_ids, tokenizer))
    return DraftHints(texts)
