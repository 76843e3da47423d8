"""The caller's guess of the answer, which is drafted from."""

from reader_edge.server.api_error import ApiError
from reader_edge.server.fields import Fields
from reader_edge.server.messages import text_of

_NOTHING = {"type": "content", "content": ""}


def read_prediction(fields: Fields) -> str:
    """The text of `prediction`; "" where there is none. Raises ApiError."""
    value = fields.get("prediction", dict, _NOTHING, "an object with the type 'content' and a 'content'")
    if value.get("type") != "content" or set(value) - {"type", "content"}:
        raise ApiError(400, "'prediction' must have the type 'content' and a 'content', and no more.", "prediction")
    return text_of(value.get("content"), "prediction.content", "prediction")
