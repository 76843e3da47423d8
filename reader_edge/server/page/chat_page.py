"""The page as browsers get it: one file, which may run what is in it and ask its own server, and nothing else."""

import base64
import hashlib
import re
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

_FOLDER = Path(__file__).parent
_LINKED = re.compile(r'<link rel="stylesheet" href="(?P<style>[\w.]+)">|<script src="(?P<script>[\w.]+)"></script>')


class ChatPage:
    """A route's handler. The styles and scripts that page.html names are written into it."""

    def __init__(self) -> None:
        hashes: dict[str, list[str]] = {"style": [], "script": []}

        def inline(match: re.Match[str]) -> str:
            kind = match.lastgroup or ""
            content = (_FOLDER / match[kind]).read_text(encoding="utf-8")
            digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
            hashes[kind].append(f"'sha256-{digest}'")
            return f"<{kind}>{content}</{kind}>"

        self._text = _LINKED.sub(inline, (_FOLDER / "page.html").read_text(encoding="utf-8"))
        self._headers = {
            "Content-Security-Policy": "; ".join(
                (
                    *("default-src 'none'", *(f"{kind}-src {' '.join(each)}" for kind, each in hashes.items())),
                    *("connect-src 'self'", "img-src data:", "base-uri 'none'", "form-action 'none'"),
                    *("frame-ancestors 'none'", "require-trusted-types-for 'script'", "trusted-types dompurify"),
                )
            ),
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }

    async def html(self, request: Request) -> Response:
        return Response(self._text, headers=self._headers, media_type="text/html")
