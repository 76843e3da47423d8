"""Options that several commands have, and how a command gets them in groups."""

import functools
import json
import math
import os
import re
from collections.abc import Callable
from dataclasses import fields
from importlib import util
from pathlib import Path
from typing import Any, TypeVar

import click

import reader_edge
from reader_edge.terminal.shell_completion import MODEL
from reader_edge_runtime.config import provider_names

T = TypeVar("T")

DIFFERENT_TOKENS = "Drafted and plain decoding emitted different tokens: 'reader-edge verify' shows where."
_SERVE = ("prometheus_client", "starlette", "uvicorn")
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


class _FilePath(click.Path):
    """Of a file that may be missing, in a folder that may not."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        return path if path.parent.is_dir() else self.fail(f"There is no folder '{path.parent}'.", param, ctx)


FILE_PATH = _FilePath(dir_okay=False, path_type=Path)


class IntegerRange(click.IntRange):
    """click's, in words for users."""

    name = "integer"


class FiniteRange(click.FloatRange):
    """click's, which takes NaN, in no range and outside none."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        return number if math.isfinite(number) else self.fail(f"{value} is no number to count with.", param, ctx)


def grouped(**kinds: type | str) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Hand a command its options in groups instead of one by one.

    kinds: parameter of the command -> dataclass, which is made of the options that bear its fields' names. One named by
    a string is of `reader_edge`, imported when the command runs. A later group may hold an earlier one as a field.
    """

    def decorate(command: Callable[..., T]) -> Callable[..., T]:
        @functools.wraps(command)
        def call(**values: Any) -> T:
            for parameter, kind in kinds.items():
                made = getattr(reader_edge, kind) if isinstance(kind, str) else kind
                names = [field.name for field in fields(made) if field.name in values]
                values[parameter] = made(**{name: values.pop(name) for name in names})
            return command(**values)

        return call

    return decorate


def _switch_off(flag: str, field: str, meaning: str) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """A flag that makes a field False which is True without it."""
    return click.option(flag, field, is_flag=True, callback=lambda ctx, parameter, value: not value, help=meaning)


# Named like the fields of EngineConfig and GenerationConfig, so that they can be grouped into these.
threads = click.option(
    "--threads",
    type=IntegerRange(0, 1024),
    default=0,
    show_default=True,
    help="Threads to compute with; 0, or more than there are usable cores, takes one for each of these.",
)
no_native = _switch_off("--no-native", "uses_native", "Do not use native kernels.")
provider = click.option(
    "--provider",
    type=click.Choice(provider_names()),
    help="What runs the model. Default: cuda for packages made for GPUs, if this machine has what it needs; else cpu. "
    "cuda takes fp16, bf16, and fp32 with fast attention; tensorrt these three with fast attention; webgpu fp16 and "
    "fp32 with portable attention; iree what `export --engine iree` wrote.",
)
guard = click.option(
    "--guard",
    "is_near_tie_guarded",
    is_flag=True,
    help="If this machine's logits depend on pass width, draft greedy answers and re-check near ties one token at a "
    "time.",
)
no_calibrate = _switch_off("--no-calibrate", "is_calibrated", "Assume pass times; do not measure them here.")
text_is_text = click.option(
    "--text-is-text",
    "is_text_literal",
    is_flag=True,
    help="Treat control tokens in messages as plain text: for untrusted input.",
)


