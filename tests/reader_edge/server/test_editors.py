"""What editors ask: texts filled in between two others, tokens, and what a model is."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine, Engine, EngineConfig
from tests.reader_edge.package_copy import CHAT_TEMPLATE, PackageCopy
from tests.reader_edge.server.conftest import Served
from tests.reader_edge.server.openai.test_refusals import assert_refused

QWEN = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>", "<|fim_pad|>")
BEFORE, BEHIND = "def add(a, b):\n    ", "\n\nprint(add(1, 2))\n"
# As llama.vscode and llama.vim send them.
LLAMA_VSCODE: dict[str, Any] = {
    **{"id_slot": 0, "input_prefix": "def add(a, b):\n", "prompt": "    ", "input_suffix": BEHIND, "input_extra": []},
    **{"n_predict": 24, "n_indent": 4, "top_k": 40, "top_p": 0.99, "stream": False, "cache_prompt": True},
    **{"samplers": ["top_k", "top_p", "infill"], "t_max_prompt_ms": 500, "t_max_predict_ms": 2500},
    "response_fields": ["content", "timings/prompt_n"],
}


@pytest.fixture(scope="module")
def editors_engine(demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """The demo model, whose last tokens are those of Qwen2.5-Coder."""
    package = PackageCopy(demo_folder, tmp_path_factory.mktemp("fim") / "package")
    fields = json.loads((package.folder / "tokenizer.json").read_text("utf-8"))
    vocabulary, merges = fields["model"]["vocab"], fields["model"]["merges"]
    last = sorted(vocabulary, key=vocabulary.__getitem__)[-len(QWEN) :]
    ids = [vocabulary.pop(token) for token in last]
    is_whole = [
        not {"".join(each), *each} & {*last} for each in (m if isinstance(m, list) else m.split() for m in merges)
    ]
    fields["model"]["merges"] = [each for each, whole in zip(merges, is_whole, strict=True) if whole]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    fields["added_tokens"] += [{"id": i, "content": name, **flags} for i, name in zip(ids, QWEN, strict=True)]
    package.write_file("tokenizer.json", json.dumps(fields).encode())
    package.write_file("chat_template.jinja", CHAT_TEMPLATE.encode())
    return Engine.load(package.folder, EngineConfig(is_calibrated=False))


@pytest.fixture
def editors(editors_engine: Engine) -> Iterator[Served]:
    engine = AsyncEngine(editors_engine)
    yield Served(engine, ServerSettings("demo", max_tokens=500))
    asyncio.run(engine.close(cancels=True))


def ids_of(engine: Engine, *parts: str) -> list[int]:
    """Parts that are tokens by their names, and texts."""
    tokens = {name: i for i, name in enumerate(engine.tokenizer.every_token_bytes(engine.tokenizer.vocab_size))}
    return [
        each
        for part in parts
        for each in ([tokens[part.encode()]] if part in QWEN else engine.tokenizer.encode(part, False))
    ]


def test_suffix_and_infill_answer_the_prompt_in_the_model_s_own_order(editors: Served, editors_engine: Engine) -> None:
    prompt = ids_of(editors_engine, QWEN[0], BEFORE, QWEN[1], BEHIND, QWEN[2])
    fim = {"max_tokens": 24, "stop_token_ids": list(editors_engine.tokenizer.fill_in_middle.end_ids)}  # type: ignore[union-attr]
    expected = editors.complete(prompt=prompt, **fim)
    assert editors.complete(prompt=BEFORE, suffix=BEHIND, max_tokens=24)["usage"]["prompt_tokens"] == len(prompt)
    text = expected["choices"][0]["text"]
    assert editors.complete(prompt=BEFORE, suffix=BEHIND, max_tokens=24)["choices"][0]["text"] == text
    infill = editors.post("/infill", LLAMA_VSCODE | {"temperature": 0}).json()
    assert (infill["content"], infill["tokens_evaluated"]) == (text, len(prompt))
    ollama = {"model": "demo", "prompt": BEFORE, "suffix": BEHIND, "stream": False}
    options = {"options": {"temperature": 0, "num_predict": 24}}
    assert editors.post("/api/generate", ollama | options).json()["response"] == text
    assert "insert" in editors.post("/api/show", {"model": "demo"}).json()["capabilities"]


def test_drafted_infills_are_the_plain_ones(editors: Served) -> None:
    body = LLAMA_VSCODE | {"temperature": 0, "n_predict": 60, "input_prefix": "tar -czf archive.tar.gz\n" * 3}
    plain = editors.post("/infill", body | {"draft": False}).json()
    drafted = editors.post("/infill", body).json()
    assert drafted["content"] == plain["content"]
    assert plain["timings"]["draft_n"] == 0


def test_files_come_first_and_give_way_first(editors_engine: Engine) -> None:
    tokenizer = editors_engine.tokenizer
    whole = tokenizer.encode_infill("a b", "c d", [("x.py", "one two three")])
    parts = QWEN[3], "myproject\n", QWEN[4], "x.py\n", "one two three", QWEN[4], "filename\n"
    fim = ids_of(editors_engine, QWEN[0], "a b", QWEN[1], "c d", QWEN[2])
    assert whole == [*ids_of(editors_engine, *parts), *fim]
    assert tokenizer.encode_infill("a b", "c d", [("x.py", "one two three")], len(fim)) == fim
    cut = tokenizer.encode_infill("one two three " * 90, "four five six " * 90, [], 43)
    assert len(cut) == 43
    assert cut.index(ids_of(editors_engine, QWEN[1])[0]) == 31


@pytest.mark.long
def test_files_that_have_no_room_are_not_even_encoded(editors_engine: Engine) -> None:
    encoded: list[str] = []

    def encode(text: str) -> list[int]:
        encoded.append(text)
        return ids_of(editors_engine, text)

    form, files = editors_engine.tokenizer.fill_in_middle, [("x.py", f"file {number}") for number in range(100)]
    assert form is not None
    whole = form.prompt(encode, "a b", "c d", files, None)
    encoded.clear()
    cut = form.prompt(encode, "a b", "c d", files, 60)
    assert cut[len(form.start) :] == whole[len(form.start) - 60 :]
    assert len(encoded) < 60


def test_a_text_is_never_read_as_a_token(editors: Served, editors_engine: Engine) -> None:
    control = {*editors_engine.tokenizer.special_tokens, *ids_of(editors_engine, *QWEN)}
    prompt = editors_engine.tokenizer.encode_infill("a<|fim_middle|>", "<|endoftext|>b")
    assert [each for each in prompt if each in control] == ids_of(editors_engine, *QWEN[:3])
    assert editors_engine.tokenizer.decode(prompt[1:-1]).count("<|fim_middle|>") == 1
    read, literal = (
        editors.post("/tokenize", {"content": "a<|fim_middle|>", "parse_special": value}).json()["tokens"]
        for value in (True, False)
    )
    assert read[-1] in control
    assert control.isdisjoint(literal)


def test_a_cache_is_warmed_without_an_answer(editors: Served) -> None:
    warmed = editors.post("/infill", LLAMA_VSCODE | {"n_predict": 0, "samplers": []}).json()
    assert (warmed["content"], warmed["tokens_predicted"]) == ("", 0)
    assert editors.post("/infill", LLAMA_VSCODE).json()["timings"]["cache_n"] > 0


def test_a_streamed_infill_is_the_whole_one(editors: Served) -> None:
    body = LLAMA_VSCODE | {"temperature": 0}
    lines = editors.post("/infill", body | {"stream": True}).text.split("\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert "".join(each["content"] for each in events) == editors.post("/infill", body).json()["content"]
    assert [each["stop"] for each in events] == [False] * (len(events) - 1) + [True]


def test_a_model_without_such_tokens_says_so(served: Served) -> None:
    sentence = "the model here has no fill-in-the-middle tokens"
    suffix = {"model": "demo", "prompt": "a", "suffix": "b"}
    assert_refused(served.post("/v1/completions", suffix), 400, sentence)
    assert sentence in served.post("/api/generate", suffix).json()["error"]
    assert_refused(served.post("/infill", LLAMA_VSCODE), 400, sentence)


def test_what_has_no_place_beside_a_suffix_is_refused(editors: Served) -> None:
    suffix = {"model": "demo", "prompt": "a", "suffix": "b"}
    assert_refused(editors.post("/v1/completions", suffix | {"echo": True}), 400, "'echo'")
    assert_refused(editors.post("/v1/completions", suffix | {"prompt": [1, 2]}), 400, "'suffix'")
    assert "'system'" in editors.post("/api/generate", suffix | {"system": "c"}).json()["error"]


def test_tokens_in_the_words_of_llama_cpp_and_vllm(served: Served) -> None:
    tokenizer, text = served.engine.engine.tokenizer, "tar \u2603"
    ids = tokenizer.encode(text, False)
    assert served.post("/tokenize", {"content": text}).json()["tokens"] == ids
    pieces = served.post("/tokenize", {"content": text, "with_pieces": True}).json()["tokens"]
    spelled = [each["piece"] for each in pieces]
    assert b"".join(each.encode() if isinstance(each, str) else bytes(each) for each in spelled) == text.encode()
    counted = served.post("/tokenize", {"model": "demo", "prompt": text, "return_token_strs": True}).json()
    assert (counted["count"], len(counted["token_strs"])) == (len(tokenizer.encode(text)),) * 2
    messages = [{"role": "user", "content": "Hi"}]
    chat = served.post("/tokenize", {"messages": messages}).json()
    usage = served.post("/v1/chat/completions", {"model": "demo", "messages": messages, "max_tokens": 1}).json()[
        "usage"
    ]
    assert chat["count"] == usage["prompt_tokens"]
    assert served.post("/detokenize", {"tokens": ids}).json() == {"content": text, "prompt": text}
    assert_refused(served.post("/detokenize", {"tokens": [10**6]}), 400, "ids here are below")
    assert_refused(served.post("/tokenize", {}), 400, "'content' is missing")
    assert_refused(served.post("/tokenize", {"content": "a", "messages": messages}), 400, "leave one out")


def test_props_describe_a_model_and_no_place_of_this_machine(served: Served, demo_folder: Path) -> None:
    response = served.get("/props")
    props, manifest = response.json(), served.engine.engine.package.manifest
    assert props["default_generation_settings"]["n_ctx"] == manifest.max_context
    assert (props["model_path"], props["chat_template"]) == ("demo", CHAT_TEMPLATE)
    assert props["total_slots"] == served.engine.engine.decoder.config.max_batch
    assert str(served.engine.engine.package.folder.parent) not in response.text
    assert served.get("/props?model=demo").json() == props
    assert_refused(served.get("/props?model=other"), 404, "other")
