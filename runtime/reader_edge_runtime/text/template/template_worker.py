"""Renders chat templates in a bounded process: requests and replies are JSON."""

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from reader_edge_runtime.machine.bounded_worker import Channel, Session, serve, start_clock, stop_clock

_MAX_MEMORY_BYTES = 1 << 29
_MAX_CPU_S = 1.0
_MAX_CHARACTERS = 1 << 23
_MAX_ERROR_CHARACTERS = 300


def prepare(_: Channel) -> Iterator[Session]:
    """There is nothing to read."""
    yield render


def render(channel: Channel) -> None:
    """Answer requests until nobody asks any more."""
    while True:
        request = channel.receive()
        start_clock(_MAX_CPU_S)
        reply = json.dumps(reply_to(json.loads(request))).encode()
        stop_clock()
        channel.send(reply)


def reply_to(request: Mapping[str, Any]) -> dict[str, str]:
    """The rendered "text" of a request's "template" and "variables", or why there is none.

    That is a "refusal" in the template's own words, or the "error" that it fails with.
    """
    try:
        text = _template(request["template"]).render(request["variables"])
        if len(text) > _MAX_CHARACTERS:
            raise TemplateError(f"it makes more than {_MAX_CHARACTERS} characters of them")
    except RefusalError as error:
        return {"refusal": _words(error)}
    except MemoryError:
        return {"error": "it takes more memory than a template may"}
    except Exception as error:  # a template can raise whatever Python can
        place = f"line {error.lineno}: " if isinstance(error, TemplateSyntaxError) else ""
        return {"error": place + _words(error)}
    return {"text": text}


def _words(error: Exception) -> str:
    reason = " ".join(str(error).split()) or type(error).__name__
    return reason[:_MAX_ERROR_CHARACTERS].rstrip(".")


@lru_cache(maxsize=4)
def _template(source: str) -> Template:
    """What transformers 5 gives templates, so that they render the same here."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals |= {
        "raise_exception": raise_exception,
        "strftime_now": strftime_now,
        "dict": PlainDict(),
        "namespace": PublicNamespace,
    }
    return environment.from_string(source)


# Named as templates know them: Python's complaint about a wrong call shows the name.


def tojson(
    x: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is; jinja2's own filter escapes it for HTML and sorts its keys."""
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class RefusalError(TemplateError):
    """What a template says of messages that it does not take."""


def raise_exception(message: str) -> NoReturn:
    raise RefusalError(message)


def strftime_now(format: str) -> str:  # noqa: A002 - templates may name it
    return datetime.now().strftime(format)


class GenerationTag(Extension):
    """{% generation %}, around what the assistant says: tells those who train a model, and renders as its contents."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own way

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_contents"), [], [], body).set_lineno(line)

    def _contents(self, caller: Any) -> Any:
        return caller()


class PlainDict:
    """Python's dict, without what its class leads to."""

    def __call__(self, *args: Any, **members: Any) -> dict[Any, Any]:
        return dict(*args, **members)

    def fromkeys(self, keys: Iterable[Any], value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(keys, value)


class PublicNamespace(Namespace):
    """jinja2's, without names that lead inside Python."""

    def __init__(*args: Any, **members: Any) -> None:
        self, *given = args  # so that a member may be called self
        members = dict(*given, **members)
        for name in members:
            _check_name(name)
        Namespace.__init__(self, members)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold {name!r}, which begins with an underscore")


if __name__ == "__main__":
    serve(prepare, _MAX_MEMORY_BYTES)
