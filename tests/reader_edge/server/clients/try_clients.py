"""Outside clients, unmodified, against a server that runs: each thing that they do, and whether it went well.

    pip install openai ollama langchain-openai langchain-ollama llm llm-ollama litellm     # in any environment
    reader-edge serve smollm2:135m --port 11434
    python -m tests.reader_edge.server.clients.try_clients http://127.0.0.1:11434 smollm2:135m [CLIENT ...]

Clients that are not installed are named and left out. Open WebUI is tried by requests that were
recorded from it. The exit code is 1 if anything failed.
"""

import functools
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

URL, MODEL = sys.argv[1].rstrip("/"), sys.argv[2]
CHOSEN = sys.argv[3:]
SENT = [{"role": "user", "content": "What is tar? Answer in one sentence."}]
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # which LiteLLM would fetch
OPEN_WEBUI_REQUESTS = Path(__file__).parents[3] / "data" / "open_webui_requests.json"
SCHEMA = {
    "title": "box",
    "type": "object",
    "properties": {"size": {"type": "string", "enum": ["S", "L"]}},
    "required": ["size"],
}
PARAMETERS = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
TOOL = {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": PARAMETERS}}

Try = Callable[[], object]


def check(value: object) -> None:
    """Fail unless this is true, or there is something in it."""
    if not value:
        raise AssertionError(f"got {value!r}")


def is_sized(text: str) -> bool:
    return json.loads(text)["size"] in ("S", "L")


def try_openai() -> Iterator[tuple[str, Try]]:
    openai = import_module("openai")

    client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none")
    chat = client.chat.completions.create
    fields: dict[str, Any] = {"model": MODEL, "messages": SENT, "max_tokens": 40, "temperature": 0}
    form = {"type": "json_schema", "json_schema": {"name": "box", "schema": SCHEMA, "strict": True}}
    yield "models", lambda: check(MODEL in [each.id for each in client.models.list()])
    yield "chat", lambda: check(chat(**fields).choices[0].message.content)
    yield "stream", lambda: check("".join(p.choices[0].delta.content or "" for p in chat(**fields, stream=True)))
    yield "n", lambda: check(len(chat(**fields | {"temperature": 1}, n=2).choices) == 2)
    yield "stop", lambda: check(" a" not in chat(**fields, stop=[" a"]).choices[0].message.content)
    yield "JSON schema", lambda: check(is_sized(chat(**fields, response_format=form).choices[0].message.content))
    yield (
        "tools",
        lambda: check(
            chat(**fields | {"max_tokens": 200}, tools=[TOOL], tool_choice="required").choices[0].message.tool_calls
        ),
    )
    yield "log-probabilities", lambda: check(chat(**fields, logprobs=True, top_logprobs=2).choices[0].logprobs.content)
    yield "completion", lambda: check(client.completions.create(model=MODEL, prompt="# tar", max_tokens=8).choices)
    yield "response", lambda: check(client.responses.create(model=MODEL, input="Hi", max_output_tokens=8).output_text)

    def refused() -> None:
        try:
            chat(model="other", messages=SENT)
        except openai.NotFoundError as error:
            check("There is no model" in str(error))
        else:
            raise AssertionError("another model was answered for")

    yield "errors", refused


def try_ollama() -> Iterator[tuple[str, Try]]:
    ollama = import_module("ollama")

    client = ollama.Client(host=URL)
    fields = {"model": MODEL, "messages": SENT, "options": {"num_predict": 40, "temperature": 0}}
    one = {"model": MODEL, "prompt": "What is tar?", "options": {"num_predict": 40}}
    yield "models", lambda: check(client.list().models[0].model)
    yield "show", lambda: check("completion" in client.show(MODEL).capabilities)
    yield "running models", lambda: check(client.ps().models)
    yield "pull", lambda: check(client.pull(MODEL).status == "success")
    yield "chat", lambda: check(client.chat(**fields).message.content)
    yield "stream", lambda: check("".join(part.message.content for part in client.chat(**fields, stream=True)))
    yield "generate", lambda: check(client.generate(**one).response)
    yield "generate, streamed", lambda: check("".join(each.response for each in client.generate(**one, stream=True)))
    yield "stop", lambda: check(" a" not in client.generate(MODEL, "# tar", options={"stop": [" a"]}).response)
    yield "JSON schema", lambda: check(is_sized(client.chat(**fields, format=SCHEMA).message.content))
    yield "JSON", lambda: check(client.generate(**one, format="json").response.lstrip().startswith("{"))
    yield "tools", lambda: check(client.chat(**fields, tools=[TOOL]).done)
    yield "log-probabilities", lambda: check(client.generate(**one, logprobs=True).logprobs)

    def refused() -> None:
        try:
            client.chat("other", SENT)
        except ollama.ResponseError as error:
            check(error.status_code == 404 and "not found" in error.error)
        else:
            raise AssertionError("another model was answered for")

    yield "errors", refused


def try_langchain_openai() -> Iterator[tuple[str, Try]]:
    chat_type = import_module("langchain_openai").ChatOpenAI
    yield from _langchain(chat_type(base_url=f"{URL}/v1", api_key="none", model=MODEL, max_tokens=200, temperature=0))


def try_langchain_ollama() -> Iterator[tuple[str, Try]]:
    chat_type = import_module("langchain_ollama").ChatOllama
    yield from _langchain(chat_type(base_url=URL, model=MODEL, num_predict=200, temperature=0), is_ollama=True)
    made = chat_type(base_url=URL, model=MODEL, validate_model_on_init=True)
    yield "model is looked for", lambda: check(made.model)


def _langchain(chat: Any, is_ollama: bool = False) -> Iterator[tuple[str, Try]]:
    messages = import_module("langchain_core.messages")

    def weather(place: str) -> str:
        """The weather at a place."""
        return f"Rain in {place}."

    choice = {} if is_ollama else {"tool_choice": "required"}  # which Ollama does not have
    bound = chat.bind_tools([weather], **choice)
    yield "chat", lambda: check(chat.invoke("Hi").content)
    yield "stream", lambda: check("".join(part.content for part in chat.stream("Hi")))
    yield "batch", lambda: check(len(chat.batch(["Hi", "# tar"])) == 2)
    yield "stop", lambda: check(" a" not in chat.invoke("What is tar?", stop=[" a"]).content)
    yield (
        "JSON schema",
        lambda: check(chat.with_structured_output(SCHEMA, method="json_schema").invoke("Size?")["size"]),
    )
    if is_ollama:
        yield "tools", lambda: check(bound.invoke("What is the weather in Paris?").response_metadata["done"])
    else:
        yield "tools", lambda: check(bound.invoke("What is the weather in Paris?").tool_calls)

    def loop() -> None:
        call = {"name": "weather", "args": {"place": "Oslo"}, "id": "call_1", "type": "tool_call"}
        sent, called = messages.HumanMessage("Weather?"), messages.AIMessage("", tool_calls=[call])
        output = [sent, called, messages.ToolMessage("Rain.", tool_call_id="call_1")]
        check(bound.invoke(output) if is_ollama else chat.invoke(output))

    yield "tools' answers", loop


def try_llm() -> Iterator[tuple[str, Try]]:
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"LLM_USER_PATH": folder, "OLLAMA_HOST": URL}
        entry = {"model_id": "here", "model_name": MODEL, "api_base": f"{URL}/v1", "can_stream": True, "tools": True}
        with open(os.path.join(folder, "extra-openai-models.yaml"), "w", encoding="utf-8") as file:
            json.dump([entry], file)  # which is YAML too

        def run(*arguments: str) -> str:
            command = [sys.executable, "-m", "llm", *arguments]
            done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
            check(done.returncode == 0 or done.stderr)
            if done.returncode:
                raise AssertionError(done.stderr.strip().splitlines()[-1])
            return done.stdout.strip()

        yield "OpenAI, streamed", lambda: check(run("-m", "here", "-o", "max_tokens", "30", "Hi"))
        yield "OpenAI, whole", lambda: check(run("-m", "here", "--no-stream", "-o", "max_tokens", "30", "Hi"))
        if importlib.util.find_spec("llm_ollama"):
            yield "Ollama, models", lambda: check(MODEL.partition(":")[0] in run("ollama", "models"))
            yield "Ollama, streamed", lambda: check(run("-m", f"ollama/{MODEL}", "-o", "num_predict", "30", "Hi"))
            yield (
                "Ollama, whole",
                lambda: check(run("-m", f"ollama/{MODEL}", "--no-stream", "-o", "num_predict", "30", "Hi")),
            )
            yield (
                "Ollama, schema",
                lambda: check(json.loads(run("-m", f"ollama/{MODEL}", "--schema", "name, age int", "A dog"))),
            )


