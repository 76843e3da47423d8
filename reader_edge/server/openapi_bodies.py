"""What requests may ask, as JSON schemas: the bodies of the OpenAPI document."""

from typing import Any

from reader_edge.server.fields import IGNORED
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime.package.manifest import Manifest

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}


def maybe(kind: str, **limits: object) -> Schema:
    return {"type": [kind, "null"], **limits}


def object_of(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": [*properties]}


def list_of(items: Schema) -> Schema:
    return object_of(object={"const": "list"}, data={"type": "array", "items": items})


def _body(properties: Schema, required: list[str]) -> Schema:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _content(*kinds: str) -> Schema:
    """A text, or parts of these kinds."""
    return {"anyOf": [TEXT, {"type": "array", "items": object_of(type={"enum": [*kinds]}, text=TEXT)}]}


_ROLES = ["system", "developer", "user", "assistant"]
_LIKELY_TOKENS_COME_WITH_LOGPROBS: Schema = {
    "if": {"properties": {"top_logprobs": {"type": "integer", "minimum": 1}}, "required": ["top_logprobs"]},
    "then": {"properties": {"logprobs": {"const": True}}, "required": ["logprobs"]},
}
_FUNCTION: Schema = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-zA-Z0-9_.-]{1,64}$"},
        "description": maybe("string"),
        "parameters": maybe("object"),
        "strict": maybe("boolean"),
    },
    "required": ["name"],
}
_CALL = object_of(type={"const": "function"}, function=object_of(name=TEXT, arguments=TEXT))
_CALLS: Schema = {"tool_calls": maybe("array", items=_CALL), "tool_call_id": maybe("string"), "refusal": {}}
# A schema, a grammar or an expression is in a language of its own: that it is right is not told here.
_GUESS = object_of(type={"const": "content"}, content=_content("text")) | {"additionalProperties": False}
_FORMAT = maybe("object", properties={"type": {"enum": ["text", "json_object", "json_schema"]}}, required=["type"])
_FORMS: Schema = {
    "structured_outputs": maybe(
        "object", properties={"json": {}, "regex": {}, "choice": {}, "grammar": {}}, additionalProperties=False
    ),
    **{f"guided_{name}": {} for name in ("json", "regex", "choice", "grammar")},
}
_TOOLS: Schema = {
    "tools": maybe("array", items=object_of(type={"const": "function"}, function=_FUNCTION), maxItems=128),
    "tool_choice": {},
    "parallel_tool_calls": maybe("boolean"),
}


class RequestBodies:
    """Bodies of requests. A field that is null is as good as one left out."""

    def __init__(self, settings: ServerSettings, manifest: Manifest) -> None:
        token_id = {"type": "integer", "minimum": 0, "maximum": manifest.vocab_size - 1}
        self._token_ids: Schema = {"type": "array", "items": token_id, "minItems": 1}
        self._num_tokens = maybe("integer", minimum=1, maximum=settings.max_tokens)
        stop = {"type": "string", "minLength": 1, "maxLength": 1000}
        self._common: Schema = {
            "model": {"const": settings.model_name},
            "priority": maybe("integer"),
            "temperature": maybe("number", minimum=0, maximum=100),
            "top_p": maybe("number", exclusiveMinimum=0, maximum=1),
            "top_k": maybe("integer", minimum=-1),
            "min_p": maybe("number", minimum=0, maximum=1),
            "repetition_penalty": maybe("number", minimum=0.01, maximum=100),
            "seed": maybe("integer"),
            "stop": {"anyOf": [stop, {"type": "array", "items": stop, "maxItems": 16}, {"type": "null"}]},
            "logit_bias": maybe(
                "object",
                maxProperties=1024,
                propertyNames={"enum": [str(each) for each in range(min(100, manifest.vocab_size))]},
                additionalProperties={"type": "number"},
            ),
            "ignore_eos": maybe("boolean"),
            "stream": maybe("boolean"),
            "prediction": {"anyOf": [{"type": "null"}, _GUESS]},
            **_FORMS,
            **{name: {} for name in sorted(IGNORED)},
        }
        self._choices: Schema = {
            "max_tokens": self._num_tokens,
            "n": maybe("integer", minimum=1, maximum=settings.max_choices),
            "stream_options": maybe(
                "object", properties={"include_usage": maybe("boolean"), "include_sources": maybe("boolean")}
            ),
        }

    def chat(self) -> Schema:
        said = {"role": {"enum": [*_ROLES, "tool"]}, "content": _content("text"), **_CALLS, "name": maybe("string")}
        message = {"type": "object", "properties": said, "required": ["role"], "additionalProperties": False}
        own = _TOOLS | {
            "response_format": _FORMAT,
            "messages": {"type": "array", "items": message, "minItems": 1},
            "max_completion_tokens": self._num_tokens,
            "logprobs": maybe("boolean"),
            "top_logprobs": maybe("integer", minimum=0, maximum=20),
        }
        return _body(self._common | self._choices | own, ["model", "messages"]) | _LIKELY_TOKENS_COME_WITH_LOGPROBS

    def completions(self) -> Schema:
        prompt = {"anyOf": [{"type": "string", "minLength": 1}, self._token_ids]}
        prompts = {"type": "array", "items": prompt, "minItems": 1, "maxItems": 16}
        own = {
            "prompt": {"anyOf": [*prompt["anyOf"], prompts]},
            "response_format": _FORMAT,
            "logprobs": maybe("integer", minimum=0, maximum=5),
        }
        return _body(self._common | self._choices | own, ["model", "prompt"])

    def responses(self) -> Schema:
        message = object_of(role={"enum": _ROLES}, content=_content("input_text", "output_text"))
        call = object_of(type={"const": "function_call"}, name=TEXT, arguments=TEXT, call_id=TEXT)
        output = object_of(type={"const": "function_call_output"}, call_id=TEXT, output=_content("input_text"))
        tool = _FUNCTION | {"properties": _FUNCTION["properties"] | {"type": {"const": "function"}}}
        tool |= {"required": ["type", "name"]}
        own = _TOOLS | {
            "tools": maybe("array", items=tool, maxItems=128),
            "input": {"anyOf": [TEXT, {"type": "array", "items": {"anyOf": [message, call, output]}, "minItems": 1}]},
            "instructions": maybe("string"),
            "max_output_tokens": self._num_tokens,
            "text": maybe("object", properties={"format": _FORMAT}, additionalProperties=False),
        }
        return _body(self._common | own, ["model", "input"])
