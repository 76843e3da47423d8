"""The page at `/` in a browser: what its user sees and does, and what a model's text cannot do there."""

import asyncio
import base64
import json
import re
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import pytest
import uvicorn

from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.decoding.request import Request
from tests.reader_edge.server.conftest import LIMIT_S, Served
from tests.reader_edge.server.http.test_page import KEY
from tests.scripted_target import scripted_engine
from tests.seeing_engine import picture, png, seeing_engine

MARKDOWN = """# Means

A **mean** of `values` & [more](https://example.com/a).

```python
def mean(values):
    return sum(values) / len(values)
```

| a | b |
|---|--:|
| 1 | 2 |

- [x] done
"""

HOSTILE = """Raw <b onclick="alert(1)">bold</b> <img src=x onerror=alert(1)> <script>alert(1)</script>

<iframe src="https://evil.example/"></iframe>

<style>body { display: none }</style>

[a](javascript:alert(1)) [b](data:text/html,x) [c](/metrics) ![d](https://evil.example/d.png)

[e]: https://evil.example/e.css "onload=alert(1)"

```html" onmouseover="alert(1)
<script>alert(1)</script>
```

<svg><style><img title="</style><img src=x onerror=alert(1)>"></svg>
<math><mtext><table><mglyph><style><!--</style><img title="--&gt;&lt;img src=1 onerror=alert(1)&gt;">
"""

NESTED = {"quotes": ">" * 3000 + " end", "lists": "- " * 2000 + "end", "numbers": "1. " * 2000 + "end"}


def script(text: str) -> str:
    question = text.rpartition("<|im_start|>user")[2]
    nested = next((answer for name, answer in NESTED.items() if name in question), MARKDOWN)
    return HOSTILE if "hostile" in question else nested


@contextmanager
def address_of(served: Served) -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(served.app, log_level="error", lifespan="off"))
    with socket.create_server(("127.0.0.1", 0)) as place:
        thread = Thread(target=server.run, args=([place],))
        thread.start()
        yield f"http://127.0.0.1:{place.getsockname()[1]}/"
        server.should_exit = True
        thread.join(LIMIT_S)


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server whose answers are written above."""
    engine = AsyncEngine(scripted_engine(script, tmp_path_factory.mktemp("scripted")))
    with address_of(Served(engine, ServerSettings("scripted"))) as address:
        yield address
    asyncio.run(engine.close(cancels=True))


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server whose model sees images."""
    engine = AsyncEngine(seeing_engine(tmp_path_factory.mktemp("seeing"))[0])
    with address_of(Served(engine, ServerSettings("seeing", max_tokens=5))) as address:
        yield address
    asyncio.run(engine.close(cancels=True))


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


