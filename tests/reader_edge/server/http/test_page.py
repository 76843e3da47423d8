"""The page at `/`: what it may do, what it is made of, and what it gets."""

import base64
import hashlib
import re
import tomllib

from pathspec import GitIgnoreSpec

from reader_edge.server.settings import ServerSettings
from reader_edge.terminal.draft_spans import DraftSpans
from reader_edge_runtime import AsyncEngine, Engine, GenerationChunk, GenerationConfig
from tests.conftest import ROOT
from tests.reader_edge.server.conftest import Served
from tests.reader_edge.server.openai.test_answers import events

FOLDER = ROOT / "reader_edge" / "server" / "page"
OTHERS = [FOLDER / "marked.umd.js", FOLDER / "purify.min.js"]
OWN = sorted(set(FOLDER.glob("*.js")) - set(OTHERS))
KEY = "0123456789abcdef"
MESSAGES = [{"role": "user", "content": "What is tar?"}]


def test_it_is_one_file_that_may_only_run_its_own_scripts_and_ask_its_own_server(served: Served) -> None:
    page = served.get("/")
    assert page.headers["content-type"].startswith("text/html")
    policy = dict(rule.split(" ", 1) for rule in page.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert policy["img-src"] == "data:"
    assert policy["require-trusted-types-for"] == "'script'"
    for kind, num_elements in {"script": 8, "style": 1}.items():
        contents = re.findall(f"<{kind}>(.*?)</{kind}>", page.text, re.DOTALL)
        digests = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in contents]
        assert policy[f"{kind}-src"] == " ".join(f"'sha256-{each}'" for each in digests)
        assert len(digests) == num_elements
    markup = re.sub("<(script|style)>.*?</\\1>", "", page.text, flags=re.DOTALL)
    assert not re.search(r"https?:|//[a-z]|\son[a-z]+=|\sstyle=|\ssrc=", markup)
    assert page.headers["x-content-type-options"] == "nosniff"


def test_its_own_scripts_write_no_html_and_name_no_address() -> None:
    scripts = {path.name: path.read_text("utf-8") for path in OWN}
    assert len(scripts) == 6
    text = "".join(scripts.values()).replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", text)


def test_wheels_have_all_that_it_is_made_of_with_its_licences() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert "reader_edge" in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    ignored = GitIgnoreSpec.from_lines((ROOT / ".gitignore").read_text("utf-8").splitlines())  # as hatch leaves out
    assert [path.name for path in FOLDER.iterdir() if path.suffix and ignored.match_file(path.relative_to(ROOT))] == []
    page = (FOLDER / "page.html").read_text("utf-8")
    named = re.findall(r'(?:src|href)="([\w.]+\.(?:js|css))"', page)
    assert len(named) == 9
    assert [name for name in named if not (FOLDER / name).is_file()] == []
    licences = FOLDER / "README.md"
    assert licences.relative_to(ROOT).as_posix() in project["project"]["license-files"]
    assert [path.name for path in OTHERS if f"`{path.name}`" not in licences.read_text("utf-8")] == []


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
