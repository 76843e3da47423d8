"""Options of commands, made of the fields of dataclasses, and how a command gets them as these classes."""

import functools
import json
import math
import os
import re
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields
from importlib import util
from inspect import cleandoc
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin

import click

import reader_edge
from reader_edge.terminal.shell_completion import MODEL
from reader_edge_runtime.config import EngineConfig, GenerationConfig, ServingConfig
from reader_edge_runtime.plug_ins import provider_names
from reader_edge_runtime.untrusted.config_checks import Range

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


class _FolderPath(click.Path):
    """Of a folder that may be missing; an empty name, as of a variable that is not set, would be the current one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(value, param, ctx) if value != "" else self.fail("It is empty: name a folder.")


class IntegerRange(click.IntRange):
    """click's, in words for users."""

    name = "integer"


class FiniteRange(click.FloatRange):
    """click's, which takes NaN, in no range and outside none."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        return number if math.isfinite(number) else self.fail(f"{value} is no number to count with.", param, ctx)


_LINE = re.compile(r"^((?:--?[\w-]+ )*)(\w+): (.+(?:\n +.+)*)", re.MULTILINE)


def of(kind: type, *names: str) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Give a command the options that a dataclass states, or those of the fields of these names.

    A line of its docstring is an option: `-n --max-tokens max_tokens: help`, or `field: help` where the field's name is
    the flag. What it takes is the field's type: a flag, which switches off what is True without it; several of a tuple;
    and in `Annotated` a Range or the choices of a config, a type of click's, a metavar (text) or a callback.
    """
    lines = {name: (flags.split(), words) for flags, name, words in _LINE.findall(cleandoc(kind.__doc__ or ""))}
    stated = {each.name: each for each in fields(kind)}

    def decorate(command: Callable[..., T]) -> Callable[..., T]:
        for name in reversed(names or tuple(lines)):
            flags, words = lines[name]
            settings = _settings(stated[name])
            flags = flags or [f"--{name.replace('_', '-')}"]
            command = click.option(*flags, name, help=" ".join(words.split()), **settings)(command)
        return command

    return decorate


def value_type(field: "Field[Any]") -> Any:
    """What an option of this field takes, where its annotation says more than its type."""
    if get_origin(field.type) is not Annotated:
        return None
    kind, *parts = get_args(field.type)
    is_whole = int in (kind, *get_args(kind))
    for part in parts:
        if isinstance(part, Range):
            most = None if part.most == math.inf else part.most
            if is_whole:
                return IntegerRange(int(part.least), 2**31 - 1 if most is None else int(most))
            return FiniteRange(part.least, most)
        if isinstance(part, tuple):
            return click.Choice(part)
        if isinstance(part, click.ParamType):
            return part
    return None


def _settings(field: "Field[Any]") -> dict[str, Any]:
    """How click is to make the option of a field."""
    is_annotated = get_origin(field.type) is Annotated
    kind = get_args(field.type)[0] if is_annotated else field.type
    if kind is bool:
        off = {"callback": lambda ctx, parameter, value: not value} if field.default is True else {}
        return {"is_flag": True, **off}
    settings: dict[str, Any] = {"type": value_type(field), "multiple": get_origin(kind) is tuple}
    for part in get_args(field.type)[1:] if is_annotated else ():
        if isinstance(part, str):
            settings["metavar"] = part
        elif callable(part) and not isinstance(part, click.ParamType):
            settings["callback"] = part
    if field.default is MISSING:
        return {**settings, "required": True}
    if field.default is not None and not settings["multiple"]:
        settings |= {"default": field.default, "show_default": True}
    return settings


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


class ServingOptions(ServingConfig):
    """
    max_waiting: Answers that may wait; more are refused.
    """


class EngineFlags(EngineConfig):
    """
    threads: Threads to compute with; 0, or more than there are usable cores, takes one for each of these.
    --no-native uses_native: Do not use native kernels.
    --guard is_near_tie_guarded: If this machine's logits depend on pass width, draft greedy answers and re-check near
      ties one token at a time.
    --no-calibrate is_calibrated: Assume pass times; do not measure them here.
    --text-is-text is_text_literal: Treat control tokens in messages as plain text: for untrusted input.
    --no-draft is_drafted: Decode plainly: one token per pass.
    --image-max-tokens max_image_tokens: Most tokens of an image that a model sees whole; larger ones are shrunk.
    max_batch: Answers decoded together.
    --kv-bytes max_kv_bytes: Most bytes of the KV cache; 0 is no limit.
    prefix_bytes: Most bytes of the prefix cache; what was used longest ago goes first.
    """


threads = of(EngineFlags, "threads")
signature_key = click.option(
    "--require-signature",
    "signature_key",
    type=FILE,
    metavar="KEY",
    help="Refuse packages that are not signed by the owner of this public key (`reader-edge package sign`).",
)
mmproj_file = click.option(
    "--mmproj",
    "mmproj_file",
    type=FILE,
    help="Take what sees images for the model of a GGUF file from this one. Default: the one mmproj*.gguf beside it.",
)
provider = click.option(
    "--provider",
    type=click.Choice(provider_names()),
    help="What runs the model. Default: cuda for packages made for GPUs, if this machine has what it needs; else cpu. "
    "cuda takes fp16, bf16, and fp32 with fast attention; tensorrt these three with fast attention; webgpu fp16 and "
    "fp32 with portable attention; iree what `export --engine iree` wrote.",
)


