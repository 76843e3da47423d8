"""How a model writes what it thinks before it answers, and an answer's text split by that.

The forms are those of the model families' own chat templates; a template that has none of them thinks in plain text.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ThinkingTags:
    """A thinking part stands between two texts.

    dropped: texts that stand around the rest of the answer and are no part of it. is_repeated: whether an answer may
    think more than once; else a thinking part can only be its beginning, and what looks like one later is plain text.
    """

    begin: str
    end: str
    dropped: tuple[str, ...] = ()
    is_repeated: bool = False

    @classmethod
    def of_template(cls, source: str) -> "ThinkingTags | None":
        """The tags that a chat template writes; None where it knows of no thinking."""
        return next((tags for mark, tags in _KNOWN_TAGS if mark in source), None)

    @property
    def texts(self) -> tuple[str, ...]:
        """What they are recognised by. Special tokens in them must be kept in the text that a reader gets."""
        return (self.begin, self.end, *self.dropped)

    def is_open(self, prompt: str, continued: str = "") -> bool:
        """Whether an answer begins inside a thinking part.

        prompt: as the template rendered it. continued: the beginning of the answer that is a part of the prompt.
        """
        if self.begin in continued or self.end in continued:
            return continued.rfind(self.begin) > continued.rfind(self.end)
        return prompt.removesuffix(continued).rstrip().endswith(self.begin.rstrip())


# The first whose mark a template holds. Longer marks stand before those that they contain.
_KNOWN_TAGS: tuple[tuple[str, ThinkingTags], ...] = (
    (
        "<|channel|>analysis",  # gpt-oss: each message of an answer has a header
        ThinkingTags(
            "<|channel|>analysis<|message|>",
            "<|end|>",
            ("<|start|>assistant", "<|channel|>final<|message|>", "<|channel|>commentary<|message|>", "<|end|>"),
            is_repeated=True,
        ),
    ),
    (
        "<atem:function_calls>",  # Muse Glimmer: each message of an answer says whom it is for
        ThinkingTags(
            " to=self<|message|>", "<|eom|>", ("<|start|>assistant", " to=user<|message|>", "<|eom|>"), is_repeated=True
        ),
    ),
    ("<|channel>", ThinkingTags("<|channel>thought", "<channel|>", is_repeated=True)),  # Gemma 4
    ("[THINK]", ThinkingTags("[THINK]", "[/THINK]", is_repeated=True)),  # Magistral, Ministral 3
    ("<|thought_start|>", ThinkingTags("<|thought_start|>", "<|thought_end|>")),  # MiniCPM3
    ("<seed:think>", ThinkingTags("<seed:think>", "</seed:think>")),  # Seed-OSS
    (
        "<|START_THINKING|>",  # Command A
        ThinkingTags("<|START_THINKING|>", "<|END_THINKING|>", ("<|START_RESPONSE|>", "<|END_RESPONSE|>")),
    ),
    ("<|inner_prefix|>", ThinkingTags("<|inner_prefix|>", "<|inner_suffix|>", is_repeated=True)),  # Apertus
    ("◁think▷", ThinkingTags("◁think▷", "◁/think▷")),  # Kimi
    (
        "Here is my thought process:",  # Granite 3.2
        ThinkingTags("Here is my thought process:", "Here is my response:"),
    ),
    (
        "[BEGIN FINAL RESPONSE]",  # Apriel
        ThinkingTags("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]", ("[END FINAL RESPONSE]",)),
    ),
    # Granite 3.3, ERNIE 4.5, Hunyuan, and all the others: Qwen3, DeepSeek, SmolLM3, GLM, Phi 4, Nemotron, MiniMax ...
    ("<response>", ThinkingTags("<think>", "</think>", ("<response>", "</response>"))),
    ("<answer>", ThinkingTags("<think>", "</think>", ("<answer>", "</answer>"))),
    ("</think>", ThinkingTags("<think>", "</think>")),
    ("<think>", ThinkingTags("<think>", "</think>")),
)


class ThinkingReader:
    """Splits one answer into what it thinks and what it says, while it comes.

    White space around a thinking part is part of neither. What may be the beginning of a mark is held back until it
    is one or not.
    """

    def __init__(self, tags: ThinkingTags, is_open: bool) -> None:
        """is_open: whether the prompt ends inside a thinking part."""
        self._tags = tags
        self._buffer = ""
        self._is_inside = is_open
        self._may_begin = True  # whether nothing but white space came so far
        self._is_trimmed = is_open  # whether white space that comes next is left out
        self._has_thought = is_open

    @property
    def is_inside(self) -> bool:
        """Whether what comes next is thought, as far as it is known."""
        return self._is_inside

    @property
    def may_begin(self) -> bool:
        """Whether a further thinking part may begin."""
        return self._may_begin or self._tags.is_repeated

    def push(self, text: str, is_last: bool) -> tuple[str, str]:
        """What a further piece of an answer thinks, and what it says. is_last: with it the answer ends."""
        self._buffer += text
        parts = ["", ""]
        while True:
            is_inside = self._is_inside
            text, is_done = self._next(is_last)
            if self._is_trimmed:
                text = text.lstrip()
                self._is_trimmed = not text
            parts[0 if is_inside else 1] += text
            if is_done:
                return parts[0], parts[1]
            self._is_trimmed = self._is_trimmed or self._has_thought

    def _next(self, is_last: bool) -> tuple[str, bool]:
        """Text up to the next mark, which is taken away; whether there is none as yet."""
        if self._may_begin:
            start = self._buffer.lstrip()
            begins = (self._tags.begin, *self._tags.dropped)  # of what the prompt keeps from thinking, the latter
            begun = next((mark for mark in begins if start.startswith(mark)), None)
            if begun is not None:
                self._buffer = start.removeprefix(begun)
                self._may_begin, self._is_inside, self._has_thought = False, begun == self._tags.begin, True
                return "", False
            if not is_last and any(mark.startswith(start) for mark in begins):
                return "", True
            self._may_begin = bool(not start)
        marks = self._marks()
        found = re.search("|".join(map(re.escape, marks)), self._buffer) if marks else None
        if found is None:
            return self._certain(marks, is_last), True
        text, self._buffer = self._buffer[: found.start()], self._buffer[found.end() :]
        self._is_inside = found[0] == self._tags.begin
        self._has_thought = self._has_thought or self._is_inside
        return text.rstrip() if self._has_thought else text, False

    def _marks(self) -> tuple[str, ...]:
        """What would be a mark here."""
        tags = self._tags
        if self._is_inside:
            return (tags.end,)
        begin = (tags.begin,) if tags.is_repeated else ()
        return (*begin, *(tags.dropped if self._has_thought or tags.is_repeated else ()))

    def _certain(self, marks: tuple[str, ...], is_last: bool) -> str:
        """What is held and cannot be part of a mark, nor white space before one."""
        end = len(self._buffer)
        if not is_last:
            end -= max((overlap(self._buffer, mark) for mark in marks), default=0)
        if marks and (self._is_inside or not is_last):
            end = len(self._buffer[:end].rstrip())
        text, self._buffer = self._buffer[:end], "" if is_last else self._buffer[end:]
        return text


def overlap(text: str, mark: str) -> int:
    """How many characters at the end of a text may be the beginning of a mark."""
    return next((size for size in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:size])), 0)
