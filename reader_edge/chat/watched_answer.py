"""An answer that is watched on a terminal: its text as it comes, what was drafted tinted, and its speed."""

import sys
import time
from contextlib import nullcontext

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from reader_edge.terminal.draft_spans import DraftSpans
from reader_edge.terminal.formatting import visible
from reader_edge_runtime import Engine, GenerationConfig
from reader_edge_runtime.text.conversation import Encodable

_TINT = "black on light_sky_blue1"
_FRAME_S = 0.08


def watch_answer(way: str, engine: Engine, prompt: Encodable, config: GenerationConfig) -> tuple[str, list[int], float]:
    """Answer, and draw it where standard output is a terminal; nothing is learned of earlier answers.

    Returns the text, its tokens, and the seconds that those behind the first chunk took, without drawing.
    """
    engine.forget()
    chunks, spans, text = engine.stream(prompt, config), DraftSpans(engine.tokenizer), Text()
    token_ids, seconds, drawn = list[int](), 0.0, 0.0
    live = Live(console=Console(), auto_refresh=False) if sys.stdout.isatty() else None
    with live or nullcontext():
        while True:
            start = time.perf_counter()
            chunk = next(chunks, None)
            now = time.perf_counter()
            if chunk is not None:
                seconds += now - start if token_ids else 0.0
                token_ids += chunk.token_ids
                for piece, source in spans.push(chunk):
                    text.append(visible(piece), _TINT if source else None)
            if live and (chunk is None or now - drawn > _FRAME_S):
                speed = f", {len(token_ids) / seconds:,.0f} tokens/s" if seconds else ""
                live.update(Panel(text, title=f"{way}{speed}", title_align="left"), refresh=True)
                drawn = now
            if chunk is None:
                return text.plain, token_ids, seconds