def engine(command: Callable[..., T]) -> Callable[..., T]:
    """What most commands let a user say of EngineConfig."""
    return of(EngineFlags, "threads", "uses_native")(provider(signature_key(command)))


def prefix_cache(command: Callable[..., T]) -> Callable[..., T]:
    """Where texts outlive the process, and how much of them."""
    folder = click.option(
        "--prefix-cache",
        type=_FolderPath(file_okay=False, path_type=Path),
        metavar="DIR",
        help="Keep the KV cache of prompts and answers in this folder, so that they need not be computed again after a "
        "restart. They reveal the texts; `reader-edge forget DIR` erases them.",
    )
    return folder(of(EngineFlags, "prefix_bytes")(command))


def _few(ctx: click.Context, parameter: click.Parameter, values: tuple[Path, ...]) -> tuple[Path, ...]:
    if len(values) > 4:
        raise click.BadParameter(
            f"{len(values)} datastores are given: 4 at most, which `datastore merge` makes one of."
        )
    return values


@dataclass(frozen=True, slots=True)
class Drafts:
    """What DraftSources are made of.

    workspace: Also draft from the text files under this folder that git does not ignore, as they change.
    --datastore datastores: Also draft from this datastore (`reader-edge datastore build`); up to 4.
    draft_model: Also draft with this smaller model, which must have the same tokenizer.
    draft_context: Have the draft model read N tokens of a longer prompt, its end and the passages that bear on that; 0:
      all.
    --no-speculator has_speculator: Leave out the package's trained speculator (`export --speculator`).
    """

    workspace: Annotated[Path | None, FOLDER, "DIR"] = None
    datastores: Annotated[tuple[Path, ...], FILE, _few, "FILE"] = ()
    draft_model: Annotated[str | None, MODEL, "MODEL"] = None
    draft_context: Annotated[int, Range(0, 1 << 28), "N"] = 0
    has_speculator: bool = True


def _template_args(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
    """NAME=VALUE, each value as JSON where it is some."""
    args = {}
    for each in values:
        name, equals, value = each.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{each!r} must be NAME=VALUE, such as enable_thinking=false.")
        if name in ("messages", "tools"):
            raise click.BadParameter(f"{each!r} would take the place of the {name} that are requested: leave it out.")
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


def _adapters(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, Path]:
    """NAME=FOLDER, each name once; what is no adapter of any model is refused before a model is loaded or exported."""
    from reader_edge_runtime.adapters.adapted_modules import open_adapter
    from reader_edge_runtime.adapters.adapter_set import check_adapter_name
    from reader_edge_runtime.errors import ReaderEdgeError

    found: dict[str, Path] = {}
    for each in values:
        name, equals, path = each.partition("=")
        if not equals or not path:
            raise click.BadParameter(f"{each!r} must be NAME=FOLDER, such as pirate=adapters/pirate.")
        if name in found:
            raise click.BadParameter(f"Two adapters are called {name!r}: rename one.")
        found[name] = Path(path)
        try:
            check_adapter_name(name)
            open_adapter(found[name])
        except ReaderEdgeError as error:
            raise click.BadParameter(str(error)) from None
    return found


adapters = click.option(
    "--adapter",
    "adapters",
    multiple=True,
    metavar="NAME=FOLDER",
    callback=_adapters,
    help="Load a LoRA beside the model, from a folder that PEFT wrote or a GGUF file; may be repeated.",
)
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
prompts = click.option(
    "--prompts",
    type=FILE,
    help="A text file with one prompt per line, or a .jsonl file with a text, chat messages or turns per line. "
    "Default: a bundled set.",
)
history = click.option(
    "--history",
    type=FILE_PATH,
    help="Draft from past answers in this file, and add new ones. `reader-edge forget FILE` erases it.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
plot = click.option("--plot", type=FILE_PATH, help="Draw the result: a .png, .svg or .pdf file.")


MAX_TOKENS: Any = value_type(GenerationConfig.__dataclass_fields__["max_tokens"])


def max_tokens(default: int) -> Callable[[Callable[..., T]], Callable[..., T]]:
    words = "Most tokens of an answer."
    return click.option("-n", "--max-tokens", type=MAX_TOKENS, default=default, show_default=True, help=words)


reasoning_budget = click.option(
    "--reasoning-budget",
    "max_reasoning_tokens",
    type=IntegerRange(0, 2**31 - 1),
    metavar="N",
    help="Most tokens that the model thinks before it answers. Default: any number.",
)


def check_server_installed() -> None:
    """Raise InstallationError unless the extra "serve" is here."""
    from reader_edge_runtime.errors import InstallationError

    missing = [needed for needed in _SERVE if util.find_spec(needed) is None]
    if missing:
        raise InstallationError(f"This needs {missing[0]}, which is missing: pip install 'reader-edge[serve]'.")


def byte_size(ctx: click.Context, parameter: click.Parameter, value: str) -> int:
    """Bytes of a size with its unit."""
    from reader_edge.terminal.formatting import parse_size

    size = parse_size(value)
    if size is None:
        raise click.BadParameter(f"{value!r:.40} is not a size such as 500MB or 4GB.")
    return size


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
