"""The page at `/`: what it may do, what it gets, and how it behaves in a browser."""

import base64
import hashlib
import re
import shutil
import socket
from collections.abc import Iterator
from threading import Thread
from typing import Any

import pytest
import uvicorn

from reader_edge.server.openai.choices import DraftSpans
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine, Engine, GenerationChunk, GenerationConfig
from tests.reader_edge.server.conftest import LIMIT_S, Served
from tests.reader_edge.server.openai.test_answers import events

KEY = "0123456789abcdef"
MESSAGES = [{"role": "user", "content": "What is tar?"}]


def test_it_is_one_file_that_may_only_run_itself_and_ask_its_own_server(served: Served) -> None:
    page = served.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert 'data-form="chat"' in page.text
    policy = dict(rule.split(" ", 1) for rule in page.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    for kind in ("script", "style"):
        (content,) = re.findall(f"<{kind}[^>]*>(.*?)</{kind}>", page.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert policy[f"{kind}-src"] == f"'sha256-{digest}'"
    assert not re.search(r"https?:|//[a-z]|innerHTML|\son[a-z]+=|\sstyle=|\ssrc=", page.text)
    assert page.headers["x-content-type-options"] == "nosniff"


def test_with_keys_the_page_itself_is_open_and_nothing_else(async_engine: AsyncEngine) -> None:
    served = Served(async_engine, ServerSettings("demo", (KEY.encode(),)), "example.com")
    assert served.get("/").status_code == 200
    assert served.get("/v1/models").status_code == 401


def test_a_stream_tells_what_drafted_its_text_to_who_asks(served: Served, chat_engine: Engine) -> None:
    sent = {"model": "demo", "messages": MESSAGES, "temperature": 0, "max_tokens": 60, "stream": True}
    options = {"stream_options": {"include_usage": True, "include_sources": True}}
    *pieces, last = events(served.post("/v1/chat/completions", sent | options))
    choices = [piece["choices"][0] for piece in pieces]
    spans = [span for choice in choices for span in choice["draft_sources"]]
    assert "".join(text for text, _ in spans) == "".join(choice["delta"].get("content", "") for choice in choices)
    num_drafted = sum(source != "" for _, source in spans)
    assert 0 < num_drafted <= last["usage"]["completion_tokens_details"]["accepted_prediction_tokens"]
    assert {source for _, source in spans} <= {"", "context", "history", "logits", "datastore"}
    plain = events(served.post("/v1/chat/completions", sent))
    assert not any("draft_sources" in piece["choices"][0] for piece in plain)


def test_chunks_tell_for_each_token_what_drafted_it(engine: Engine) -> None:
    chunks = list(engine.stream("# tar\n\n" * 8, GenerationConfig(max_tokens=80, ignores_eos=True)))
    sources = [source for chunk in chunks for source in chunk.sources]
    assert len(sources) == 80
    assert sources[0] == ""
    stats = chunks[-1].stats
    assert stats is not None
    assert {name: sources.count(name) for name in set(sources) - {""}} == dict(stats.accepted_by_source)


def test_texts_that_come_late_or_are_spelled_otherwise_are_still_shown_whole(engine: Engine) -> None:
    ids = engine.tokenizer.encode("# tar is")
    texts = [engine.tokenizer.decode([token_id]) for token_id in ids]
    spans = DraftSpans(engine.tokenizer)
    assert spans.push(GenerationChunk("", tuple(ids[:2]), sources=("", "context"))) == []
    output = spans.push(GenerationChunk("".join(texts)[:-1], tuple(ids[2:]), sources=("logits",) * (len(ids) - 2)))
    assert "".join(text for text, _ in output) == "".join(texts)[:-1]
    assert output[1] == (texts[1], "context")
    assert spans.push(GenerationChunk(texts[-1][-1:] + "more", (), "stop")) == [
        (texts[-1][-1:], "logits"),
        ("more", ""),
    ]
    assert DraftSpans(engine.tokenizer).push(GenerationChunk("é", (ids[0],), sources=("context",))) == [("é", "")]


# Within the page: an answer of the demo may have ended before a click from outside.
STOP_AT_FIRST_WORDS = """new MutationObserver((_, observer) => {
    const answer = document.querySelectorAll(".assistant p")[1];
    if (answer && answer.textContent.length >= 10) {
        observer.disconnect();
        document.querySelector("#stop").click();
    }
}).observe(document.body, {childList: true, subtree: true, characterData: true})"""


@pytest.fixture
def address(async_engine: AsyncEngine) -> Iterator[str]:
    """Of a server with a key."""
    app = Served(async_engine, ServerSettings("demo", (KEY.encode(),), max_tokens=4000)).app
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
    with socket.create_server(("127.0.0.1", 0)) as place:
        thread = Thread(target=server.run, args=([place],))
        thread.start()
        yield f"http://127.0.0.1:{place.getsockname()[1]}/"
        server.should_exit = True
        thread.join(LIMIT_S)


@pytest.fixture
def browser() -> Iterator[Any]:
    api = pytest.importorskip(
        "playwright.sync_api", reason="no browser is driven without playwright: pip install playwright"
    )
    program = shutil.which("chromium") or pytest.skip("chromium is not installed: apt install chromium")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


def test_in_a_browser_it_asks_for_the_key_chats_stops_and_answers_again(address: str, browser: Any) -> None:
    expect = pytest.importorskip("playwright.sync_api").expect
    page = browser.new_page()
    shown: list[str] = []
    page.on("console", lambda message: shown.append(message.text))
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url))
    figures, answers = page.locator(".figures"), page.locator(".assistant p")
    page.goto(address)
    page.wait_for_selector("#keyed:not([hidden])")
    page.fill("#key", KEY)
    page.press("#key", "Tab")
    expect(page.locator("#model")).to_have_text("demo")
    page.fill("#tokens", "60")
    page.fill("#text", "<img src=x onerror=alert(1)> # tar\n\n# tar")
    page.press("#text", "Enter")
    expect(figures).to_contain_text("60 tokens")
    first = answers.text_content()
    assert page.locator(".assistant .tint").count() > 0
    assert page.locator("img").count() == 0
    page.click("#again")
    expect(figures).to_contain_text("60 tokens")
    assert answers.text_content() == first
    page.fill("#tokens", "3000")
    page.fill("#text", "# git")
    page.evaluate(STOP_AT_FIRST_WORDS)
    page.click("#send")
    expect(figures.nth(1)).to_have_text("stopped")
    expect(answers.nth(1)).to_contain_text(re.compile(r"[\s\S]{10}"))
    page.fill("#tokens", "0")
    page.click("#again")
    expect(page.locator(".error")).to_contain_text("max_tokens")
    page.click("#clear")
    assert page.locator("article").count() == 0
    assert not [line for line in shown if "Content Security Policy" in line], shown
    assert {url.removeprefix(address).split("/")[0] for url in sent} <= {"", "v1"}, sent