def try_litellm() -> Iterator[tuple[str, Try]]:
    litellm = import_module("litellm")

    for kind, base in (("openai", f"{URL}/v1"), ("ollama", URL), ("ollama_chat", URL)):
        fields = {"model": f"{kind}/{MODEL}", "messages": SENT, "api_base": base, "api_key": "none", "max_tokens": 60}
        ask = functools.partial(litellm.completion, **fields)
        form = {"type": "json_schema", "json_schema": {"name": "box", "schema": SCHEMA}}
        yield f"{kind}: chat", functools.partial(_litellm_text, ask)
        yield f"{kind}: stream", functools.partial(_litellm_stream, ask)
        yield f"{kind}: JSON schema", functools.partial(_litellm_text, ask, is_sized, response_format=form)
        yield f"{kind}: tools", functools.partial(_litellm_text, ask, lambda text: True, tools=[TOOL])


def _litellm_text(ask: Callable[..., Any], is_right: Callable[[str], object] = bool, **more: object) -> None:
    check(is_right(ask(**more).choices[0].message.content))


def _litellm_stream(ask: Callable[..., Any]) -> None:
    check("".join(part.choices[0].delta.content or "" for part in ask(stream=True)))


def try_open_webui() -> Iterator[tuple[str, Try]]:
    """The requests of tests/data/open_webui_requests.json, each answered or refused as it is noted there."""

    httpx = import_module("httpx")

    def ask(method: str, path: str, body: dict[str, Any] | None, refused: str | None) -> None:
        body = body and body | {"model": MODEL}
        answer = httpx.request(method, f"{URL}{path}", json=body, timeout=300).text
        check(refused in answer if refused else answer and '"error":' not in answer.replace('"error": null', ""))

    for each in json.loads(OPEN_WEBUI_REQUESTS.read_text("utf-8")):
        yield each["name"], functools.partial(ask, each["method"], each["path"], each["body"], each.get("refused"))


CLIENTS = {
    "openai": ("openai", try_openai),
    "ollama": ("ollama", try_ollama),
    "langchain-openai": ("langchain_openai", try_langchain_openai),
    "langchain-ollama": ("langchain_ollama", try_langchain_ollama),
    "llm": ("llm", try_llm),
    "litellm": ("litellm", try_litellm),
    "open-webui": ("httpx", try_open_webui),
}


def main() -> int:
    num_failed = 0
    for name, (module, tries) in CLIENTS.items():
        if CHOSEN and name not in CHOSEN:
            continue
        if importlib.util.find_spec(module) is None:
            print(f"{name}: not installed")
            continue
        passed, failed = [], []
        for what, attempt in tries():
            try:
                attempt()
                passed.append(what)
            except Exception as error:
                if "-v" in os.environ.get("TRY_CLIENTS", ""):
                    traceback.print_exc()
                failed.append(f"{what} ({type(error).__name__}: {str(error)[:300]})")
        num_failed += len(failed)
        print(f"{name}: {len(passed)} of {len(passed) + len(failed)} passed: {', '.join(passed)}", flush=True)
        for each in failed:
            print(f"  failed: {each}", flush=True)
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main())
