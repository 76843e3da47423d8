"""Fidelity: conversations out of recordings, what is measured again and what is kept, and the page."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from benchmarks.fidelity import report as fidelity_report
from benchmarks.fidelity.__main__ import Opener, measure
from benchmarks.fidelity.divergence_store import DivergenceStore
from benchmarks.fidelity.recorded_chats import mixed, read_conversations
from benchmarks.fidelity.report import Row, write_rows
from benchmarks.fidelity.scorers import Scorer
from reader_edge_export.checks.quality import KlDivergence
from reader_edge_export.sources.folder.hugging_face import HuggingFaceSource

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
        def opened() -> Iterator[Scorer]:
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
    def failing() -> Iterator[Scorer]:
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
    rows = [Row("ours before", "fp32", 139_000_000, figures(0.045)), Row("theirs", "f32", 9_000_000, figures(0.0046))]
    rows.append(Row("their f32", "fp32", 540_000_000, figures(-1e-11)))
    write_rows("Model", source, files, TEXTS, rows)
    write_rows("Model", source, files, TEXTS, [Row("ours", "fp32", 140_000_000, figures(0.002))])
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
    row = Row("ours", "fp32", 1, figures(0.1))
    write_rows("Model", source, [], TEXTS, [row])
    assert "came in" not in page()
    write_rows("Model", replace(source, weight_types=("Q4_1", "F32")), [], TEXTS, [row])
    assert "The source itself came in Q4_1; all figures are against that source in fp32." in page()
