"""Prompts of files, played out to one question a turn."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from reader_edge.cli import main
from reader_edge.prompts import EvalPrompt, FilePrompt, PromptLine, by_category, play_out, read_prompts
from reader_edge_runtime import Engine, EngineConfig, GenerationConfig
from reader_edge_runtime.errors import PromptError
from tests.reader_edge.package_copy import PackageCopy
from tests.wrong_fields import assert_each_is_named

# What str.splitlines takes for line ends besides \n and \r\n.
INSIDE = "a\u2028b\u2029c\x85d\fe\vf\x1cg"


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["plain", "byte order mark"])
def test_lines_end_at_line_feeds_only(tmp_path: Path, line_end: str, mark: str) -> None:
    text, jsonl = tmp_path / "prompts.txt", tmp_path / "prompts.jsonl"
    text.write_text(mark + line_end.join([INSIDE, "", "two"]), encoding="utf-8", newline="")
    lines = [json.dumps({"prompt": prompt}, ensure_ascii=False) for prompt in (INSIDE, "two\n")]
    jsonl.write_text(mark + line_end.join([*lines, ""]), encoding="utf-8", newline="")
    assert [prompt.turns for prompt in read_prompts(text)] == [(INSIDE,), ("two",)]
    assert [prompt.turns for prompt in read_prompts(jsonl)] == [(INSIDE,), ("two\n",)]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", b"a\n\xff", r"not UTF-8 text \(byte 2\): save it as UTF-8"),
        ("a.txt", b"\xef\xbb\xbf\n \n", "holds no prompt"),
        ("a.txt", b"a\n" * ((1 << 20) + 1), "has more than 1048576 lines: split it"),
        ("a.jsonl", b'{"prompt": "a"}\n{"prompt": 5}', r"Line 2 .* has an unusable prompt \(5; .*: a line is \{"),
        ("a.jsonl", b"[" * 100_000, "Line 1 .* is not valid JSON"),
        ("a.jsonl", b'"a"', r"Line 1 .* is unusable \(expected object, got str\)"),
        ("a.jsonl", b'{"prompt": "a", "turns": ["a"]}', "Line 1 .* holds 2 of what a line may ask"),
        ("a.jsonl", b'{"category": "a"}', "Line 1 .* holds 0 of what a line may ask"),
        ("a.jsonl", b'{"turns": ["Hello", ""]}', "Line 1 .* ends with .*: end it with a text of the user's"),
        ("a.jsonl", b'{"messages": ["Hello"]}', r"Line 1 .* 'messages\[0\]' is 'Hello'"),
        ("a.jsonl", b'{"messages": [{"content": "a"}]}', r"Line 1 .* 'messages\[0\].role' is missing"),
        ("a.jsonl", b'{"messages": [{"role": "system", "content": "a"}]}', "Line 1 .* ends with .* of the user's"),
        ("a.jsonl", b'{"messages": [{"role": "user", "content": "a", "images": ["b"]}]}', "Line 1 .*images' is"),
        ("a.jsonl", b'{"prompt": "a", "images": ["b"]}', 'Line 1 .* holds "images", which would not reach'),
        ("a.jsonl", b'{"messages": [{"role": "user", "content": "a"}], "tools": [{}]}', 'Line 1 .* holds "tools"'),
    ],
)
def test_a_file_without_prompts_is_one_sentence(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(PromptError, match=words):
        read_prompts(path)


def test_whatever_is_wrong_with_a_line_is_named() -> None:
    assert_each_is_named(PromptLine, {"prompt": "a", "turns": ["a"], "category": "chat"})


def test_a_line_may_hold_messages_or_turns_and_a_category(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    system, user = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}
    lines = [
        {"messages": [system, user], "category": "chat"},
        {"question_id": 81, "category": "writing", "turns": ["Hello", "Shorter."], "reference": ["?"]},
        {"prompt": "# tar", "category": "pages"},
        {"prompt": "# git"},
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    prompts = read_prompts(path)
    assert [prompt.category for prompt in prompts] == ["chat", "writing", "pages", ""]
    assert prompts[0].turns == (({**system}, {**user}),)
    assert prompts[1].turns == ((user,), ({"role": "user", "content": "Shorter."},))
    assert prompts[2].turns == ("# tar",)
    assert prompts[1].place == f"Line 2 of '{path}'"


@pytest.mark.parametrize("command", [["verify"], ["bench", "decode"], ["bench", "record", "-o", "out.jsonl"]])
def test_a_file_without_an_end_is_one_sentence(command: list[str], runner: CliRunner) -> None:
    result = runner.invoke(main, [*command, "--prompts", "/dev/zero"])
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert "'/dev/zero' cannot be used: more than the 64 MiB" in result.stderr


CONFIG = GenerationConfig(max_tokens=5)
CHAT = FilePrompt(tuple(({"role": "user", "content": text},) for text in ("# tar", "More.", "End.")), "chat", "Line 1")


@pytest.fixture
def chat_engine(chat_package: PackageCopy) -> Engine:
    return Engine.load(chat_package.folder, EngineConfig(is_calibrated=False, is_probed=False))


def test_each_turn_comes_after_the_models_own_answers_to_those_before(chat_engine: Engine) -> None:
    first, second, third = play_out(chat_engine, [CHAT], CONFIG, is_raw=False)
    assert first == EvalPrompt([{"role": "user", "content": "# tar"}], "chat")
    answer = chat_engine.generate(first.prompt, replace(CONFIG, is_drafted=False)).text
    assert answer
    assert second.prompt == [*first.prompt, {"role": "assistant", "content": answer}, CHAT.turns[1][0]]
    assert third.prompt[:3] == second.prompt
    assert [question.text for question in (first, second, third)] == ["# tar", "More.", "End."]


def test_a_text_is_a_message_only_where_it_is_not_wanted_raw(chat_engine: Engine) -> None:
    (raw,) = play_out(chat_engine, [FilePrompt(("# tar",), "", "")], CONFIG, is_raw=True)
    (wrapped,) = play_out(chat_engine, [FilePrompt(("# tar",), "", "")], CONFIG, is_raw=False)
    assert raw.prompt == raw.text == wrapped.text == "# tar"
    assert wrapped.prompt == [{"role": "user", "content": "# tar"}]


def test_a_prompt_that_the_model_cannot_take_is_shown_with_its_line(engine: Engine, chat_package: PackageCopy) -> None:
    with pytest.raises(PromptError, match=r"^Line 1: This model has no chat template"):
        play_out(engine, [CHAT], CONFIG, is_raw=False)
    with pytest.raises(PromptError, match=r"^Line 7: The prompt has .* tokens, but the model's context"):
        play_out(engine, [FilePrompt(("word " * 5000,), "", "Line 7")], CONFIG, is_raw=False)
    chat_package.write_file("chat_template.jinja", b"{{ raise_exception('no system here') }}")
    strict = Engine.load(chat_package.folder, EngineConfig(is_calibrated=False, is_probed=False))
    with pytest.raises(PromptError, match=r"^Line 1: The model's chat template refuses .* no system here"):
        play_out(strict, [CHAT], CONFIG, is_raw=False)


def test_groups_come_in_order_and_only_where_there_are_categories() -> None:
    questions = [EvalPrompt("a", "maths"), EvalPrompt("b"), EvalPrompt("c", "maths")]
    assert by_category(questions, [1, 2, 3]) == {"maths": [1, 3], "none": [2]}
    assert by_category([EvalPrompt("a"), EvalPrompt("b")], [1, 2]) == {}
