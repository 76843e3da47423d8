"""How the tokens of an answer become text: which special tokens stay, and whether thinking is split off."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from reader_edge_runtime.config import GenerationConfig
from reader_edge_runtime.text.conversation import Conversation, Encodable, Tool, text_of
from reader_edge_runtime.text.text_stream import StreamDecoder
from reader_edge_runtime.text.thinking import ThinkingReader, ThinkingTags
from reader_edge_runtime.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """kept: special tokens that are part of the text, by id; decoding leaves all others out.

    thinking: the tags of what is split off; None where nothing is. is_thinking: whether the prompt ends inside it.
    tools: those that it may call.
    """

    kept: Mapping[int, str] = field(default_factory=dict)
    thinking: ThinkingTags | None = None
    is_thinking: bool = False
    tools: Sequence[Tool] = ()

    @classmethod
    def of(
        cls, prompt: Encodable, token_ids: Sequence[int], config: GenerationConfig, tokenizer: Tokenizer
    ) -> "OutputFormat":
        """Tokens of calls are kept where a conversation declares tools, those of thinking where it is split off.

        token_ids: the prompt's.
        """
        chat = prompt if isinstance(prompt, Conversation) else Conversation([])
        texts = tokenizer.call_syntax.texts if chat.tools else ()
        tags = tokenizer.thinking_tags if config.splits_thinking else None
        if tags is None:
            return cls(tokenizer.special_in(texts), tools=chat.tools)
        continued = text_of(chat.messages[-1]).strip() if chat.continues_final_message else ""
        is_open = tags.is_open(tokenizer.spelled(token_ids), continued)
        return cls(tokenizer.special_in([*texts, *tags.texts]), tags, is_open, chat.tools)

    def reader(self) -> ThinkingReader | None:
        """What splits thinking off one answer."""
        return None if self.thinking is None else ThinkingReader(self.thinking, self.is_thinking)

    def thinking_end(self, token_ids: Sequence[int], tokenizer: Tokenizer) -> Callable[[int], bool]:
        """Whether a token ends a thinking part that the prompt has opened; to call for each. token_ids: its."""
        assert self.thinking is not None
        mark, decoder, tail = self.thinking.end, StreamDecoder(tokenizer, token_ids, self.kept), ""

        def is_end(token_id: int) -> bool:
            nonlocal tail
            tail = tail[-len(mark) :] + decoder.push(token_id)
            return mark in tail

        return is_end
