"""Every error a user can cause, as one tree. Each message is one sentence with the value at fault and the remedy."""

from pathlib import Path
from typing import Self


class ReaderEdgeError(Exception):
    """Base of all errors of this project.

    public: the sentence without what it has of a caller's texts, for logs; None where there is no such version.
    """

    public: str | None = None

    def with_public(self, sentence: str) -> Self:
        """The same error with its public sentence."""
        self.public = sentence
        return self


class InstallationError(ReaderEdgeError):
    """A package this feature needs is missing, or two installed ones exclude each other."""


class PackageError(ReaderEdgeError):
    """A model package cannot be read or is not what it says."""


class ManifestError(PackageError):
    """The manifest is missing, malformed or of a newer format."""


class IntegrityError(PackageError):
    """A file's size or checksum differs from the manifest."""


class SignatureError(PackageError):
    """A package's signature is missing, another's, or does not fit the package's files."""


class TokenizerError(ReaderEdgeError):
    """The tokenizer cannot be read or does not fit the model."""


class ConfigError(ReaderEdgeError):
    """An option is outside its range, or has no place beside another or with this model: the caller asks otherwise.

    The command line exits with 2.
    """


class UserFileError(ReaderEdgeError):
    """A file that a caller names cannot be read, or holds something else than it should."""


class PromptError(ReaderEdgeError):
    """A prompt is empty, too long or holds unknown token ids."""


class PromptTooLongError(PromptError):
    """A prompt does not fit into the model's context. num_tokens: that it has at least."""

    def __init__(self, sentence: str, num_tokens: int, max_context: int) -> None:
        super().__init__(sentence)
        self.num_tokens = num_tokens
        self.max_context = max_context


class ImageError(PromptError):
    """An image cannot be decoded, is larger than one may be, or no model's tower takes it."""


class ConversationError(PromptError):
    """A conversation holds what no chat template can be given. place: of it, as "messages[0].content"."""

    def __init__(self, sentence: str, place: str, public: str | None = None) -> None:
        super().__init__(sentence)
        self.place = place
        self.public = public


class ChatTemplateError(PromptError):
    """A chat template fails, which is no fault of the messages. reason: in words. path: of its file, if any."""

    def __init__(self, reason: str, path: Path | None = None) -> None:
        super().__init__(reason, path)
        self.reason = reason
        self.path = path

    def __str__(self) -> str:
        name = "The model's chat template" if self.path is None else f"The chat template '{self.path}'"
        remedy = "correct it, or give a plain prompt (with --raw on the command line)"
        return f"{name} fails on these messages ({self.reason}): {remedy}."


class AnswerError(ReaderEdgeError):
    """An answer does not have the form that was requested, as where it was cut."""


class CapacityError(ReaderEdgeError):
    """A request needs more memory than it may ever have."""


class BusyError(ReaderEdgeError):
    """As many requests run and wait as may, or this very thread is within a step."""


class ClosedError(ReaderEdgeError):
    """An engine that was closed gets a request."""


class ProviderError(ReaderEdgeError):
    """ONNX Runtime cannot run the graph here."""


class StageLostError(ProviderError):
    """A stage of a pipeline does not answer, or has forgotten its rows: they can be scored again."""


class MemoryShortageError(ProviderError):
    """A package's weights need more memory than is free."""


class DraftError(ReaderEdgeError):
    """A draft is no tree of known tokens, a source failed, or what a drafter saved cannot be used."""


class DraftModelError(ReaderEdgeError):
    """A package cannot draft for another one: their tokenizers differ, or they are the same."""


class DatastoreError(ReaderEdgeError):
    """A datastore or its corpus cannot be read, or was built with another tokenizer."""


class HistoryError(ReaderEdgeError):
    """A history file cannot be used, or belongs to another tokenizer."""


class BatchError(ReaderEdgeError):
    """A batch's input is not sound, or its output cannot be resumed."""


class ClusterError(ReaderEdgeError):
    """A Ray cluster cannot be reached."""


class SeriesError(ReaderEdgeError):
    """A series has gaps, is constant or too short, or a table does not hold what it should."""


class ProofError(ReaderEdgeError):
    """A proof that shows nothing."""


class RemoteError(ReaderEdgeError):
    """A server that answers from afar cannot be reached, refuses, or says what cannot be understood."""


class FrameError(ProviderError, RemoteError):
    """What came from another machine is no frame of this version, or does not fit what came before."""


class PrefixError(ReaderEdgeError):
    """A folder can be no prefix cache, or a file of one is damaged or another text's."""


class SessionError(ReaderEdgeError):
    """A session cannot be saved or loaded, or belongs to another package."""


class CatalogueError(ReaderEdgeError):
    """A name means no model, or what it means cannot be fetched, kept or removed."""


class UnknownModelError(CatalogueError, PackageError, ConfigError):
    """A caller names a model that is neither a path nor a name."""


class HubUnavailableError(CatalogueError):
    """The hub does not answer, or what asks it is not installed."""


class ExportError(ReaderEdgeError):
    """A model cannot be exported."""


class NoLaterLayersError(ExportError):
    """A model has no layers for later tokens, which `--speculator auto` takes where nothing else is here."""


class ExportPlaceError(ExportError, ConfigError):
    """What is exported or trained is not to be written where the caller says."""


class AdapterError(ReaderEdgeError):
    """An adapter cannot be read, changes what it cannot change here, or is for another model."""


class UnsupportedArchitectureError(ExportError):
    """The model's architecture is not one of the supported ones."""


class GgufError(ExportError):
    """A GGUF file is broken, or holds what cannot be mapped exactly."""


class ParityError(ExportError):
    """The exported graph does not compute what the source module computes."""
