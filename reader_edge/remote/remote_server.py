"""`reader-edge run --server`: options of a model that runs elsewhere, and its answer."""

import json
import time
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

import reader_edge
from reader_edge.chat.prompt_input import PromptInput
from reader_edge.chat.sampling_options import SamplingOptions
from reader_edge.commands.options import FILE

if TYPE_CHECKING:
    from reader_edge_runtime.text.conversation import Encodable

_MAX_KEY_FILE = 1 << 20


@dataclass(frozen=True, slots=True)
class RemoteServer:
    """Where the model is, if it is not here; how this device drafts for it, and by which key and tokenizer.

    server: Ask a model behind `reader-edge serve` at this address.
    drafts: With --server: hints: add drafts from local texts; verify: verify only this device's drafts; none.
    api_key_file: With --server: a file with the server's key.
    tokenizer: With --server: the model's tokenizer.json or the folder that has it, not to fetch it.
    """

    server: Annotated[str | None, "URL"] = None
    drafts: Annotated[str, ("hints", "verify", "none")] = "hints"
    api_key_file: Annotated[Path | None, FILE] = None
    tokenizer: Annotated[Path | None, click.Path(exists=True, path_type=Path)] = None

    def check(self, model: str | None, engine_config: "reader_edge.EngineConfig", has_more: bool) -> None:
        """Raise UsageError for options that have no place beside these. has_more: whether there is a session or so."""
        if self.server is None:
            if self.api_key_file or self.tokenizer:
                raise click.UsageError(
                    "--api-key-file and --tokenizer are for a model behind --server: leave them out."
                )
            return
        if model is not None:
            raise click.UsageError(f"The model is the one of {self.server}: leave {model} out.")
        if engine_config != reader_edge.EngineConfig(is_drafted=engine_config.is_drafted):
            raise click.UsageError("With --server the model runs elsewhere: leave options about running it out.")
        if has_more:
            raise click.UsageError(
                "--session, --compare, --rule and chats are for a model that is here: leave --server out."
            )

    def answer(
        self,
        prompt_input: PromptInput,
        text: str,
        config: "reader_edge.GenerationConfig",
        given: SamplingOptions,
        sources: "reader_edge.DraftSources",
        shows_stats: bool,
        as_json: bool,
    ) -> None:
        """Print the server's answer, as it comes or as JSON. Raises what `RemoteEngine.stream` does."""
        from reader_edge.remote.remote_engine import RemoteEngine
        from reader_edge.terminal.console import pairs_table, print_table
        from reader_edge.terminal.model_text import ModelText

        assert self.server is not None
        key = read_key(self.api_key_file)
        with RemoteEngine(self.server, key, self.drafts, sources, self.tokenizer) as engine:
            prompt = _encodable(prompt_input, text, engine.model.has_chat_template)
            sampling = given.chosen(engine.model.sampling)
            config, start = replace(config, sampling=sampling), time.perf_counter()
            if as_json:
                result = engine.generate(prompt, config)
                stats = {field.name: getattr(result.stats, field.name) for field in fields(result.stats)}
                stats["sampling"] = asdict(result.sampling or reader_edge.SamplingConfig())
                answer = {"text": result.text, "token_ids": result.token_ids, "finish_reason": result.finish_reason}
                lossy = {"deviation": result.deviation} if result.deviation else {}
                click.echo(json.dumps(answer | {"stats": stats, "seconds": time.perf_counter() - start} | lossy))
                return
            output = ModelText()
            total = output.print_answer(engine.stream(prompt, config), engine.context_length)
            if shows_stats:
                output.start_line()
                print_table(pairs_table("Answer", _pairs(total, str(sampling), time.perf_counter() - start)))
            elif note := given.note(sampling):
                output.start_line()
                click.echo(note, err=True)


def read_key(path: Path | None) -> str | None:
    """The first key of a file, one a line. Raises UserFileError."""
    from reader_edge_runtime.errors import UserFileError
    from reader_edge_runtime.untrusted.plain_file import check_secret
    from reader_edge_runtime.untrusted.user_input import BYTE_ORDER_MARK, read_bounded

    if path is None:
        return None
    try:
        lines = read_bounded(path, _MAX_KEY_FILE).removeprefix(BYTE_ORDER_MARK).decode("ascii").split()
    except (OSError, UnicodeDecodeError) as error:
        raise UserFileError(f"No key can be read from '{path}': give the server's key in it, as text.") from error
    if not lines:
        raise UserFileError(f"'{path}' is empty: write the server's key into it.")
    check_secret(path, UserFileError, "ask for another key where they know this one")
    return lines[0]


def _encodable(given: PromptInput, text: str, has_chat_template: bool) -> "Encodable":
    """The prompt as it is sent. Raises UsageError for what has no place without a chat template."""
    if has_chat_template and not given.raw:
        system = [] if given.system is None else [{"role": "system", "content": given.system}]
        messages = [*system, {"role": "user", "content": text}]
        return reader_edge.Conversation(messages, (), given.template_args, images=given.images)
    if given.system is not None or given.template_args or given.images:
        options = "-s, --image and --template-arg"
        raise click.UsageError(f"No chat template is used here, which {options} are for: leave them out.")
    return text


def _pairs(stats: "reader_edge.GenerationStats", sampling: str, seconds: float) -> list[tuple[str, str]]:
    accepted = ", ".join(f"{source}: {number}" for source, number in sorted(stats.accepted_by_source.items()))
    return [
        ("prompt tokens", f"{stats.num_prompt_tokens} ({stats.num_reused_tokens} reused)"),
        ("tokens", f"{stats.num_tokens} in {stats.num_steps} steps"),
        ("seconds, the way included", f"{seconds:.2f}"),
        ("tokens/s, the way included", f"{stats.num_tokens / seconds:.1f}"),
        ("tokens/s on the server", f"{stats.tokens_per_s:.1f}"),
        ("acceptance length", f"{stats.acceptance_length:.2f} tokens a step"),
        ("accepted by source", accepted or "nothing drafted"),
        ("sampling", sampling),
    ]
