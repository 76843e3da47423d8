"""Whether a tokenizer's regular expression can take a time that doubles with each character of a text.

It can where a text goes round a loop in two ways, and what comes next may fail: then all ways are tried, one after the
other. Oniguruma, which runs it, ends a match after ten million tries and starts again at the next character. Loops
that only multiply the time (`\\s*\\s+`) are taken: of published expressions many have one.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from tokenizers import Regex, pre_tokenizers

from reader_edge_runtime.text.pattern import Pattern, PatternError

_MAX_TEXT = 1 << 14
_MAX_RING = 32  # places of a loop
_MARK = "\x00"

Graph = Mapping[Any, Iterable[Any]]


def problem_of(text: str) -> str | None:
    """What is wrong with an expression, None if nothing."""
    if len(text) > _MAX_TEXT:
        return f"has {len(text)} characters"
    try:
        return "can take a time that doubles with each character of a text" if _is_explosive(Pattern(text)) else None
    except PatternError as error:
        return f"holds what no tokenizer needs ({error})"


def _is_explosive(pattern: Pattern) -> bool:
    """Whether two ways lead from a place back to it, with no sure match on the way, for the same characters."""
    following: dict[int, list[int]] = defaultdict(list)
    for place, other in pattern.edges:
        if place not in pattern.sure and other not in pattern.sure:
            following[place].append(other)
    for ring in _rings(following):
        inner = [(place, other) for place in ring for other in following[place] if other in ring]
        if any(pattern.edges[edge] > 1 for edge in inner):
            return True
        if len(ring) == len(inner):  # one way round, and no other
            continue
        if len(ring) > _MAX_RING:
            raise PatternError("a loop of more characters than are followed")
        if _has_two_ways(ring, following, _characters(pattern.atoms, ring)):
            return True
    return False


def _has_two_ways(ring: set[int], following: Graph, characters: Mapping[int, frozenset[str]]) -> bool:
    """Whether two walks for the same characters part at a place of a ring and meet there again."""
    steps = {place: [other for other in following[place] if other in ring] for place in ring}
    pairs = {
        (one, two): [(a, b) for a in steps[one] for b in steps[two] if characters[a] & characters[b]]
        for one in ring
        for two in ring
    }
    return any(
        any(one == two for one, two in together) and any(one != two for one, two in together)
        for together in _rings(pairs)
    )


def _rings(following: Graph) -> list[set[Any]]:
    """Sets of nodes that lead to each other, a node that leads to itself included (Kosaraju)."""
    order: list[Any] = []
    seen: set[Any] = set()
    for begin in list(following):
        _walk(begin, following, seen, order)
    leading: dict[Any, list[Any]] = defaultdict(list)
    for node in list(following):
        for other in following[node]:
            leading[other].append(node)
    rings, seen = [], set()
    for begin in reversed(order):
        ring: list[Any] = []
        _walk(begin, leading, seen, ring)
        if len(ring) > 1 or (ring and begin in following.get(begin, ())):
            rings.append(set(ring))
    return rings


def _walk(begin: Any, following: Mapping[Any, Iterable[Any]], seen: set[Any], left: list[Any]) -> None:
    """Append all nodes that are reached and not seen yet, each when all behind it are."""
    if begin in seen:
        return
    seen.add(begin)
    open_nodes = [(begin, iter(following.get(begin, ())))]
    while open_nodes:
        node, others = open_nodes[-1]
        found = next((other for other in others if other not in seen), None)
        if found is None:
            left.append(node)
            open_nodes.pop()
        else:
            seen.add(found)
            open_nodes.append((found, iter(following.get(found, ()))))


def _characters(atoms: Sequence[str], places: Iterable[int]) -> dict[int, frozenset[str]]:
    """Of those that are looked at, the characters that each place may be: as Oniguruma itself says."""
    sample = _sample() | {other for atom in atoms for char in atom for other in _neighbours(char)}
    text = _MARK.join(sorted(sample - {_MARK}))
    found = {atom: _matching(atom, text) for atom in {atoms[place] for place in places}}
    return {place: found[atoms[place]] for place in places}


def _matching(atom: str, text: str) -> frozenset[str]:
    try:
        pieces = pre_tokenizers.Split(Regex(atom), "isolated").pre_tokenize_str(text)
    except BaseException as error:  # a panic of the library is no Exception
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise PatternError(f"{atom[:40]!r} is no expression") from None
    return frozenset(piece for piece, _ in pieces if len(piece) == 1 and piece != _MARK)


@cache
def _sample() -> frozenset[str]:
    """Characters of all kinds: those of ASCII, and some of each script and category."""
    codes = (*range(1, 0x180), *range(0x180, 0x3100, 8), *range(0x3100, 0x30000, 512))
    return frozenset(chr(code) for code in codes if not 0xD800 <= code < 0xE000)


def _neighbours(char: str) -> set[str]:
    """A character that an expression names, in both cases, and those that a class up to it, or without it, may have."""
    codes = (code for code in (ord(char) - 1, ord(char), ord(char) + 1) if 0 < code < 0xD800)
    found = {*map(chr, codes), char.lower(), char.upper()}
    return {each for each in found if len(each) == 1}
