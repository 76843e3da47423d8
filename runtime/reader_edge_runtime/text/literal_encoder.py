"""Encodes conversations so that text of users never becomes a control token: only the chat template places those."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, models
from tokenizers import Tokenizer as FastTokenizer

from reader_edge_runtime.errors import PromptError, TokenizerError
from reader_edge_runtime.text.control_token_escaping import ControlTokenEscaping
from reader_edge_runtime.text.conversation import Conversation
from reader_edge_runtime.text.template.chat_template import ChatTemplate

_MARK, _INSTEAD = "\U0010fffd", "\ufffd"  # a private character, and what texts get for it beside control tokens
_SPELLED = "A text spells a control token that this model cannot read as text: leave it out."
_NEVER = -1e6  # the score of a piece of Unigram's that no text is to be cut into

Match = tuple[int, int, int]  # token id, where it begins and ends in the text


class LiteralEncoder:
    """What texts spell stays text; where they spell no control token, ids are those of the usual way."""

    def __init__(self, fast: FastTokenizer, template: ChatTemplate) -> None:
        added = fast.get_added_tokens_decoder().items()
        self._template = template
        self._fast = fast
        self._control = {i: token.content for i, token in added if _is_control(token, template.sources)}
        self._unknown = _unknown_id(fast)
        self._twin: tuple[FastTokenizer, dict[int, int]] | None = None

    def render(self, conversation: Conversation, usual: str) -> tuple[str, str]:
        """(text, the same with private characters in place of the texts' own), of equal length. Raises PromptError.

        conversation: a sound one. usual: the text as the template renders it without precautions.
        """
        escaping = ControlTokenEscaping.of(self._control.values(), conversation, self._folded)
        escaped = escaping.escape(conversation)
        hidden = self._template.render_sound(escaped)
        text, masked = escaping.restore(hidden)
        if text == usual or hidden == usual:
            return usual, masked
        # The template looked for something in the texts. Where that was no control token, it may find it.
        if not self._spells_control(conversation) and self._ids(usual) == self._ids(masked):
            return usual, usual
        return text, masked

    def encode(self, text: str, masked: str) -> list[int]:
        """Token ids of what `render` gives. Raises PromptError."""
        encoding = self._fast.encode(text, add_special_tokens=False)
        own = self._matches(masked)
        if own == self._matches(text):
            return list(encoding.ids)
        if self._twin is None:
            self._twin = _made_twin(self._fast, self._control)
        twin, original = self._twin
        parts, end = [], 0
        for token_id, first, last in own:
            first = max(text.find(self._control[token_id], first, last), first)  # behind spaces that it takes in
            parts += [text[end:first].replace(_MARK, _INSTEAD), _placeholder(token_id)]
            end = last
        parts.append(text[end:].replace(_MARK, _INSTEAD))
        ids = [original.get(i, i) for i in twin.encode("".join(parts), add_special_tokens=False).ids]
        known = self._control.keys() - {self._unknown}
        if [i for i in ids if i in known] != [token_id for token_id, _, _ in own if token_id in known]:
            raise PromptError(_SPELLED)
        return ids

    def _folded(self, character: str) -> str:
        """What the normalizer makes of a character within a text."""
        if self._fast.normalizer is None:
            return character
        text: str = self._fast.normalizer.normalize_str(f"x{character}x")
        return text[text.find("x") + 1 : text.rfind("x")]

    def _matches(self, text: str) -> list[Match]:
        """Control tokens of a text. What the vocabulary lacks is none, though it has the same id as its spelling."""
        encoding = self._fast.encode(text, add_special_tokens=False)
        found = zip(encoding.ids, encoding.offsets, strict=True)
        matches = [(i, first, last) for i, (first, last) in found if i in self._control]
        return [
            each for each in matches if each[0] != self._unknown or self._control[each[0]] in text[slice(*each[1:])]
        ]

    def _ids(self, text: str) -> list[int]:
        return [token_id for token_id, _, _ in self._matches(text)]

    def _spells_control(self, conversation: Conversation) -> bool:
        given = [conversation.messages, conversation.tools, conversation.template_args]
        text = "\n".join(_texts(given))
        return any(token in text for token in self._control.values())


def _made_twin(fast: FastTokenizer, control: Mapping[int, str]) -> tuple[FastTokenizer, dict[int, int]]:
    """The same tokenizer with placeholders for its control tokens, and what its ids are in the original."""
    fields = json.loads(fast.to_str())
    fields["post_processor"] = None
    for token in fields["added_tokens"]:
        if token["id"] in control:
            token |= {"content": _placeholder(token["id"]), "normalized": False}
    if fields["model"]["type"] == "Unigram":
        for piece in fields["model"]["vocab"]:
            if piece[0] in control.values():
                piece[1] = _NEVER
    twin = FastTokenizer.from_str(json.dumps(fields))
    places = [(twin.token_to_id(token["content"]), token["id"]) for token in fields["added_tokens"]]
    original = {i: own for i, own in places if i is not None}
    taken = set(twin.get_vocab(with_added_tokens=False).values())
    if any(i != own and i in taken for i, own in original.items()):
        raise TokenizerError("The tokenizer's ids have gaps, so texts cannot be distinguished from control tokens.")
    return twin, original


class LiteralText:
    """Encodes texts that are never read as control tokens. sources: texts that name some, as chat templates do."""

    def __init__(self, fast: FastTokenizer, sources: Sequence[str]) -> None:
        added = fast.get_added_tokens_decoder().items()
        self._fast = fast
        self._control = {i: token.content for i, token in added if _is_control(token, sources)}
        self._unknown = _unknown_id(fast)
        self._twin, self._original = _made_twin(fast, self._control)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without start tokens. Raises PromptError."""
        usual = list(self._fast.encode(text, add_special_tokens=False).ids)
        known = self._control.keys() - {self._unknown}
        if known.isdisjoint(usual):
            return usual
        twin = self._twin.encode(text.replace(_MARK, _INSTEAD), add_special_tokens=False)
        ids = [self._original.get(i, i) for i in twin.ids]
        if not known.isdisjoint(ids):
            raise PromptError(_SPELLED)
        return ids


def _is_control(token: AddedToken, sources: Sequence[str]) -> bool:
    """Special tokens, tags of which a template writes either half, and what is spelled as no text is."""
    text = token.content
    if not text.strip():
        return False
    is_written = any(text.replace("/", "") in source.replace("/", "") for source in sources)
    return token.special or text.startswith(("<|", "<\uff5c")) or is_written


def _unknown_id(fast: FastTokenizer) -> int | None:
    """What stands for all that the vocabulary lacks."""
    if isinstance(fast.model, models.Unigram):
        unknown: int | None = json.loads(fast.to_str())["model"]["unk_id"]
        return unknown
    token = getattr(fast.model, "unk_token", None)
    return None if token is None else fast.token_to_id(token)


def _placeholder(token_id: int) -> str:
    return f"{_MARK}{token_id}{_MARK}"


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for key, each in value.items() for text in (*_texts(key), *_texts(each))]
    return [text for each in value for text in _texts(each)] if isinstance(value, list | tuple) else []
