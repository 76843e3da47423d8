"""Whether any text that follows a Lark grammar ever ends: rules that lead to themselves alone allow none."""

import re
from collections.abc import Mapping

_TOKEN = re.compile(
    r"""\s+|//[^\n]*|(?P<header>^[?!]?[a-zA-Z_]\w*(?:\[[^\]\n]*\])?\s*:(?!:))|(?P<name>[a-z_]\w*)"""
    r"""|(?P<other>[A-Z]\w*|"(?:\\.|[^"\\\n])*"i?|/(?:\\.|[^/\\\n])+/\w*|<[^>\n]*>|%json)"""
    r"""|(?P<optional>[?*]|\{\s*,[^}\n]*\}|\{\s*0[^}\n]*\}|~\s*0\S*)|\+|\{[^}\n]*\}|~\s*[\d.]+|(?P<sign>[|()\[\]])""",
    re.MULTILINE,
)

Tokens = list[tuple[str, str]]


def can_end(text: str) -> bool:
    """False where it certainly never ends; True also for what is not read here, as directives."""
    rules: dict[str, Tokens] = {}
    place, name = 0, ""
    while place < len(text):
        token = _TOKEN.match(text, place)
        if token is None:
            return True
        place = token.end()
        if token.lastgroup == "header":
            name = re.split(r"[\[:\s]", token[0].lstrip("?!"), maxsplit=1)[0]
            rules[name] = []
        elif token.lastgroup is not None:
            rules.setdefault(name, []).append((token.lastgroup, token[0]))
    ending: set[str] = set()
    size = -1
    while len(ending) > size:
        size = len(ending)
        ending |= {name for name, tokens in rules.items() if name not in ending and _ends(tokens, rules, ending)}
    return "start" not in rules or "start" in ending


def _ends(tokens: Tokens, rules: Mapping[str, Tokens], ending: set[str]) -> bool:
    """Whether one alternative of a rule is made of what ends."""
    groups = [[False, True, ""]]  # of each group: whether an alternative before ends, whether this one does, its sign
    before = True  # whether the alternative ended before its last item
    for kind, word in tokens:
        group = groups[-1]
        if kind == "optional":
            group[1] = before
        elif word == "|" and kind == "sign":
            groups[-1] = [group[0] or group[1], True, group[2]]
        elif kind == "sign" and word in "([":
            groups.append([False, True, word])
        elif kind == "sign":
            closed = groups.pop()
            if not groups:
                return True
            before = bool(groups[-1][1])
            groups[-1][1] = before and (closed[2] == "[" or bool(closed[0] or closed[1]))
        else:
            before = bool(group[1])
            group[1] = before and (kind == "other" or word not in rules or word in ending)
    return bool(groups[0][0] or groups[0][1])
