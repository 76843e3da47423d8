"""The prompt of `run`, from options and standard input, and the answer or chat that it starts."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import click

import reader_edge
from reader_edge.chat.sampling_options import SamplingOptions
from reader_edge_runtime.untrusted.user_input import as_text

if TYPE_CHECKING:
    import reader_edge_runtime
    from reader_edge_runtime.text.conversation import Prompt

IMAGE_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def dash_alone(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """The second argument, which can be a dash alone: others run a model with a prompt there."""
    if value not in (None, "-"):
        if context.params.get("prompt") is not None:
            raise click.UsageError(f"The prompt is given with -p, so {quote(value)} has no place: leave it out.")
        model, command = context.params.get("model") or "MODEL", context.command_path.partition(" ")[2]
        raise click.UsageError(f"A prompt is given with -p: reader-edge {command} {quote(model)} -p {quote(value)}")
    return value


@dataclass(frozen=True, slots=True)
class PromptInput:
    """The prompt. "-" as `dash` has standard input read, behind a prompt that is given.

    -p --prompt prompt: The prompt; '-' reads it from standard input. With a text here, standard input is read only
      where '-' is the argument behind MODEL, and follows the text.
    -s --system system: A system message, for models with a chat template.
    raw: Continue the prompt as plain text, without the chat template.
    --image images: An image that the prompt is about, for models that see: PNG, JPEG, WebP, GIF or BMP. Give it again
      for each further one.
    """

    dash: str | None
    prompt: str | None = None
    system: str | None = None
    raw: bool = False
    template_args: dict[str, Any] = field(default_factory=dict)
    images: Annotated[tuple[Path, ...], IMAGE_FILE] = ()

    def read(self) -> str | None:
        """The prompt as given and piped in, less one line end; None on a terminal: a chat is wanted.

        What is piped is left alone where a prompt is given without a dash: a job's standard input may never end.
        """
        if self.prompt is None and not self.dash and sys.stdin.isatty():
            return None
        given = [] if self.prompt in (None, "-") else [str(self.prompt)]
        texts = [*given, _piped()] if self.dash or not given else given
        if not all(texts):
            remedy = ": leave '-' out" if texts[0] else ": give some text with -p or on standard input"
            raise click.UsageError(f"{'Standard input' if texts[0] else 'The prompt'} is empty{remedy}.")
        return "\n\n".join(texts)

    @staticmethod
    def check_session(path: Path | None) -> None:
        """Raise SessionError for a file that is none, before a model is loaded for it."""
        from reader_edge.chat.answer import check_session_place

        if path is not None:
            check_session_place(path)

    def check_images(self, text: str | None) -> None:
        """Raise UsageError for images where they have no place."""
        if self.images and text is None:
            raise click.UsageError("--image needs a prompt: give one with -p.")
        if self.images and self.raw:
            raise click.UsageError("--image needs the chat template: leave --raw out.")

    def with_images(self, prompt: "Prompt", engine: "reader_edge_runtime.Engine") -> "Prompt":
        """A prompt with images, if any, before its last text. Raises PromptError for a model that sees none."""
        from reader_edge_runtime.text.image_parts import check_sees, with_images, with_neutral_parts, with_own_parts

        if not self.images:
            return prompt
        given = with_images(prompt, self.images)
        if engine.package.manifest.images is None:
            check_sees(given)
        return with_own_parts(with_neutral_parts(given))

    def beside(self, model: str | None) -> "tuple[str | None, PromptInput]":
        """The model and the prompt, where a dash alone came in the model's place."""
        return (None, replace(self, dash="-")) if model == "-" else (model, self)

    def answer(
        self,
        engine: "reader_edge_runtime.Engine",
        text: str | None,
        config: "reader_edge.GenerationConfig",
        given: SamplingOptions,
        session_file: Path | None,
        shows_stats: bool,
        as_json: bool,
        load: "Callable[[str], reader_edge_runtime.Engine]",
    ) -> None:
        """Print the answer to a text, or chat where there is none, in a session that goes on where one is named.

        load: the engine of another model, for a chat.
        """
        from reader_edge.chat.answer import SavedSession, build_prompt, print_json, print_text, with_template_args
        from reader_edge.chat.chat import Chat

        config = replace(config, is_scored=shows_stats or as_json)
        session = None if session_file is None else SavedSession(engine, session_file, self.system)
        if text is None:
            earlier = session.messages if session else ()
            chat = Chat(
                engine,
                config,
                self.system,
                self.raw,
                shows_stats,
                earlier,
                self.template_args,
                given,
                load if session is None else None,
            )
            chat.run()
            if session is not None:
                session.save(chat.messages)
            return
        sampling = given.chosen(engine.sampling)
        config = replace(config, sampling=sampling)
        built = self.with_images(build_prompt(engine, text, self.system, self.raw), engine)
        prompt = built if session is None else session.prompt(built)
        whole = with_template_args(prompt, self.template_args)
        if as_json:
            answer = print_json(engine, whole, config)
        else:
            answer = print_text(engine, whole, config, shows_stats, given.note(sampling))
        if session is not None:
            session.save_answer(prompt, answer)


def _piped() -> str:
    """What standard input has, less one line end."""
    piped = sys.stdin.buffer.read()
    try:
        return as_text(piped).removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"Standard input is not UTF-8 text (byte {error.start}): convert it.") from None
