"""Pages that are made when the site is built: the command line, HTTP fields, the manifest; and those of benchmarks/.

MkDocs calls the functions that begin with `on_` (mkdocs.yml, hooks). Nothing is written beside the sources, so no page
can be out of date.
"""

import inspect
import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from msgspec.inspect import UnionType

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "runtime")]  # which MkDocs takes back once this is imported

import reader_edge  # noqa: E402
from docs.field_table import field_table  # noqa: E402
from reader_edge.cli import main  # noqa: E402
from reader_edge.server.schema import words_of  # noqa: E402
from reader_edge_runtime.package import layer, manifest, package_parts  # noqa: E402

_HTTP = """# HTTP fields

Fields of `POST /v1/chat/completions` (chats), `/v1/completions` (completions) and `/v1/responses` (responses), from the
classes that decode requests (`reader_edge/server/schema.py`). A running server describes itself at
`GET /openapi.json`, Ollama's endpoints included. How to use them: [serve a model](../how-to/serve.md).

- Null means the same as leaving a field out, and 2.0 counts as a whole number.
- *Accepted and ignored*: the field changes no answer. Clients of other systems send it; it is counted by its name.
- *Accepted only as*: any other value would change answers in a way that is not supported, so it is refused.
- Fields that mean the same may be given together only if their values agree.
- Unknown fields are ignored and counted, at every depth; `serve --strict-fields` refuses them, and ignored ones
  ([ignored fields](server.md#ignored-fields)).
"""

_WINGS = (
    "reader_edge_lossy.relaxed.Relaxed",
    "reader_edge_lossy.big_little.BigLittle",
    "reader_edge_lossy.views.Views",
    "reader_edge_series.forecaster.Forecaster",
)

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page


def on_config(config: "MkDocsConfig") -> "MkDocsConfig":
    """List the pages of benchmarks/, and every decision record behind the index of decisions."""
    records = [f"decisions/{each.name}" for each in sorted((ROOT / "docs" / "decisions").glob("*.md"))]
    records.sort(key=lambda name: name != "decisions/index.md")
    benchmarks = [path.relative_to(ROOT).as_posix() for path in _benchmarks("*.md")]
    assert config.nav is not None
    config.nav += [{"Beside other runtimes": benchmarks}, {"Decisions": records}]
    return config


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    """Add the generated pages to those of docs/."""
    from mkdocs.structure.files import File

    pages = {"cli": command_line_page, "http-fields": http_page, "manifest": manifest_page}
    for name, page in (pages | {"python-docstrings": docstrings_page}).items():
        files.append(File.generated(config, f"reference/{name}.md", content=page()))
    for path in _benchmarks("*.md", "*.svg"):
        files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: "Page", **_: object) -> str:
    """Lead links between docs/ and benchmarks/, which lie beside each other, to where the site has their pages."""
    there = page.file.src_uri
    here = there if there.startswith("benchmarks/") else f"docs/{there}"

    def led(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(here), link[1]))
        if not target.startswith(("docs/", "benchmarks/")):
            return link[0]
        return f"]({posixpath.relpath(target.removeprefix('docs/'), posixpath.dirname(there) or '.')}"

    return re.sub(r"\]\(((?:\.\./)+[^)#\s]*)", led, markdown)


def _benchmarks(*patterns: str) -> list[Path]:
    return sorted(path for pattern in patterns for path in (ROOT / "benchmarks").rglob(pattern))


def docstrings_page() -> str:
    """What mkdocstrings reads of every public name, and of the wings that nothing else imports."""
    names = [f"reader_edge.{name}" for name in reader_edge.__all__ if name != "__version__"]
    return "\n\n".join(["# Classes and functions", *(f"::: {name}" for name in [*names, *_WINGS])])


def command_line_page() -> str:
    """Every command's `--help`."""
    lines = ["# Command line", "", "What `reader-edge COMMAND --help` prints, for every command.", ""]
    for names, command in commands(main, ("reader-edge",)):
        context = click.Context(command, info_name=" ".join(names), terminal_width=100, max_content_width=100)
        context.help_option_names = main.context_settings["help_option_names"]
        title = "reader-edge" if len(names) == 1 else " ".join(names[1:])
        lines += [f"## {title}", "", "```text", command.get_help(context), "```", ""]
    return "\n".join(lines)


def commands(command: click.Command, names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """A command and all below it, each with the words that call it."""
    yield names, command
    if isinstance(command, click.Group):
        for name, each in command.commands.items():
            yield from commands(each, (*names, name))


def http_page() -> str:
    """The fields of OpenAI's endpoints, from the classes of request bodies."""
    return f"{_HTTP}\n{field_table()}\n"


def manifest_page() -> str:
    """The manifest's classes and the graph contract, from their docstrings."""
    contract = inspect.getdoc(manifest) or ""
    lines = ["# Package manifest", "", "`reader_edge.json` in a package's folder.", "", "```text", contract, "```", ""]
    for kind in (manifest.Manifest, layer.Layer, package_parts.ImagesPart, package_parts.StagePart, manifest.FileEntry):
        lines += [f"## {kind.__name__}", "", "```text", inspect.getdoc(kind) or "", "```", ""]
        lines += ["| field | value | required |", "|---|---|---|", *_field_rows(kind), ""]
    return "\n".join(lines)


def _field_rows(kind: type[Any]) -> Iterator[str]:
    info: Any = msgspec.inspect.type_info(kind)
    for field in info.fields:
        null = " or null" if isinstance(field.type, UnionType) and field.type.includes_none else ""
        yield f"| `{field.encode_name}` | {words_of(field.type)}{null} | {'yes' if field.required else ''} |"