def _template_args(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
    """NAME=VALUE, each value as JSON where it is some."""
    args = {}
    for each in values:
        name, equals, value = each.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{each!r} must be NAME=VALUE, such as enable_thinking=false.")
        if name in ("messages", "tools"):
            raise click.BadParameter(f"{each!r} would take the place of the {name} that are asked: leave it out.")
        try:
            args[name] = json.loads(value)
        except (ValueError, RecursionError):
            args[name] = value
    return args


def _stops(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Texts, none of them empty."""
    if "" in values:
        raise click.BadParameter("'' ends every answer before it begins: give a text of one character or more.")
    return values


stop = click.option(
    "--stop",
    multiple=True,
    metavar="TEXT",
    callback=_stops,
    help="End the answer before this text; may be repeated.",
)
template_args = click.option(
    "--template-arg",
    "template_args",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_template_args,
    help="Set a variable of the chat template, such as enable_thinking=false; may be repeated.",
)
no_draft = _switch_off("--no-draft", "is_drafted", "Decode plainly: one token per pass.")


def _few(ctx: click.Context, parameter: click.Parameter, values: tuple[Path, ...]) -> tuple[Path, ...]:
    if len(values) > 4:
        raise click.BadParameter(
            f"{len(values)} datastores are given: 4 at most, which `datastore merge` makes one of."
        )
    return values


datastores = click.option(
    "--datastore",
    "datastores",
    multiple=True,
    type=FILE,
    callback=_few,
    metavar="FILE",
    help="Also draft from this datastore (`reader-edge datastore build`); up to 4.",
)
head = click.option("--head", type=FILE, help="Also draft with this trained head (`reader-edge train-drafter`).")
_draft_model = click.option(
    "--draft-model",
    type=MODEL,
    metavar="MODEL",
    help="Also draft with this smaller model, which must have the same tokenizer.",
)
_draft_context = click.option(
    "--draft-context",
    type=IntegerRange(0, 1 << 28),
    default=0,
    show_default=True,
    metavar="N",
    help="Have the draft model read N tokens of a longer prompt, its end and the passages that bear on that; 0: all.",
)


def draft_model(command: Callable[..., T]) -> Callable[..., T]:
    """A model to draft with, and how much it reads."""
    return _draft_model(_draft_context(command))


no_speculator = _switch_off(
    "--no-speculator", "has_speculator", "Leave out the package's trained speculator (`export --speculator`)."
)
prompts = click.option(
    "--prompts",
    type=FILE,
    help="A text file with one prompt per line, or a .jsonl file with a text, chat messages or turns per line. "
    "Default: a bundled set.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
plot = click.option("--plot", type=FILE_PATH, help="Draw the result: a .png, .svg or .pdf file.")
max_batch = click.option(
    "--max-batch", type=IntegerRange(1, 256), default=8, show_default=True, help="Answers decoded together."
)
kv_bytes = click.option(
    "--kv-bytes",
    "max_kv_bytes",
    type=IntegerRange(0, 2**63 - 1),
    default=0,
    show_default=True,
    help="Most bytes of the KV cache; 0 is no limit.",
)
MAX_TOKENS: Any = IntegerRange(1, 2**31 - 1)
answer_tokens = click.option(
    "-n", "--max-tokens", type=MAX_TOKENS, default=4096, show_default=True, help="Most tokens of an answer."
)


def check_server_installed() -> None:
    """Raise InstallationError unless the extra "serve" is here."""
    from reader_edge_runtime.errors import InstallationError

    missing = [needed for needed in _SERVE if util.find_spec(needed) is None]
    if missing:
        raise InstallationError(f"This needs {missing[0]}, which is missing: pip install 'reader-edge[serve]'.")


def tcp_addresses(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Places to listen at, separated by commas."""
    for address in () if value is None else value.split(","):
        if not re.fullmatch(r"tcp://[^/\s]+:\d{1,5}", address):
            raise click.BadParameter(f"{address!r:.80} is no address of a stage: give tcp://HOST:PORT.")
    return value


def node_budgets(ctx: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """Numbers of drafted nodes, as click's callback of an option that lists them."""
    if value is None:
        return None
    try:
        budgets = tuple(dict.fromkeys(int(part) for part in value.split(",")))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of numbers such as 8,16,64.") from None
    if not all(1 <= budget <= 255 for budget in budgets):
        raise click.BadParameter(f"{value!r} must hold numbers from 1 to 255.")
    return budgets


def engine(command: Callable[..., T]) -> Callable[..., T]:
    """What most commands let a user say of EngineConfig."""
    return threads(no_native(provider(command)))
