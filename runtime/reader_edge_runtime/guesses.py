"""What is known of the answer to a prompt: guesses that are drafted from, and never change an answer."""

from collections.abc import Sequence

from reader_edge_runtime.config import GenerationConfig
from reader_edge_runtime.drafting.drafter import NO_GUESSES, Guesses
from reader_edge_runtime.text.calls.call_form import Notation
from reader_edge_runtime.text.calls.call_guide import CallGuide
from reader_edge_runtime.text.conversation import Conversation, Encodable
from reader_edge_runtime.text.tokenizer import Tokenizer

_CHARACTERS_A_TOKEN = 16  # beyond which a guess is cut before it is encoded
_TAIL = 8  # tokens, as many as matches are looked up by


def guessed_answer(
    prompt: Encodable, token_ids: Sequence[int], config: GenerationConfig, tokenizer: Tokenizer, max_context: int
) -> Guesses:
    """The caller's prediction, and calls of the tools that a conversation declares.

    token_ids: the prompt's, whose end comes before the prediction, so that the answer's beginning is drafted too.
    Longer than the context no guess can be of use. Raises PromptError for what cannot be encoded.
    """
    if not config.is_drafted:
        return NO_GUESSES
    texts = []
    if config.prediction:
        text = config.prediction[: max_context * _CHARACTERS_A_TOKEN]
        predicted = tokenizer.encode(text, adds_special_tokens=False)[:max_context]
        texts.append([*token_ids[-_TAIL:], *predicted])
    if isinstance(prompt, Conversation) and prompt.tools and tokenizer.call_form.notation is Notation.OBJECT:
        return Guesses(texts, CallGuide(prompt, token_ids, tokenizer))
    return Guesses(texts)
