"""The official client's own ways to structured output and tools, over real sockets."""

from collections.abc import Iterator
from typing import Any, Literal

import pytest

from tests.reader_edge.server.http.test_sockets import QUESTION, ServerProcess

openai = pytest.importorskip("openai", reason="the official client is not installed: pip install 'reader-edge[dev]'")
pydantic = pytest.importorskip("pydantic")
pytest.importorskip("llguidance", reason="grammars need it: pip install 'reader-edge[grammar]'")


class Size(pydantic.BaseModel):  # type: ignore[misc, name-defined]
    width: int = pydantic.Field(ge=0, le=99)
    unit: Literal["mm", "cm"]


class Box(pydantic.BaseModel):  # type: ignore[misc, name-defined]
    """A box."""

    label: str = pydantic.Field(pattern="^[a-z]{1,8}$")
    sizes: list[Size] = pydantic.Field(min_length=1, max_length=2)
    note: Literal["fragile"] | None


class LookUp(pydantic.BaseModel):  # type: ignore[misc, name-defined]
    """Look a box up."""

    place: Literal["shelf", "cellar"]
    size: Size


ASK: Any = {"model": "demo", "messages": QUESTION, "seed": 3, "max_completion_tokens": 200}


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[Any]:
    with server.client() as client:
        yield client


def test_an_answer_is_parsed_as_of_the_requested_model(client: Any) -> None:
    message = client.chat.completions.parse(**ASK, response_format=Box).choices[0].message
    assert isinstance(message.parsed, Box)
    assert message.parsed == Box.model_validate_json(message.content)


def test_a_streamed_answer_is_too(client: Any) -> None:
    with client.chat.completions.stream(**ASK, response_format=Box) as stream:
        kinds = [event.type for event in stream]
        streamed = stream.get_final_completion().choices[0].message
    assert kinds.count("content.done") == 1
    assert streamed.parsed == client.chat.completions.parse(**ASK, response_format=Box).choices[0].message.parsed


def test_an_answer_that_is_cut_is_shown_as_such(client: Any) -> None:
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(**ASK | {"max_completion_tokens": 3}, response_format=Box)


def test_a_tool_is_called_with_arguments_of_its_model_and_its_answer_is_taken(client: Any) -> None:
    fields = ASK | {"tools": [openai.pydantic_function_tool(LookUp)], "tool_choice": "required"}
    completion = client.chat.completions.parse(**fields, parallel_tool_calls=False)
    assert completion.choices[0].finish_reason == "tool_calls"
    message = completion.choices[0].message
    (call,) = message.tool_calls
    assert call.function.name == "LookUp"
    assert isinstance(call.function.parsed_arguments, LookUp)
    output = {"role": "tool", "tool_call_id": call.id, "content": "It is there."}
    messages = [*QUESTION, message.model_dump(exclude_none=True, exclude={"parsed"}), output]
    for each in messages[1]["tool_calls"]:
        each["function"].pop("parsed_arguments", None)
    following = client.chat.completions.create(**fields | {"messages": messages, "tool_choice": "none"})
    assert following.choices[0].message.tool_calls is None
    assert following.choices[0].message.content


def test_streamed_calls_are_put_together_by_the_client(client: Any) -> None:
    fields = ASK | {"tools": [openai.pydantic_function_tool(LookUp)], "parallel_tool_calls": False}
    with client.chat.completions.stream(**fields, tool_choice="required") as stream:
        events = list(stream)
        final = stream.get_final_completion().choices[0]
    deltas = [event for event in events if event.type == "tool_calls.function.arguments.delta"]
    (done,) = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert "".join(event.arguments_delta for event in deltas) == done.arguments
    assert deltas  # how many, the load of the machine decides
    assert final.finish_reason == "tool_calls"
    whole = client.chat.completions.parse(**fields, tool_choice="required").choices[0].message.tool_calls[0]
    assert final.message.tool_calls[0].function.parsed_arguments == whole.function.parsed_arguments


def test_forms_that_openai_has_no_word_for_go_in_the_extra_body(client: Any) -> None:
    for extra in ({"structured_outputs": {"choice": ["yes", "no"]}}, {"guided_regex": "(yes|no)"}):
        answer = client.chat.completions.create(**ASK, extra_body=extra).choices[0].message.content
        assert answer in ("yes", "no")
        assert client.completions.create(model="demo", prompt="# tar", extra_body=extra).choices[0].text in (
            "yes",
            "no",
        )


def test_what_cannot_be_followed_is_a_bad_request(client: Any) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": {"type": "objekt"}}}
    for fields in ({"response_format": form}, {"extra_body": {"guided_regex": "(.{0,6000}[^a]{0,6000}){6000}"}}):
        with pytest.raises(openai.BadRequestError, match="simplify it") as caught:
            client.chat.completions.create(**ASK, **fields)
        assert caught.value.type == "invalid_request_error"
        with pytest.raises(openai.BadRequestError, match="simplify it"):
            client.chat.completions.create(**ASK, **fields, stream=True)
    answer = client.chat.completions.create(**ASK, response_format={"type": "json_object"}, temperature=0)
    assert answer.choices[0].message.content.startswith("{")