class Tab:
    """A page of a browser that keeps nothing of others, and what went on in it."""

    def __init__(self, browser: Any, address: str, **how: Any) -> None:
        self.expect = pytest.importorskip("playwright.sync_api").expect
        self.page = browser.new_context(**how).new_page()
        self.troubles: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.troubles.append(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("dialog", lambda dialog: dialog.accept())
        self.page.goto(address)

    def send(self, text: str, num_answers: int = 1) -> None:
        """Until so many answers are there whole."""
        self.page.fill("#text", text)
        self.page.press("#text", "Enter")
        self.wait(num_answers)

    def wait(self, num_answers: int) -> None:
        visible = self.page.locator(".again:visible")
        self.expect(visible).to_have_count(num_answers, timeout=LIMIT_S * 1000)
        self.expect(self.page.locator("#send")).to_be_visible()


@pytest.fixture
def tab(browser: Any, scripted: str) -> Iterator[Tab]:
    tab = Tab(browser, scripted)
    yield tab
    tab.page.context.close()
    assert tab.troubles == []
    assert {url.removeprefix(scripted).split("/")[0] for url in tab.requests} <= {"", "v1", "api"}


# Within the page: an answer of the demo may have ended before a click from outside.
_STEP = Decoder.step


def slow_step(decoder: Decoder) -> list[Request]:
    """A browser on the same core sees words before the last."""
    time.sleep(0.02)
    return _STEP(decoder)


STOP_AT_FIRST_WORDS = """new MutationObserver((_, observer) => {
    const answer = document.querySelectorAll(".assistant .answer")[1];
    if (answer && answer.textContent.length >= 10) {
        observer.disconnect();
        document.querySelector("#stop").click();
    }
}).observe(document.body, {childList: true, subtree: true, characterData: true})"""


def test_it_asks_for_the_key_chats_stops_and_answers_again(
    async_engine: AsyncEngine, browser: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with address_of(Served(async_engine, ServerSettings("demo", (KEY.encode(),), max_tokens=4000))) as address:
        tab = Tab(browser, address)
        page, expect = tab.page, tab.expect
        figures, answers = page.locator(".figures"), page.locator(".answer")
        page.wait_for_selector("#keyed:not([hidden])")
        page.fill("#key", KEY)
        page.press("#key", "Tab")
        expect(page.locator("#model")).to_have_value("demo")
        page.click("#settings summary")
        page.fill("#tokens", "60")
        tab.send("# tar")
        expect(figures).to_contain_text("cut at the limit of tokens; 60 tokens")
        first = answers.text_content()
        page.click(".again")
        tab.wait(1)
        assert answers.text_content() == first
        page.click("#settings summary")  # the click outside of it has closed it
        page.fill("#tokens", "3000")
        page.fill("#text", "# git")
        page.evaluate(STOP_AT_FIRST_WORDS)
        monkeypatch.setattr(Decoder, "step", slow_step)
        page.press("#text", "Enter")
        expect(figures.nth(1)).to_contain_text("stopped")
        expect(answers.nth(1)).to_contain_text(re.compile(r"[\s\S]{10}"))
        page.fill("#tokens", "0")
        page.locator(".again").nth(1).click()
        expect(page.locator(".error:visible")).to_contain_text("max_tokens")
        page.context.close()
    assert not [line for line in tab.troubles if "Content Security Policy" in line], tab.troubles


def test_markdown_is_shown_as_elements_and_code_is_copied_as_it_is(tab: Tab) -> None:
    tab.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    tab.send("Means?")
    answer = tab.page.locator(".answer")
    assert answer.locator("h1").inner_text() == "Means"
    assert answer.locator("strong").inner_text() == "mean"
    assert answer.locator("td").all_inner_texts() == ["1", "2"]
    assert answer.locator("td").nth(1).get_attribute("align") == "right"
    link = answer.locator("a")
    assert [link.get_attribute(name) for name in ("href", "rel", "target")] == [
        *("https://example.com/a", "noopener noreferrer", "_blank")
    ]
    assert answer.locator("figcaption span").inner_text() == "python"
    answer.get_by_role("button", name="Copy code").click()
    code = MARKDOWN.partition("```python\n")[2].partition("```")[0]
    assert tab.page.evaluate("navigator.clipboard.readText()") == code
    tab.page.locator(".assistant > .actions").get_by_role("button", name="Copy").click()
    assert tab.page.evaluate("navigator.clipboard.readText()") == MARKDOWN


def test_hostile_text_makes_no_element_that_acts_loads_or_hides(tab: Tab) -> None:
    tab.send("hostile")
    answer = tab.page.locator(".answer")
    made = answer.evaluate("each => [...new Set([...each.querySelectorAll('*')].map((one) => one.tagName))].sort()")
    assert set(made) <= {"A", "BUTTON", "CODE", "DIV", "FIGCAPTION", "FIGURE", "P", "PRE", "SPAN"}
    names = "each => [...each.querySelectorAll('*')].flatMap((one) => one.getAttributeNames())"
    assert set(answer.evaluate(names)) <= {
        *("aria-label", "class", "href", "rel", "tabindex", "target", "title", "type")
    }
    links = answer.evaluate("each => [...each.querySelectorAll('a[href]')].map((one) => one.getAttribute('href'))")
    assert links == ["https://evil.example/d.png"]
    assert "<script>alert(1)</script>" in answer.inner_text()
    assert '<b onclick="alert(1)">bold</b>' in answer.inner_text()
    tab.page.reload()
    tab.wait(1)
    assert "<script>alert(1)</script>" in answer.inner_text()


def test_text_that_nests_deeper_than_scripts_can_read_is_shown_and_the_page_goes_on(tab: Tab) -> None:
    for number, name in enumerate(NESTED, start=1):
        tab.send(name, number)
        tab.expect(tab.page.locator(".answer").nth(number - 1)).to_contain_text("end")
    tab.page.reload()
    tab.send("Means?", len(NESTED) + 1)
    assert tab.page.locator(".answer h1").inner_text() == "Means"


def test_drafted_tokens_are_tinted_by_a_switch_within_the_markdown(tab: Tab) -> None:
    tab.send("Means?")
    tab.send("Again?", 2)
    answer = tab.page.locator(".answer").nth(1)
    tints = answer.locator(".tint")
    assert "sum(values)" in "".join(answer.locator("pre .tint").all_inner_texts())
    colour = "each => getComputedStyle(each).backgroundColor"
    assert tints.first.evaluate(colour) == "rgba(0, 0, 0, 0)"
    tab.page.click("#settings summary")
    tab.page.get_by_role("switch", name="Tint drafted tokens").check()
    assert tints.first.evaluate(colour) != "rgba(0, 0, 0, 0)"
    seen = set(tab.page.locator("#legend span").all_inner_texts())
    assert {
        title.removeprefix("drafted from: ") for title in tints.evaluate_all("all => all.map((each) => each.title)")
    } <= seen


def test_conversations_outlive_the_page_and_are_deleted_one_and_all(tab: Tab) -> None:
    items = tab.page.locator("#list a")
    tab.send("First question")
    tab.page.click("#new")
    tab.send("Second question")
    tab.page.reload()
    assert items.all_inner_texts() == ["Second question", "First question"]
    assert tab.page.locator(".question").inner_text() == "Second question"
    items.nth(1).click()
    tab.expect(tab.page.locator(".question")).to_have_text("First question")
    tab.page.get_by_role("button", name="Delete First question").click()
    assert items.all_inner_texts() == ["Second question"]
    assert tab.page.locator("article").count() == 0
    tab.page.click("#new")
    tab.send("Third question")
    tab.page.click("#delete-all")
    assert items.count() == 0
    tab.page.reload()
    assert items.count() == 0
    assert tab.page.evaluate("Object.keys(localStorage).filter((key) => key.startsWith('reader-edge:'))") == []


def test_an_edited_question_takes_the_place_of_all_behind_it(tab: Tab) -> None:
    tab.send("First question")
    tab.send("Second question", 2)
    tab.page.get_by_role("button", name="Edit").first.click()
    field = tab.page.get_by_label("Edit the message")
    field.press("Escape")
    assert tab.page.locator("article").count() == 4
    tab.page.get_by_role("button", name="Edit").first.click()
    field.fill("Another question")
    field.press("Enter")
    tab.wait(1)
    assert tab.page.locator(".question").all_inner_texts() == ["Another question"]


def test_thoughts_are_folded_and_plotted_figures_grow_while_an_answer_runs(tab: Tab) -> None:
    usage = {"completion_tokens_details": {"accepted_prediction_tokens": 1, "rejected_prediction_tokens": 1}}
    choices = [{"delta": {"reasoning_content": "Let me see."}}, {"delta": {"content": "Yes."}}]
    spans: list[list[list[str]]] = [[], [["Yes.", "context"]]]
    stream = "".join(
        "data: "
        + json.dumps(
            {"choices": [choice | {"draft_sources": sources}], "usage": usage | {"completion_tokens": number + 1}}
        )
        + "\n\n"
        for number, (choice, sources) in enumerate(zip(choices, spans, strict=True))
    )
    beat = ': {"model_loading": "scripted"}\n\n'
    tab.page.route(
        "**/v1/chat/completions", lambda route: route.fulfill(body=beat + stream, content_type="text/event-stream")
    )
    tab.send("Why?")
    thought = tab.page.locator(".thought")
    assert thought.locator("summary").inner_text().startswith("Thought for ")
    assert not thought.locator("p").is_visible()
    thought.locator("summary").click()
    assert thought.locator("p").inner_text() == "Let me see."
    assert tab.page.locator(".answer").inner_text().strip() == "Yes."
    tab.page.evaluate("""() => {
        const svg = document.querySelector(".figures svg");
        drawPlot(svg, [[0, 0, 0, 0], [100, 5, 1, 1], [200, 25, 9, 3], [300, 30, 10, 9]]);
        svg.toggleAttribute("hidden", false);
    }""")
    plot = tab.page.get_by_role("img")
    assert plot.get_attribute("aria-label") == (
        "Tokens a second, at most 200; dashed: the share of draft tokens that were accepted."
    )
    assert plot.locator("polyline").count() == 2


def test_models_are_picked_with_their_states(tab: Tab) -> None:
    models = {
        "data": [{"id": "scripted", "status": {"value": "loaded"}}, {"id": "other", "status": {"value": "unloaded"}}]
    }
    tab.page.route("**/v1/models", lambda route: route.fulfill(json=models))
    shown = {"template": "", "parameters": "temperature   0.6", "capabilities": ["completion"]}
    tab.page.route("**/api/show", lambda route: route.fulfill(json=shown))
    bodies = list[Any]()

    def refuse(route: Any) -> None:
        bodies.append(route.request.post_data_json)
        route.fulfill(status=404, json={"error": {"message": "There is none."}})

    tab.page.route("**/v1/completions", refuse)
    tab.page.reload()
    tab.page.select_option("#model", "other")
    assert tab.page.locator("#model option").all_inner_texts() == ["scripted", "other (unloaded)"]
    tab.expect(tab.page.locator("#text")).to_have_attribute("placeholder", re.compile("A text to continue"))
    tab.send("Once")
    assert tab.page.locator(".assistant .error").inner_text() == "There is none."
    assert (bodies[0]["model"], bodies[0]["prompt"], "temperature" in bodies[0]) == ("other", "Once", False)
    tab.troubles.clear()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_it_fits_and_takes_the_colours_of_the_system_or_of_a_switch(
    browser: Any, scripted: str, scheme: str
) -> None:
    tab = Tab(
        browser, scripted, viewport={"width": 360, "height": 640}, color_scheme=scheme, has_touch=True, is_mobile=True
    )
    page = tab.page
    page.fill("#text", "Means?")
    page.tap("#send")
    tab.wait(1)
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert not page.locator("#side").is_visible()
    page.tap("#menu")
    assert page.locator("#side").is_visible()
    assert page.locator("#menu").get_attribute("aria-expanded") == "true"
    page.keyboard.press("Escape")
    assert not page.locator("#side").is_visible()
    ground = "getComputedStyle(document.body).backgroundColor"
    first = page.evaluate(ground)
    assert first == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(23, 24, 26)")
    page.tap("#settings summary")
    page.select_option("#theme", "dark" if scheme == "light" else "light")
    assert page.evaluate(ground) != first
    page.reload()
    assert page.evaluate(ground) != first
    page.context.close()
    assert tab.troubles == []


def test_all_that_can_be_used_has_a_name_and_is_reached_by_keys(tab: Tab) -> None:
    tab.send("Means?")
    nameless = """[...document.querySelectorAll("button, input, select, textarea, summary, a[href]")].filter((each) =>
        !(each.getAttribute("aria-label") || each.labels?.[0]?.textContent.trim() || each.textContent.trim())
    ).map((each) => each.outerHTML)"""
    assert tab.page.evaluate(nameless) == []
    assert tab.page.locator("#status").inner_text().startswith("The answer has ended: ")
    assert tab.page.evaluate("document.activeElement.id") == "text"
    tab.page.keyboard.press("Shift+Tab")
    assert tab.page.evaluate("document.activeElement.textContent") == "Regenerate"


# As a browser has it where a user pastes or drops files.
GIVEN = """([kind, place, data, type]) => {
    const given = new DataTransfer();
    given.items.add(new File([Uint8Array.from(atob(data), (each) => each.charCodeAt(0))], "a", {type}));
    const how = {bubbles: true, cancelable: true};
    const event = kind === "paste" ? new ClipboardEvent(kind, {...how, clipboardData: given})
                                   : new DragEvent(kind, {...how, dataTransfer: given});
    document.querySelector(place).dispatchEvent(event);
}"""


def test_pictures_are_chosen_pasted_or_dropped_and_sent_with_their_message(browser: Any, seeing: str) -> None:
    tab = Tab(browser, seeing)
    page, expect = tab.page, tab.expect
    sent: list[Any] = []
    page.on("request", lambda request: sent.append(request.post_data_json) if "/chat/" in request.url else None)
    files = [png(picture(seed)) for seed in (1, 2, 3)]
    data = [base64.b64encode(each).decode() for each in files]
    small = page.locator("#pictures .picture")
    expect(page.locator("#attach")).to_be_visible()
    page.set_input_files("#files", [{"name": "a.png", "mimeType": "image/png", "buffer": files[0]}])
    expect(small).to_have_count(1)
    page.evaluate(GIVEN, ["paste", "#text", data[1], "image/png"])
    expect(small).to_have_count(2)
    page.evaluate(GIVEN, ["drop", "body", data[2], "image/png"])
    expect(small).to_have_count(3)
    page.evaluate(GIVEN, ["drop", "body", data[2], "image/tiff"])
    expect(page.locator("#pictures")).to_contain_text("Pictures are PNG, JPEG, WebP, GIF or BMP.")
    page.click("[aria-label='Leave out picture 2']")
    expect(small).to_have_count(2)
    tab.send("What are they?")
    expect(small).to_have_count(0)
    expect(page.locator(".user .picture")).to_have_count(2)
    tab.send("And now?", 2)
    urls = [{"url": f"data:image/png;base64,{data[number]}"} for number in (0, 2)]
    parts = [{"type": "image_url", "image_url": url} for url in urls]
    first = {"role": "user", "content": [*parts, {"type": "text", "text": "What are they?"}]}
    assert [each["messages"][0] for each in sent] == [first] * 2
    assert sent[1]["messages"][2] == {"role": "user", "content": "And now?"}
    page.reload()
    expect(page.locator(".user").first).to_contain_text("2 pictures, which are not kept")
    assert tab.troubles == []
    page.context.close()


def test_a_model_of_texts_gets_no_pictures(tab: Tab) -> None:
    tab.page.evaluate(GIVEN, ["paste", "#text", base64.b64encode(png(picture(1))).decode(), "image/png"])
    tab.expect(tab.page.locator("#pictures")).to_contain_text("This model reads texts alone.")
    tab.expect(tab.page.locator("#attach")).to_be_hidden()
    tab.send("Hello")
    tab.expect(tab.page.locator(".user .picture")).to_have_count(0)
