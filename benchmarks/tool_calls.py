"""Calls of declared tools, replayed: how many tokens a pass, with guesses of the calls and without.

    python -m benchmarks.tool_calls PACKAGE [--budget 8]

Eight questions with four tools, and the calls that answer them, as a model that is trained to call tools writes them
without a grammar. Each call goes through the drafter alone: a pass takes the drafted tokens that come next, and one
more. "alone": nothing is known of other calls; "in turn": those before are in the history. PACKAGE is of any model; its
tokenizer and chat template count.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reader_edge_runtime.assembly import open_package
from reader_edge_runtime.config import DraftConfig, GenerationConfig
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.drafter import NO_GUESSES, DraftWish, Guesses, RequestContext
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.guesses import guessed_answer
from reader_edge_runtime.text.call_form import CALL_BEGIN, CALL_END
from reader_edge_runtime.text.conversation import Conversation
from reader_edge_runtime.text.tokenizer import Tokenizer

_TEXT = {"type": "string"}
_NUMBER = {"type": "integer"}
_DEPTH = 32


def _tool(name: str, description: str, **properties: object) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = [
    _tool("get_weather", "Current weather of a city", city=_TEXT, unit={"enum": ["celsius", "fahrenheit"]}),
    _tool("send_email", "Send an email", recipient=_TEXT, subject=_TEXT, body=_TEXT),
    _tool(
        "create_event",
        "Create a calendar event",
        title=_TEXT,
        date=_TEXT,
        duration_minutes=_NUMBER,
        attendees={"type": "array", "items": _TEXT},
    ),
    _tool(
        "search_flights",
        "Search flights",
        origin_airport=_TEXT,
        destination_airport=_TEXT,
        departure_date=_TEXT,
        number_of_passengers=_NUMBER,
    ),
]


def _flight(origin: str, destination: str, date: str, passengers: int) -> dict[str, object]:
    names = ("origin_airport", "destination_airport", "departure_date", "number_of_passengers")
    return dict(zip(names, (origin, destination, date, passengers), strict=True))


def _event(title: str, date: str, minutes: int, attendees: Sequence[str]) -> dict[str, object]:
    return {"title": title, "date": date, "duration_minutes": minutes, "attendees": list(attendees)}


CALLS: list[tuple[str, str, list[dict[str, object]]]] = [
    ("What is the weather in Paris in celsius?", "get_weather", [{"city": "Paris", "unit": "celsius"}]),
    (
        "Send an email to bob@example.com with the subject Hello and say that I am late.",
        "send_email",
        [{"recipient": "bob@example.com", "subject": "Hello", "body": "I am late."}],
    ),
    (
        "Plan a meeting with Ann and Bob on Friday for 30 minutes.",
        "create_event",
        [_event("Meeting with Ann and Bob", "Friday", 30, ["Ann", "Bob"])],
    ),
    (
        "Find flights from Berlin to Rome on 3 May for two people.",
        "search_flights",
        [_flight("BER", "FCO", "2026-05-03", 2)],
    ),
    ("Is it warm in Madrid?", "get_weather", [{"city": "Madrid", "unit": "celsius"}]),
    ("Book a dentist appointment on Monday.", "create_event", [_event("Dentist appointment", "Monday", 60, [])]),
    (
        "Weather in Oslo and Bergen in fahrenheit?",
        "get_weather",
        [{"city": "Oslo", "unit": "fahrenheit"}, {"city": "Bergen", "unit": "fahrenheit"}],
    ),
    (
        "Flights from Oslo to Paris on 19 July for four?",
        "search_flights",
        [_flight("OSL", "CDG", "2026-07-19", 4)],
    ),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path)
    parser.add_argument("--budget", type=int, default=8, help="drafted tokens a pass")
    options = parser.parse_args()
    tokenizer = Tokenizer.open(open_package(options.package))
    for in_turn in (False, True):
        for is_guessed in (False, True):
            num_tokens, num_passes = replay(tokenizer, options.budget, is_guessed, in_turn)
            print(
                f"{'in turn' if in_turn else 'alone'}, {'with' if is_guessed else 'without'} guesses: "
                f"{num_tokens} tokens, {num_passes} passes, {num_tokens / num_passes:.2f} tokens a pass"
            )


def replay(tokenizer: Tokenizer, budget: int, is_guessed: bool, in_turn: bool) -> tuple[int, int]:
    """Tokens and passes of all calls."""
    drafter = RetrievalDrafter(DraftConfig()).wait()
    num_tokens = num_passes = 0
    for question, name, arguments in CALLS:
        if not in_turn:
            drafter.forget()
        prompt = Conversation([{"role": "user", "content": question}], TOOLS)
        calls = [json.dumps({"name": name, "arguments": each}) for each in arguments]
        text = tokenizer.encode_chat(prompt)
        said = "\n".join(CALL_BEGIN + call + CALL_END for call in calls)
        answer = tokenizer.encode(said, adds_special_tokens=False)
        guesses = guessed_answer(prompt, text, GenerationConfig(), tokenizer, len(text)) if is_guessed else NO_GUESSES
        num_tokens += len(answer)
        num_passes += _replay(drafter, text, answer, guesses, budget)
    return num_tokens, num_passes


def _replay(drafter: RetrievalDrafter, text: list[int], answer: list[int], guesses: Guesses, budget: int) -> int:
    """Passes of one answer, the prompt's own included."""
    request = drafter.begin(RequestContext(text, guesses))
    num_passes = 1
    text.append(answer[0])
    place = 1
    while place < len(answer):
        (tree,) = drafter.draft([DraftWish(request, budget + 1, _DEPTH)])
        assert isinstance(tree, DraftTree)
        node, end = 0, place
        while end < len(answer) and (node := tree.child(node, answer[end])) > 0:
            end += 1
        text += answer[place : end + 1]
        place = end + 1
        num_passes += 1
        request.observe(None)
    request.finish()
    return num_passes


if __name__ == "__main__":
    main()
