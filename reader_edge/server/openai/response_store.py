"""Responses that are kept in memory, for a client that goes on from one by its id."""

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from reader_edge.server.api_error import ApiError, interface_of
from reader_edge.server.completion import Json
from reader_edge.server.openai.messages import MAX_ITEMS
from reader_edge.server.openai.response_input import InputItem, InputMessage, items_of_output

_NONE = "No responses are kept here: start the server with `--keep-responses N`, or send the whole 'input' again."

_MAX_CHARACTERS = 256 << 20  # of all kept responses together: a request's items may take 4 MiB, or 32 with images


@dataclass(frozen=True, slots=True)
class KeptResponse:
    """caller: whose key the request had. items: the conversation up to its end. shown: the response, as JSON."""

    caller: str
    items: tuple[InputItem, ...]
    shown: str
    num_characters: int


class ResponseStore:
    """The last responses of one server, whose oldest goes first. A key's are nothing to the holders of others."""

    def __init__(self, most: int = 0) -> None:
        self.most = most
        self._kept: OrderedDict[str, KeptResponse] = OrderedDict()

    def keep(self, caller: str, items: str | Sequence[InputItem], shown: Json) -> None:
        """Keep a response that has ended. items: what it answers."""
        whole, text = (*as_items(items), *items_of_output(shown["output"])), json.dumps(shown)
        self._kept[str(shown["id"])] = KeptResponse(caller, whole, text, len(repr(whole)) + len(text))
        num_characters = sum(each.num_characters for each in self._kept.values())
        while len(self._kept) > self.most or num_characters > _MAX_CHARACTERS:
            num_characters -= self._kept.popitem(last=False)[1].num_characters

    def continued(self, caller: str, name: str, items: str | Sequence[InputItem]) -> list[InputItem]:
        """The conversation of a response, and what comes after it. Raises ApiError."""
        whole = [*self._found(caller, name).items, *as_items(items)]
        if len(whole) > MAX_ITEMS:
            sentence = f"The conversation has {len(whole)} items, but at most {MAX_ITEMS} are read: begin a new one."
            raise ApiError(400, sentence, "previous_response_id")
        return whole

    def _found(self, caller: str, name: str) -> KeptResponse:
        if not self.most:
            raise ApiError(400, _NONE, "previous_response_id", "unsupported_parameter")
        kept = self._kept.get(name)
        if kept is None or kept.caller != caller:
            rest = "or not any more: send the whole conversation as 'input'."
            public = f"A response of this id is not kept here, {rest}"
            sentence = f"A response {name!r:.100} is not kept here, {rest}"
            raise ApiError(404, sentence, "previous_response_id", "response_not_found", public)
        return kept

    @property
    def routes(self) -> list[Route]:
        """What tells a kept response, and what drops it."""
        return [
            Route("/v1/responses/{name}", self._tell, methods=["GET"]),
            Route("/v1/responses/{name}", self._drop, methods=["DELETE"]),
        ]

    async def _tell(self, request: Request) -> Response:
        try:
            shown = self._found(request.scope.get("caller", ""), request.path_params["name"]).shown
        except ApiError as error:
            return error.response(interface_of(request))
        return Response(shown, media_type="application/json")

    async def _drop(self, request: Request) -> Response:
        name = request.path_params["name"]
        try:
            self._found(request.scope.get("caller", ""), name)
        except ApiError as error:
            return error.response(interface_of(request))
        del self._kept[name]
        return Response(json.dumps({"id": name, "object": "response", "deleted": True}), media_type="application/json")


def as_items(items: str | Sequence[InputItem]) -> Sequence[InputItem]:
    return [InputMessage(role="user", content=items)] if isinstance(items, str) else items
