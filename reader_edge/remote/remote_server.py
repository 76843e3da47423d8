"""Options of a model that runs elsewhere, behind `reader-edge serve`."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import click

import reader_edge
from reader_edge.chat.given_sampling import GivenSampling
from reader_edge.chat.prompt_input import PromptInput
from reader_edge.commands.options import FILE


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
        given: GivenSampling,
        sources: "reader_edge.DraftSources",
        shows_stats: bool,
        as_json: bool,
    ) -> None:
        """Print the server's answer."""
        from reader_edge.remote.remote_engine import RemoteEngine
        from reader_edge.remote.remote_run import RemotePrompt, read_key, run_remotely

        assert self.server is not None
        prompt = RemotePrompt(text, prompt_input.system, prompt_input.raw, prompt_input.template_args)
        key = read_key(self.api_key_file)
        with RemoteEngine(self.server, key, self.drafts, sources, self.tokenizer) as engine:
            sampling = given.chosen(engine.model.sampling)
            run_remotely(engine, prompt, replace(config, sampling=sampling), shows_stats, as_json, given.note(sampling))
