"""What a server allows its clients."""

from dataclasses import dataclass

MAX_CHOICES = 16


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """model_name: what clients call the model.

    api_keys: any of them is asked for; none are where the server listens on this machine alone.
    max_tokens: of an answer, and what one may have that asks for no number. max_choices: answers to one request.
    max_body_bytes, max_body_s: of a request's body, and how long it may take to come. max_bodies_bytes: of those of all
    requests that are not answered yet. max_answer_s: waiting included.
    """

    model_name: str
    api_keys: tuple[bytes, ...] = ()
    max_tokens: int = 4096
    max_choices: int = MAX_CHOICES
    max_body_bytes: int = 4 << 20
    max_body_s: float = 30.0
    max_bodies_bytes: int = 64 << 20
    max_answer_s: float = 600.0
