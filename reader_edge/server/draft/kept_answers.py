"""The answers of devices, by the ids that these gave them, and how long one is kept whose device is away."""

import asyncio

from reader_edge.remote.frames import ANSWER_GONE, Resume
from reader_edge.remote.settings import hash_of
from reader_edge.server.api_error import ApiError
from reader_edge.server.draft.kept_answer import KeptAnswer

MAX_KEPT = 64  # answers whose devices are away


def own_id(caller: str, answer_id: bytes) -> bytes:
    """An answer's id here, which a device of another caller, by whose key was sent, does not have."""
    return caller.encode() + answer_id


class KeptAnswers:
    """keep_s: how long an answer waits for its device."""

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._answers: dict[bytes, KeptAnswer] = {}
        self._away: dict[bytes, asyncio.TimerHandle] = {}  # the longest away first

    def __len__(self) -> int:
        return len(self._answers)

    def check_new(self, answer_id: bytes) -> None:
        """Raise ApiError for an id that an answer has already."""
        if answer_id in self._answers:
            raise ApiError(409, "There is an answer of this id already: take it up, or ask with another id.")

    def add(self, answer_id: bytes, answer: KeptAnswer) -> None:
        self._answers[answer_id] = answer

    def taken_up(self, answer_id: bytes, resume: Resume) -> KeptAnswer:
        """The answer that a device comes back to. Raises ApiError where there is none, or the texts differ."""
        answer = self._answers.get(answer_id)
        if answer is None:
            limit = f"it is kept for {self._keep_s:g} seconds, and not over a restart"
            raise ApiError(404, f"The answer is not here any more ({limit}): ask again.", code=ANSWER_GONE)
        known = answer.token_ids[: resume.num_tokens]
        if len(known) < resume.num_tokens or hash_of(known) != resume.text_hash:
            raise ApiError(409, "The device has another text of this answer than the server: ask again.")
        if (timer := self._away.pop(answer_id, None)) is not None:
            timer.cancel()
        if answer.reader is not None:  # over a connection that is lost, though nobody knows yet
            answer.reader.cancel()
        answer.device.go_on()
        return answer

    def leave(self, answer_id: bytes) -> None:
        """Its device is away: the answer waits for it, or its end does; one that has not begun is dropped."""
        answer = self._answers.get(answer_id)
        if answer is None:
            return
        answer.device.hold()
        if not answer.is_begun:
            self.drop(answer_id)
            return
        self._away[answer_id] = asyncio.get_running_loop().call_later(self._keep_s, self.drop, answer_id)
        if len(self._away) > MAX_KEPT:
            self.drop(next(iter(self._away)))

    def drop(self, answer_id: bytes) -> None:
        """Forget an answer, which ends if it runs."""
        if (timer := self._away.pop(answer_id, None)) is not None:
            timer.cancel()
        if (answer := self._answers.pop(answer_id, None)) is not None:
            answer.give_up()

    def close(self) -> None:
        """Forget all of them."""
        for answer_id in list(self._answers):
            self.drop(answer_id)
