"""The page at `/`: a chat in one file, which loads nothing from anywhere and sends nothing but to this server."""

import base64
import hashlib
import re
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

_FILE = Path(__file__).with_name("page.html")


class Page:
    """A route's handler. is_chat: whether the model has a chat template; else texts are continued. is_drawn: whether it
    recommends to draw tokens, so that a chat leaves its temperature open; else it begins greedily."""

    def __init__(self, is_chat: bool, is_drawn: bool) -> None:
        text = _FILE.read_text(encoding="utf-8").replace('data-form="FORM"', f'data-form="{_form(is_chat)}"')
        self._text = text.replace('value="TEMPERATURE"', f'value="{"" if is_drawn else "0"}"')
        self._headers = {
            "Content-Security-Policy": _policy(self._text),
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }

    async def tell(self, request: Request) -> Response:
        return Response(self._text, headers=self._headers, media_type="text/html")


def _form(is_chat: bool) -> str:
    return "chat" if is_chat else "text"


def _policy(text: str) -> str:
    """What a browser lets the page do: run its own script, in its own style, and ask its own server."""
    script, style = (_hash_of(kind, text) for kind in ("script", "style"))
    rules = (
        *("default-src 'none'", f"script-src {script}", f"style-src {style}", "connect-src 'self'"),
        *("img-src data:", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"),
    )
    return "; ".join(rules)


def _hash_of(kind: str, text: str) -> str:
    """The source expression that allows the page's one element of a kind, and no other."""
    (content,) = re.findall(f"<{kind}>(.*?)</{kind}>", text, re.DOTALL)
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
