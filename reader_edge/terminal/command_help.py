"""How `--help` of a command is laid out: what it does, its options by group, an example at the end."""

from collections.abc import Callable

import click

_GROUPS = {  # titles, and the parameters under each, whatever command has them
    "Conversation": (
        *("prompt", "system", "images", "mmproj_file", "session_file", "template_args", "raw", "is_text_literal"),
    ),
    "Serving": ("host", "port", "api_key_file", "name", "models_folder", "max_bytes", "idle_s", "strict_fields"),
    "Limits": (
        *("max_tokens", "max_reasoning_tokens", "stop"),
        *("max_batch", "max_waiting", "max_kv_bytes", "max_image_tokens", "max_answer_s", "max_kept_responses"),
    ),
    "Sampling": (
        *("temperature", "top_k", "top_p", "min_p", "seed", "is_greedy"),
        *("repetition_penalty", "frequency_penalty", "presence_penalty"),
    ),
    "Drafting": (
        *("is_drafted", "history", "workspace", "datastores", "draft_model", "draft_context", "has_speculator"),
        "rule",
    ),
    "Machine": ("threads", "provider", "uses_native", "is_near_tie_guarded", "is_calibrated", "signature_key"),
    "Output": ("stats", "as_json", "compare", "plot", "log_level", "log_format", "logs_prompts"),
}
_MANY = 10  # options that are listed in groups


class HelpfulCommand(click.Command):
    """A command whose help tells many options in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = (each for each in self.get_params(ctx) if isinstance(each, click.Option))
        records = [(each.name, record) for each in options if (record := each.get_help_record(ctx))]
        groups = _GROUPS if len(records) >= _MANY else {}
        grouped = {name: title for title, names in groups.items() for name in names}
        sections: dict[str, list[tuple[str, str]]] = {"Options": [], **{title: [] for title in groups}}
        for name, record in records:
            sections[grouped.get(name or "", "Options")].append(record)
        if len(sections["Options"]) == 1:  # --help alone
            sections["Options"] = sections.pop("Options")
        for title, rows in sections.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def helpful_command(
    short_help: str, *examples: str, name: str | None = None, group: click.Group | None = None, before: str = ""
) -> Callable[[Callable[..., None]], click.Command]:
    """A command, of `group` if there is one, with its line in the list of commands and examples at the end of its help.

    before: what stands before the examples.
    """
    # A \b keeps click from filling the lines.
    shown = "\n".join(("\b", "Example:" if len(examples) == 1 else "Examples:", *(f"  {line}" for line in examples)))
    make = click.command if group is None else group.command
    return make(name, cls=HelpfulCommand, short_help=short_help, epilog=before + shown)
