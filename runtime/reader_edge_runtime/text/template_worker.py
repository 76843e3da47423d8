"""Renders chat templates in a process of its own: one JSON request a line in, one JSON reply a line out.

A script, which imports nothing of this project: a new interpreter starts it within the limits below. Nothing inside an
interpreter can bound what a template does: one `'a' * 3000000000`, a filter that pads, a list that holds itself twice
thirty times over, or a recursion each need a guard of their own, and the one forgotten is the hole.
"""

import contextlib
import json
import signal
import sys
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

_MAX_MEMORY_BYTES = 1 << 29
_MAX_CPU_S = 1.0
_MAX_CHARACTERS = 1 << 23
_MAX_ERROR_CHARACTERS = 300


def main() -> None:
    """Answer requests until standard input ends."""
    _limit_memory()
    for line in sys.stdin:
        _set_alarm(_MAX_CPU_S)
        reply = json.dumps(_reply(json.loads(line)))
        _set_alarm(0)
        sys.stdout.write(reply + "\n")
        sys.stdout.flush()


def _reply(request: Mapping[str, Any]) -> dict[str, str]:
    try:
        text = _template(request["template"]).render(request["variables"])
        if len(text) > _MAX_CHARACTERS:
            raise TemplateError(f"it makes more than {_MAX_CHARACTERS} characters of them")
    except MemoryError:
        return {"error": "it takes more memory than a template may"}
    except Exception as error:  # a template can raise whatever Python can
        reason = " ".join(str(error).split()) or type(error).__name__
        return {"error": reason[:_MAX_ERROR_CHARACTERS].rstrip(".")}
    return {"text": text}


@lru_cache(maxsize=1)
def _template(source: str) -> Template:
    """What transformers gives templates, so that they render the same here."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment.from_string(source)


# Named as templates know them: Python's complaint about a wrong call shows the name.


def tojson(value: object, ensure_ascii: bool = False, indent: int | None = None) -> str:
    """JSON as it is; jinja2's own filter escapes it for HTML and sorts its keys."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _limit_memory() -> None:
    if sys.platform == "win32":  # has neither these limits nor the timer: a template is sandboxed only
        return
    import resource

    limits = ((resource.RLIMIT_AS, _MAX_MEMORY_BYTES), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0))
    for kind, most in limits:
        with contextlib.suppress(ValueError, OSError):  # macOS refuses to bound a process's memory
            resource.setrlimit(kind, (most, most))


def _set_alarm(cpu_s: float) -> None:
    """End this process after that much CPU time; it has no handler to run, so nothing delays it. 0 calls it off."""
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_PROF, cpu_s)


if __name__ == "__main__":
    main()
