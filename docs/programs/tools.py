from reader_edge import Engine, Message


def temperature(city: str) -> str:
    """The temperature in a city.

    Args:
        city: its name
    """
    return f"21 degrees in {city}"


messages: list[Message] = [{"role": "user", "content": "How warm is it in Bern?"}]
with Engine.load("qwen2.5:0.5b") as engine:
    while (answer := engine.generate(messages, tools=[temperature], max_tokens=200)).tool_calls:
        messages.append(answer.message)
        for call in answer.tool_calls:
            content = temperature(**call.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
    print(answer.text)
