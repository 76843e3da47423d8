"""Follows grammars in bounded processes (machine/bounded_worker.py), one for each answer; see grammar.py.

What all have in common is read first: the model's end tokens, its special tokens, the lengths of all tokens, their
bytes, tokenizer.json. Then each process is given its grammar as JSON, and lists of numbers whose first says what they
ask. Every reply begins with WELL, or with WRONG and what is wrong with the grammar, which ends it.
"""

from array import array
from collections.abc import Iterable

ADVANCE = 1  # by a token: GOES_ON or OVER, then the tokens that are forced next
CUT = 2  # how many tokens to force, a tree's tokens, their parents: the same of the tree that is left
MASK = 3  # the tokens that may come next, a bit each
CHECK = 4  # the bytes of a text, or none for the answer: what of it the schema does not allow, as a text
UNCHECKED = "?"  # before the reply to CHECK, where there is no telling
GOES_ON, OVER = 0, 1
WELL, WRONG = b"+", b"-"


def packed(numbers: Iterable[int]) -> bytes:
    """Numbers as int32."""
    return array("i", numbers).tobytes()


def unpacked(message: bytes) -> list[int]:
    return array("i", message).tolist()
