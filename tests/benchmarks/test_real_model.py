"""The part for a real model: where it lies, who answers, and what the page reports."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers.real_model import measure_real
from benchmarks.peers.real_prompts import Converter
from benchmarks.peers.real_report import real_section
from benchmarks.peers.real_source import place_source, real_contenders, shape_of
from benchmarks.peers.runtimes import RUNTIMES, Contender
from reader_edge.models.model_source import load_tokenizer
from tests.reader_edge.package_copy import CHAT_TEMPLATE, PackageCopy


def names(contenders: list[Contender]) -> list[str]:
    return [contender.name for contender in contenders]


def test_a_ready_made_file_takes_the_place_of_a_conversion(tmp_path: Path) -> None:
    cache, folder, file = tmp_path / "cache", tmp_path / "model", tmp_path / "model.gguf"
    folder.mkdir()
    file.touch()
    assert shape_of(folder) != shape_of(file)
    place_source(cache, folder, None)
    ours = ["reader-edge int8", "reader-edge int4", "onnxruntime-genai int8", "onnxruntime-genai int4"]
    assert names(real_contenders(cache, folder)) == [*ours, "llama.cpp q8_0", "llama.cpp q4_0"]
    place_source(cache, folder, file)
    found = real_contenders(cache, folder)
    assert names(found) == [*ours, "llama.cpp gguf"]
    assert Path(found[-1].model(shape_of(folder))).resolve() == file
    assert found[0].source(shape_of(folder)).resolve() == folder
    place_source(cache, file, None)
    assert names(real_contenders(cache, file)) == [*ours, "llama.cpp gguf"]


@pytest.mark.usefixtures("two_cores")
@pytest.mark.long
def test_every_turn_is_answered_and_reported_by_category(demo_folder: Path, tmp_path: Path) -> None:
    package = PackageCopy(demo_folder, tmp_path / "package")
    package.write_file("chat_template.jinja", CHAT_TEMPLATE.encode())
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"turns": ["# tar", "More."], "category": "chat"}, {"prompt": "1 2 3 1 2 3"}]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    source, cache = tmp_path / "source", tmp_path / "cache"
    ours = Contender(replace(RUNTIMES[0], requirements=()), "int8", cache)
    missing = replace(ours, precision="int4")
    place_source(cache, source, None)
    ours.converted(shape_of(source)).symlink_to(package.folder)
    records = measure_real([ours, missing], ours, source, prompts, 6)
    record = records[ours.name]
    assert record["categories"] == ["chat", "chat", "none"]
    assert record["is_equal"] == [True] * 3
    assert record["num_tokens"] == record["drafted"]["num_tokens"]
    assert all(1 <= num <= 6 for num in record["num_tokens"])
    assert len(record["rest_s"]) == len(record["first_s"]) == 3
    assert "int4" in records[missing.name]["error"]
    page = real_section({"model": "tiny", "figures": records})
    assert "| reader-edge int8 |" in page
    assert "3 of 3" in page
    assert "int4" not in page


def answers(first_s: list[float], num_tokens: list[int]) -> dict[str, Any]:
    return {"first_s": first_s, "rest_s": [0.0] * len(first_s), "num_tokens": num_tokens, "peak_bytes": 2 * 10**9}


def test_a_category_is_shown_by_its_median_answer_and_speeds_by_all_tokens() -> None:
    plain = answers([1.0, 1.0, 1.0, 2.0], [10, 10, 10, 30])
    drafted = answers([0.5, 1.0, 2.0], [10, 10, 10])  # it failed at the last one
    categories = ["short", "short", "short", "long"]
    record = {**plain, "drafted": drafted, "is_equal": [True, False, True], "categories": categories}
    page = real_section({"model": "tiny", "figures": {"peer q8": record}})
    assert "| peer q8 | 12.0 | 8.6 | 0.71 | 2 of 3 | 2.00 | 2.00 |" in page
    assert "|  | short | long |" in page
    assert "| peer q8 | 1.00 (2 of 3) | - |" in page
    silent = {"num_tokens": [], "drafted": {"num_tokens": []}, "error": "Crash"}
    assert real_section({"model": "tiny", "figures": {"peer q8": silent}}) == ""


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    folder = tmp_path / "recordings"
    folder.mkdir()

    def write(name: str, *requests: list[tuple[str, str]]) -> None:
        records = [
            {
                "id": f"{name}-{i}",
                "licence": "MIT",
                "source": "tests",
                "turns": [{"input": a, "output": b} for a, b in r],
            }
            for i, r in enumerate(requests)
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, records)), encoding="utf-8")

    system, long_text = "<|system|>\nBe brief.<|end|>\n", "word " * 400
    talk = [
        (f"{system}<|user|>\nHello<|end|>\n<|assistant|>\n", "Who are you?"),
        ("<|user|>\nAnn<|end|>\n<|assistant|>\n", "<tool_call>"),
        ('<|tool|>\n{"found":\u20281}<|end|>\n<|assistant|>\n', "Found."),
        (f"<|user|>\n{long_text}<|end|>\n<|assistant|>\n", "Too long."),
    ]
    write("agent-airline", talk, [(f"{system}<|user|>\n{long_text}<|end|>\n<|assistant|>\n", "No.")])
    chat = ("<|user|>\nOne?<|end|>\n<|assistant|>\n", "1"), ("<|user|>\nTwo?<|end|>\n<|assistant|>\n", "2")
    write("chat-qwen2.5-7b", list(chat))
    write("code-reasoning-phi3.5-mini", [("<|user|>\nprint(1)<|end|>\n<|assistant|>\n", "1")])
    write("math-phi3.5-mini", *[[(f"<|user|>\n{i}?<|end|>\n<|assistant|>\n", "1")] for i in (1, 2)])
    write("math-hard-phi3.5-mini", [("<|user|>\n3?<|end|>\n<|assistant|>\n", "1")])
    passages = [("A passage", "where is it", "It is " * 5), ("Another", "who is it", "She")]
    write("rag", *[[(f"<|user|>\n{a}.\n\nQuestion: {b}<|end|>\n<|assistant|>\n", c)] for a, b, c in passages])
    write("summarization", [("<|user|>\nSum up.<|end|>\n<|assistant|>\n", "Short.")])
    return folder


def test_recordings_become_chat_prompts_that_fit(recordings: Path, demo_folder: Path) -> None:
    converter = Converter(recordings, load_tokenizer(str(demo_folder)), most=200)
    prompts = {category: list(found) for category, found in converter.categories().items()}
    (agent,) = prompts["agent"]
    roles = [message["role"] for message in agent["messages"]]
    assert roles == ["system", "user", "assistant", "user", "assistant", "user"]
    assert agent["messages"][-1]["content"] == '{"found":\u20281}'  # a tool's answer, the last that fits
    assert [prompt["turns"] for prompt in prompts["chat"]] == [["One?", "Two?"]]
    texts = {name: [prompt["messages"][-1]["content"] for prompt in prompts[name]] for name in ("maths", "questions")}
    assert texts == {"maths": ["1?", "3?", "2?"], "questions": ["where is it", "who is it"]}
    assert [prompt["id"] for prompt in prompts["short"]] == ["rag-0"]
    assert agent["licence"] == "MIT"


def test_texts_of_several_recordings_stand_before_the_question_of_the_first(
    recordings: Path, demo_folder: Path
) -> None:
    converter = Converter(recordings, load_tokenizer(str(demo_folder)), most=200, num_joined=2)
    (prompt,) = converter.categories()["rag"]
    assert prompt["messages"][-1]["content"] == "A passage.\n\nAnother.\n\nQuestion: where is it"
    assert prompt["id"] == "rag-0"
