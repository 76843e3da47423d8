"""Completion in shells: names of models with their colons, and where a shell looks for the script."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, get_completion_class
from platformdirs import user_config_path, user_data_path

PROGRAM, VARIABLE = "reader-edge", "_READER_EDGE_COMPLETE"
SHELLS = ("bash", "zsh", "fish")
_MARK = "# completion of reader-edge"

# click's own hands over words that bash has cut at colons, which models' names have.
_BASH = """\
%(complete_func)s() {
    local IFS=$'\\n' completion type value files
    COMPREPLY=()
    for completion in $(COMP_LINE="${COMP_LINE:0:COMP_POINT}" COMP_WORDBREAKS="$COMP_WORDBREAKS" \\
        %(complete_var)s=bash_complete "$1"); do
        IFS=',' read -r type value <<< "$completion"
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default; files=$value ;;
            plain) COMPREPLY+=("$value") ;;
        esac
    done
    # Where there are names, bash adds no files by itself.
    if [[ $files && ${#COMPREPLY[@]} -gt 0 ]]; then
        for value in $(compgen -f -- "$files"); do
            COMPREPLY+=("$(printf %%q "$value")")
        done
    fi
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class _ColonBash(BashComplete):
    source_template = _BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        line = os.environ["COMP_LINE"]
        words = click.shell_completion.split_arg_string(line)[1:]
        return (words, "") if line[-1:].isspace() or not words else (words[:-1], words[-1])

    def format_completion(self, item: "CompletionItem[Any]") -> str:
        # What bash replaces begins behind the last colon, where it breaks words there.
        _, typed = self.get_completion_args()
        kept = typed.rpartition(":")[0] + ":" if ":" in typed and ":" in os.environ["COMP_WORDBREAKS"] else ""
        return f"{item.type},{item.value.removeprefix(kept)}"


add_completion_class(_ColonBash)


class ModelName(click.ParamType):  # type: ignore[type-arg]  # which is generic in new versions of click alone
    """A MODEL: completed by the names of models that are here, those of the catalogue, and files.

    is_stored: by the first alone.
    """

    name = "text"

    def __init__(self, is_stored: bool = False) -> None:
        self.is_stored = is_stored

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return str(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> "list[CompletionItem[Any]]":
        from reader_edge.models.catalogue import CATALOGUE
        from reader_edge.models.store import stored_models

        names = dict.fromkeys([*(model.name for model in stored_models()), *(() if self.is_stored else CATALOGUE)])
        found = [CompletionItem(name) for name in names if name.startswith(incomplete)]
        is_name = self.is_stored or (found and ":" in incomplete)
        return found if is_name else [*found, CompletionItem(incomplete, type="file")]


MODEL = ModelName()
STORED = ModelName(is_stored=True)


@dataclass(frozen=True, slots=True)
class ShellPlace:
    """script: where a shell's script is written. startup: the file that has it read; None where the shell finds it."""

    script: Path
    startup: Path | None


def completion_script(shell: str) -> str:
    """What a shell is to read."""
    kind = get_completion_class(shell)
    assert kind is not None
    made: str = kind(click.Command(PROGRAM), {}, PROGRAM, VARIABLE).source()
    return made


def install_completion(shell: str, environment: Mapping[str, str]) -> ShellPlace:
    """Write the script, and one marked line that has it read, if it is not there yet. Raises OSError."""
    home = Path(environment.get("HOME") or Path.home())
    if shell == "fish":
        place = ShellPlace(user_config_path("fish") / "completions" / f"{PROGRAM}.fish", None)
    else:
        folder = Path(environment.get("ZDOTDIR") or home) if shell == "zsh" else home
        place = ShellPlace(user_data_path(PROGRAM) / f"completion.{shell}", folder / f".{shell}rc")
    place.script.parent.mkdir(parents=True, exist_ok=True)
    place.script.write_text(completion_script(shell), encoding="utf-8")
    if place.startup is not None:
        before = place.startup.read_text(encoding="utf-8") if place.startup.exists() else ""
        if _MARK not in before:
            with place.startup.open("a", encoding="utf-8") as file:
                file.write(f"{'' if before.endswith(chr(10)) or not before else chr(10)}. '{place.script}' {_MARK}\n")
    return place
