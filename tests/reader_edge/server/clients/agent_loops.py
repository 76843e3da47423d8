"""A loop of tool calls with each of several libraries: `python agent_loops.py LIBRARY URL MODEL PROMPT`.

It runs in the library's own environment, where nothing of this project is installed.
"""


def read_file(path: str) -> str:
    """Read a text file.

    Args:
        path: Path of the file.
    """
    with open(path, encoding="utf-8") as file:
        return file.read()


def edit_file(path: str, old: str, new: str) -> str:
    """Replace a text in a file by another.

    Args:
        path: Path of the file.
        old: The text to replace.
        new: What stands there instead.
    """
    text = read_file(path)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text.replace(old, new))
    return "done"


# Tools end here.
import asyncio  # noqa: E402
import json  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable  # noqa: E402
from importlib import import_module  # noqa: E402
from typing import Any  # noqa: E402

TOOLS: dict[str, Callable[..., str]] = {"read_file": read_file, "edit_file": edit_file}
_TEXT = {"type": "string"}
SCHEMAS = {
    "read_file": {"type": "object", "properties": {"path": _TEXT}, "required": ["path"]},
    "edit_file": {
        "type": "object",
        "properties": {"path": _TEXT, "old": _TEXT, "new": _TEXT},
        "required": ["path", "old", "new"],
    },
}
CHAT_TOOLS = [
    {"type": "function", "function": {"name": name, "description": TOOLS[name].__doc__, "parameters": schema}}
    for name, schema in SCHEMAS.items()
]
MAX_TOKENS = 400


def with_openai(url: str, model: str, prompt: str) -> str:
    """Chat completions, streamed and whole in turn."""
    openai = import_module("openai")
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    messages: list[Any] = [{"role": "user", "content": prompt}]
    while True:
        fields: dict[str, Any] = {"model": model, "messages": messages, "tools": CHAT_TOOLS, "max_tokens": MAX_TOKENS}
        with client.chat.completions.stream(**fields) as stream:
            message = stream.get_final_completion().choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return message.content or ""
        for call in message.tool_calls:
            output = TOOLS[call.function.name](**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": output})


def with_openai_agents(url: str, model: str, prompt: str) -> str:
    """OpenAI's agents, by responses."""
    agents, openai = import_module("agents"), import_module("openai")
    agents.set_tracing_disabled(True)
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none")
    tools = [agents.function_tool(each) for each in TOOLS.values()]
    agent = agents.Agent("editor", tools=tools, model=agents.OpenAIResponsesModel(model, client))
    return str(agents.Runner.run_sync(agent, prompt).final_output)


def with_anthropic(url: str, model: str, prompt: str) -> str:
    anthropic = import_module("anthropic")
    client = anthropic.Anthropic(base_url=url, api_key="none")
    tools: list[Any] = [
        {"name": name, "description": TOOLS[name].__doc__, "input_schema": schema} for name, schema in SCHEMAS.items()
    ]
    messages: list[Any] = [{"role": "user", "content": prompt}]
    while True:
        with client.messages.stream(model=model, messages=messages, tools=tools, max_tokens=MAX_TOKENS) as stream:
            message = stream.get_final_message()
        messages.append({"role": "assistant", "content": message.content})
        calls = [block for block in message.content if block.type == "tool_use"]
        if not calls:
            return "".join(block.text for block in message.content if block.type == "text")
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": TOOLS[call.name](**call.input)} for call in calls
        ]
        messages.append({"role": "user", "content": results})


def with_ollama(url: str, model: str, prompt: str) -> str:
    ollama = import_module("ollama")
    client = ollama.Client(host=url)
    messages: list[Any] = [{"role": "user", "content": prompt}]
    while True:
        message = client.chat(model, messages, tools=list(TOOLS.values()), options={"num_predict": MAX_TOKENS}).message
        messages.append(message)
        if not message.tool_calls:
            return message.content or ""
        for call in message.tool_calls:
            output = TOOLS[call.function.name](**call.function.arguments)
            messages.append({"role": "tool", "tool_name": call.function.name, "content": output})


def with_litellm(url: str, model: str, prompt: str) -> str:
    litellm = import_module("litellm")
    messages: list[Any] = [{"role": "user", "content": prompt}]
    place = {"model": f"openai/{model}", "api_base": f"{url}/v1", "api_key": "none"}
    while True:
        answer = litellm.completion(**place, messages=messages, tools=CHAT_TOOLS, max_tokens=MAX_TOKENS)
        message = answer.choices[0].message
        messages.append(message.model_dump())
        if not message.tool_calls:
            return message.content or ""
        for call in message.tool_calls:
            output = TOOLS[call.function.name](**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": output})


def with_langchain(url: str, model: str, prompt: str) -> str:
    create_agent = import_module("langchain.agents").create_agent
    chat_type = import_module("langchain_openai").ChatOpenAI
    chat = chat_type(base_url=f"{url}/v1", api_key="none", model=model, max_tokens=MAX_TOKENS, streaming=True)
    agent = create_agent(chat, tools=list(TOOLS.values()))
    return str(agent.invoke({"messages": [("user", prompt)]})["messages"][-1].content)


def with_llama_index(url: str, model: str, prompt: str) -> str:
    agent_type = import_module("llama_index.core.agent.workflow").FunctionAgent
    chat_type = import_module("llama_index.llms.openai_like").OpenAILike
    flags = {"is_chat_model": True, "is_function_calling_model": True, "context_window": 32_000}
    chat = chat_type(model=model, api_base=f"{url}/v1", api_key="none", max_tokens=MAX_TOKENS, **flags)
    agent = agent_type(tools=list(TOOLS.values()), llm=chat, system_prompt="You edit files.")

    async def run() -> str:
        return str(await agent.run(prompt))

    return asyncio.run(run())


def with_pydantic_ai(url: str, model: str, prompt: str) -> str:
    provider_type = import_module("pydantic_ai.providers.openai").OpenAIProvider
    chat_type = import_module("pydantic_ai.models.openai").OpenAIChatModel
    chat = chat_type(model, provider=provider_type(base_url=f"{url}/v1", api_key="none"))
    return str(import_module("pydantic_ai").Agent(chat, tools=list(TOOLS.values())).run_sync(prompt).output)


def with_smolagents(url: str, model: str, prompt: str) -> str:
    smol = import_module("smolagents")
    chat = smol.OpenAIServerModel(model, api_base=f"{url}/v1", api_key="none", max_tokens=MAX_TOKENS)
    return str(smol.ToolCallingAgent([smol.tool(each) for each in TOOLS.values()], chat, max_steps=5).run(prompt))


LIBRARIES = {
    "openai": with_openai,
    "openai-agents": with_openai_agents,
    "anthropic": with_anthropic,
    "ollama": with_ollama,
    "litellm": with_litellm,
    "langchain": with_langchain,
    "llama-index": with_llama_index,
    "pydantic-ai": with_pydantic_ai,
    "smolagents": with_smolagents,
}

if __name__ == "__main__":
    print(LIBRARIES[sys.argv[1]](*sys.argv[2:]))
