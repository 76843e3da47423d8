"""Fidelity beside peers, and what the page reports of a real model."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from benchmarks.fidelity import report as fidelity_report
from benchmarks.fidelity.__main__ import Opener, measure
from benchmarks.fidelity.divergence_store import DivergenceStore
from benchmarks.fidelity.recorded_chats import mixed, read_conversations
from benchmarks.fidelity.report import FidelityRow, write_rows
from benchmarks.fidelity.scorers import LogitScorer
from benchmarks.peers.real_model import measure_real
from benchmarks.peers.real_prompts import Converter
from benchmarks.peers.real_report import real_section
from benchmarks.peers.real_source import place_source, real_contenders, shape_of
from benchmarks.peers.runtimes import RUNTIMES, Contender
from reader_edge.models.model_source import load_tokenizer
from reader_edge_export.checks.quality import KlDivergence
from reader_edge_export.sources.folder.hugging_face import HuggingFaceSource
from tests.reader_edge.package_copy import CHAT_TEMPLATE, PackageCopy

VOCAB_SIZE = 20
TEXTS = [[3, 1, 4], [1, 5, 9, 2, 6], [5]]
TURN = "<|user|>\n{}<|end|>\n<|assistant|>\n"


def recording(path: Path, *requests: list[tuple[str, str]]) -> Path:
    rows = [{"task": "chat", "turns": [{"input": i, "output": o} for i, o in turns]} for turns in requests]
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def logits_of(name: str, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
    """What a made-up model says of a text."""
    seed = [*name.encode(), *token_ids]
    return np.random.default_rng(seed).normal(size=(len(token_ids), VOCAB_SIZE)).astype(np.float32)


class Sent:
    """Openers of made-up models, and which texts each got."""

    def __init__(self) -> None:
        self.texts: dict[str, list[list[int]]] = {}

    def opener(self, name: str) -> Opener:
        @contextmanager
        def opened() -> Iterator[LogitScorer]:
            self.texts.setdefault(name, [])

            def score(token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
                self.texts[name].append(list(token_ids))
                return logits_of(name, token_ids)

            yield score

        return opened


def expected_figures(name: str) -> dict[str, float]:
    divergence = KlDivergence()
    for token_ids in TEXTS:
        divergence.add(logits_of("reference", token_ids), logits_of(name, token_ids))
    return divergence.figures()


def test_a_recorded_request_becomes_a_conversation_of_all_its_turns(tmp_path: Path) -> None:
    system = "<|system|>\nBe kind.<|end|>\n"
    request = [(system + TURN.format("Two\nlines\u2028here"), "Yes. "), (TURN.format("And?"), "No.")]
    assert read_conversations(recording(tmp_path / "chat.jsonl", request)) == [
        [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "Two\nlines\u2028here"},
            {"role": "assistant", "content": "Yes."},
            {"role": "user", "content": "And?"},
            {"role": "assistant", "content": "No."},
        ]
    ]


def test_files_take_turns_and_their_order_is_always_the_same(tmp_path: Path) -> None:
    long = recording(tmp_path / "long.jsonl", *([(TURN.format("q"), f"long {n}")] for n in range(9)))
    short = recording(tmp_path / "short.jsonl", *([(TURN.format("q"), f"short {n}")] for n in range(2)))
    answers = [conversation[-1]["content"] for conversation in mixed([long, short])]
    assert [answer.split()[0] for answer in answers] == ["long", "short"] * 2 + ["long"] * 7
    assert sorted(answers[4:]) != answers[4:]
    assert [conversation[-1]["content"] for conversation in mixed([long, short])] == answers


def test_figures_are_those_of_all_tokens_of_all_texts(tmp_path: Path) -> None:
    sent = Sent()
    models = {tmp_path / name: sent.opener(name) for name in ("a", "b")}
    measure(sent.opener("reference"), models, TEXTS)
    for path in models:
        assert DivergenceStore(path).figures(TEXTS) == expected_figures(path.name)
    assert sent.texts["reference"] == TEXTS  # once for both


def test_what_was_measured_is_kept_and_only_the_rest_is_measured(tmp_path: Path) -> None:
    measure(Sent().opener("reference"), {tmp_path / "a": Sent().opener("a")}, TEXTS[:2])
    sent = Sent()
    models = {tmp_path / name: sent.opener(name) for name in ("a", "b")}
    measure(sent.opener("reference"), models, TEXTS)
    assert sent.texts == {"reference": TEXTS, "a": TEXTS[2:], "b": TEXTS}
    again = Sent()
    measure(again.opener("reference"), {path: again.opener(path.name) for path in models}, TEXTS)
    assert again.texts == {}  # not even loaded
    assert DivergenceStore(tmp_path / "a").figures(TEXTS) == expected_figures("a")


def test_a_model_that_fails_leaves_what_was_measured(tmp_path: Path) -> None:
    @contextmanager
    def failing() -> Iterator[LogitScorer]:
        def score(token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
            if len(token_ids) > 3:
                raise RuntimeError("out of luck")
            return logits_of("a", token_ids)

        yield score

    with pytest.raises(RuntimeError, match="out of luck"):
        measure(Sent().opener("reference"), {tmp_path / "a": failing}, TEXTS)
    assert DivergenceStore(tmp_path / "a").missing(TEXTS) == TEXTS[1:]


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """What the page says; written to a folder of its own."""
    monkeypatch.setattr(fidelity_report, "ROWS", tmp_path / "fidelity.json")
    monkeypatch.setattr(fidelity_report, "OUT", tmp_path / "FIDELITY.md")
    return (tmp_path / "FIDELITY.md").read_text


def figures(kl: float) -> Mapping[str, float]:
    return {"mean_kl_nats": kl, "p99_kl_nats": 10 * kl, "top1_agreement": 1 - kl, "held_out_tokens": 9}


def test_rows_stay_until_they_are_measured_again_on_the_same_tokens(page: Callable[[], str]) -> None:
    source = HuggingFaceSource("model", {"model_type": "llama"}, 128, (), Path("model"))
    files = [Path("rag.jsonl"), Path("chat.jsonl")]
    rows = [
        FidelityRow("ours before", "fp32", 139_000_000, figures(0.045)),
        FidelityRow("theirs", "f32", 9_000_000, figures(0.0046)),
    ]
    rows.append(FidelityRow("their f32", "fp32", 540_000_000, figures(-1e-11)))
    write_rows("Model", source, files, TEXTS, rows)
    write_rows("Model", source, files, TEXTS, [FidelityRow("ours", "fp32", 140_000_000, figures(0.002))])
    lines = [line for line in page().splitlines() if line.startswith(("| our", "| their"))]
    assert lines == [
        "| their f32 | fp32 | 540 MB | < 1e-6 | < 1e-6 | 1.000 |",
        "| ours | fp32 | 140 MB | 0.002 | 0.02 | 0.998 |",
        "| theirs | f32 | 9 MB | 0.0046 | 0.046 | 0.995 |",
        "| ours before | fp32 | 139 MB | 0.045 | 0.45 | 0.955 |",
    ]
    assert "9 tokens of 3 conversations" in page()
    assert "recordings: chat, rag." in page()
    write_rows("Other", source, files, TEXTS, rows)
    write_rows("Model", source, files, TEXTS[:1], rows[:1])
    assert page().count("| theirs") == 1  # of the other model: Model's was measured on other tokens


def test_the_page_says_where_the_source_itself_came_in_few_bits(page: Callable[[], str]) -> None:
    source = HuggingFaceSource("model", {"model_type": "llama"}, 128, (), Path("model"))
    row = FidelityRow("ours", "fp32", 1, figures(0.1))
    write_rows("Model", source, [], TEXTS, [row])
    assert "came in" not in page()
    write_rows("Model", replace(source, weight_types=("Q4_1", "F32")), [], TEXTS, [row])
    assert "The source itself came in Q4_1; all figures are against that source in fp32." in page()


def names(contenders: list[Contender]) -> list[str]:
    return [contender.name for contender in contenders]


def test_a_ready_made_file_takes_the_place_of_a_conversion(tmp_path: Path) -> None:
    cache, folder, file = tmp_path / "cache", tmp_path / "model", tmp_path / "model.gguf"
    folder.mkdir()
    file.touch()
    assert shape_of(folder) != shape_of(file)
    place_source(cache, folder, None)
    converted = [
        f"{name} {bits}" for name in ("reader-edge", "onnxruntime-genai", "openvino-genai") for bits in ("int8", "int4")
    ]
    kept = ["reader-edge keep", *converted, "llama-server keep ngram-mod", "llama-server keep ngram-simple"]
    assert names(real_contenders(cache, folder)) == [*converted, "llama.cpp q8_0", "llama.cpp q4_0"]
    place_source(cache, folder, file)
    found = real_contenders(cache, folder)
    assert names(found) == kept
    assert found[0].source(shape_of(folder)).resolve() == file
    assert found[1].source(shape_of(folder)).resolve() == folder
    place_source(cache, file, None)
    assert names(real_contenders(cache, file)) == kept


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


def test_texts_of_recordings_stand_before_the_question(recordings: Path, demo_folder: Path) -> None:
    converter = Converter(recordings, load_tokenizer(str(demo_folder)), most=200, num_joined=2)
    (prompt,) = converter.categories()["rag"]
    assert prompt["messages"][-1]["content"] == "A passage.\n\nAnother.\n\nQuestion: where is it"
    assert prompt["id"] == "rag-0"
