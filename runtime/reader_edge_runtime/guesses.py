"""What the answer to a prompt may say: guesses that are drafted from, and never change an answer."""

from collections.abc import Sequence

from reader_edge_runtime.config import GenerationConfig
from reader_edge_runtime.text.conversation import Conversation, Encodable, call_skeletons
from reader_edge_runtime.text.tokenizer import Tokenizer

_CHARACTERS_A_TOKEN = 16  # beyond which a guess is cut before it is encoded
_MAX_SKELETON_TOKENS = 4096  # of all tools
_TAIL = 8  # tokens, as many as matches are looked up by


def guessed_answers(
    prompt: Encodable, token_ids: Sequence[int], config: GenerationConfig, tokenizer: Tokenizer, max_context: int
) -> list[list[int]]:
    """Texts that the answer may repeat: calls of the tools that a conversation declares, and the caller's prediction.

    token_ids: the prompt's, whose end comes before the prediction, so that the answer's beginning is drafted too.
    Longer than the context no guess can be of use. Raises PromptError for what cannot be encoded.
    """
    if not config.is_drafted:
        return []

    def encoded(text: str, most: int) -> list[int]:
        return tokenizer.encode(text[: most * _CHARACTERS_A_TOKEN], adds_special_tokens=False)[:most]

    tools = prompt.tools if isinstance(prompt, Conversation) else ()
    skeletons = call_skeletons(tools, tokenizer.call_form)
    guesses = [encoded(text, _MAX_SKELETON_TOKENS // len(skeletons)) for text in skeletons]
    if config.prediction:
        guesses.append([*token_ids[-_TAIL:], *encoded(config.prediction, max_context)])
    return guesses
