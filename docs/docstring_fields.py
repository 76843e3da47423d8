"""Fields in docstrings, which stand one a line as `name: meaning`, become lists on the site's pages."""

import re

import griffe

_FIELD = re.compile(r"^(\w+(?:, \w+)*): (?=\S)")


class DocstringFields(griffe.Extension):
    """What mkdocstrings reads docstrings through (mkdocs.yml)."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Turn the fields of an object's docstring into a list."""
        if obj.docstring is not None:
            obj.docstring.value = listed(obj.docstring.value)


def listed(text: str) -> str:
    """The text with a list item for each field, and an empty line before each list and behind it."""
    lines: list[str] = []
    is_list = False
    for line in text.splitlines():
        found = _FIELD.match(line)
        goes_on = is_list and line.startswith(" ")
        if line.strip() and bool(found) != is_list and not goes_on and lines and lines[-1]:
            lines.append("")
        is_list = bool(found) or goes_on
        lines.append(_FIELD.sub(r"- **\1**: ", line))
    return "\n".join(lines)
