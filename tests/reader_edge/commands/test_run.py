"""`reader-edge run` with a prompt: the text on standard output, everything else beside it."""

import json
import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from reader_edge.chat.prompt_input import PromptInput
from reader_edge.cli import main
from reader_edge_runtime import Engine, EngineConfig, GenerationConfig, SamplingConfig
from reader_edge_runtime.drafting.sources.history_file import HistoryFile
from reader_edge_runtime.errors import HistoryError
from reader_edge_runtime.measuring.width_probe import WidthReport
from tests.reader_edge.package_copy import PackageCopy
from tests.seeing_engine import picture, png, seeing_engine

PROMPT = "# tar\n\n"


def _run(runner: CliRunner, *arguments: str, stdin: str | None = None) -> str:
    result = runner.invoke(main, ["run", "-n", "24", *arguments], input=stdin)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_standard_output_holds_the_text_and_nothing_else(runner: CliRunner, engine: Engine) -> None:
    result = runner.invoke(main, ["run", "-p", PROMPT, "-n", "24"])
    assert result.stdout == engine.generate(PROMPT, GenerationConfig(max_tokens=24)).text
    assert result.stderr == ""


def test_statistics_go_to_standard_error(runner: CliRunner) -> None:
    result = runner.invoke(main, ["run", "-p", PROMPT, "-n", "24", "--stats"])
    assert result.stdout == _run(runner, "-p", PROMPT)
    for name in ("tokens/s", "time to first token", "acceptance length", "by depth", "calibration", "width probe"):
        assert name in result.stderr


def test_json_is_one_object_with_the_answer_and_its_statistics(runner: CliRunner, engine: Engine) -> None:
    fields = json.loads(_run(runner, "-p", PROMPT, "--json"))
    assert set(fields) == {"text", "token_ids", "finish_reason", "stats"}
    expected = engine.generate(PROMPT, GenerationConfig(max_tokens=24))
    assert fields["text"] == expected.text
    assert fields["token_ids"] == list(expected.token_ids)
    assert fields["finish_reason"] == expected.finish_reason
    stats = fields["stats"]
    assert stats["num_tokens"] == len(expected.token_ids)
    assert sum(stats["accepted_by_source"].values()) == stats["num_accepted_tokens"]
    assert {"tokens_per_s", "acceptance_length", "acceptance_rate", "provider", "threads"} <= set(stats)


@pytest.mark.parametrize("arguments", [[], ["-"], ["-p", "-"]])
def test_the_prompt_may_come_from_a_pipe_less_one_line_end(runner: CliRunner, arguments: list[str]) -> None:
    assert _run(runner, *arguments, stdin="# git\n\n\n") == _run(runner, "-p", "# git\n\n")


@pytest.mark.long
def test_what_is_piped_follows_a_prompt_where_a_dash_asks_for_it(runner: CliRunner, demo_folder: Path) -> None:
    joined = _run(runner, "-p", "# git\n\nnotes")
    assert _run(runner, "-", "-p", "# git", stdin="notes\n") == joined
    assert _run(runner, str(demo_folder), "-p", "# git", "-", stdin="notes\n") == joined
    assert _run(runner, "-p", "# git", stdin="notes\n") == _run(runner, "-p", "# git")
    result = runner.invoke(main, ["run", "-p", "# git", "-"], input="")
    assert (result.exit_code, result.stderr) == (2, "Error: Standard input is empty: leave '-' out.\n")


def test_a_dash_may_follow_the_model(runner: CliRunner, demo_folder: Path) -> None:
    assert _run(runner, str(demo_folder), "-", stdin="# git\n") == _run(runner, "-p", "# git")


def test_drafting_is_off_where_bits_depend_on_widths(runner: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "reader_edge_runtime.assembly.load_or_settle", lambda target, *_: (target, WidthReport(16, 4, 1e-5))
    )
    result = runner.invoke(main, ["run", "-p", "# tar", "-n", "20", "--stats"])
    assert result.exit_code == 0
    assert "drafting is off. --guard drafts all the same" in result.stderr
    assert "off: wide passes give other bits here" in result.stderr


def test_drafting_changes_no_text(runner: CliRunner) -> None:
    sampled = ("-p", PROMPT, "-t", "0.8", "--top-p", "0.95", "--seed", "3")
    assert _run(runner, "-p", PROMPT) == _run(runner, "-p", PROMPT, "--no-draft")
    assert _run(runner, *sampled) == _run(runner, *sampled, "--no-draft")


def test_sampling_options_reach_the_engine(runner: CliRunner, engine: Engine) -> None:
    penalties = SamplingConfig(frequency_penalty=1.5, presence_penalty=-0.5)
    expected = engine.generate(PROMPT, GenerationConfig(max_tokens=24, sampling=penalties)).text
    assert _run(runner, "-p", PROMPT, "--frequency-penalty", "1.5", "--presence-penalty", "-0.5") == expected
    sampling = SamplingConfig(repetition_penalty=1.2, temperature=0.9, top_k=40, top_p=0.9, min_p=0.01, seed=7)
    expected = engine.generate(PROMPT, GenerationConfig(max_tokens=24, sampling=sampling)).text
    options = ["-t", "0.9", "--top-k", "40", "--top-p", "0.9", "--min-p", "0.01", "--seed", "7"]
    assert _run(runner, "-p", PROMPT, "--repetition-penalty", "1.2", *options) == expected


def test_an_answer_that_the_context_ends_is_shown_so(runner: CliRunner, package: PackageCopy) -> None:
    package.change_manifest(max_context=64)
    sent = ["run", str(package.folder), "-p", PROMPT, "-n", "999999"]
    assert "The answer ended at the model's context of 64 tokens.\n" in runner.invoke(main, sent).stderr
    assert "context" not in runner.invoke(main, [*sent[:-1], "4"]).stderr
    shown = runner.invoke(main, [*sent, "--json"])
    assert json.loads(shown.stdout)["finish_reason"] == "context"
    assert "context" not in shown.stderr


def test_the_answer_ends_before_a_stop_text(runner: CliRunner) -> None:
    text = _run(runner, "-p", PROMPT)
    stop = text[len(text) // 2 :][:3]
    assert _run(runner, "-p", PROMPT, "--stop", "no such text", "--stop", stop) == text[: text.index(stop)]


def test_the_model_may_be_named_by_the_environment(
    runner: CliRunner, demo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("READER_EDGE_MODEL", "./no/such/package")
    assert "'./no/such/package'" in runner.invoke(main, ["run", "-p", PROMPT]).stderr
    monkeypatch.setenv("READER_EDGE_MODEL", str(demo_folder))
    assert _run(runner, "-p", PROMPT)


def test_a_prompt_goes_through_the_chat_template(runner: CliRunner, chat_package: PackageCopy, engine: Engine) -> None:
    model = str(chat_package.folder)
    plain = GenerationConfig(max_tokens=24)
    assert _run(runner, model, "-p", "hello") == engine.generate("user: hello\nassistant:", plain).text
    with_system = engine.generate("system: Be brief.\nuser: hello\nassistant:", plain).text
    assert _run(runner, model, "-p", "hello", "-s", "Be brief.") == with_system
    assert _run(runner, model, "-p", "hello", "--raw") == engine.generate("hello", plain).text


def test_the_chat_template_is_given_arguments(runner: CliRunner, chat_package: PackageCopy, engine: Engine) -> None:
    source = "{{ mood }}{{ n + 1 }}{{ flag is false }} {{ messages[0].content }}"
    chat_package.write_file("chat_template.jinja", source.encode())
    args = ["--template-arg", "mood=kind=er", "--template-arg", "n=2", "--template-arg", "flag=false"]
    text = engine.generate("kind=er3True hello", GenerationConfig(max_tokens=24)).text
    assert _run(runner, str(chat_package.folder), "-p", "hello", *args) == text


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--stop", "", "'' ends every answer before it begins: give a text of one character or more."),
        (
            "--template-arg",
            "messages=3",
            "'messages=3' would take the place of the messages that are requested: leave it",
        ),
        (
            "--template-arg",
            "tools=[]",
            "'tools=[]' would take the place of the tools that are requested: leave it out.",
        ),
    ],
)
def test_a_value_that_no_answer_can_have_exits_2(runner: CliRunner, option: str, value: str, words: str) -> None:
    result = runner.invoke(main, ["run", "-p", PROMPT, option, value])
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"Invalid value for '{option}': {words}" in " ".join(result.stderr.split())


@pytest.mark.parametrize("arg", ["mood", "=kind", ""])
def test_an_argument_without_a_name_or_value_exits_2(runner: CliRunner, arg: str) -> None:
    result = runner.invoke(main, ["run", "-p", PROMPT, "--template-arg", arg])
    assert result.exit_code == 2
    assert "must be NAME=VALUE" in result.stderr


def test_arguments_have_no_place_without_a_template(runner: CliRunner) -> None:
    result = runner.invoke(main, ["run", "-p", PROMPT, "--template-arg", "n=2"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == ("Error: No chat template is used here, which --template-arg is for: leave it out.\n")


def test_text_is_text_holds_control_tokens_off(runner: CliRunner, chat_package: PackageCopy) -> None:
    chat_package.write_file("chat_template.jinja", b"{{ messages[0].content }}")
    engine = Engine.load(chat_package.folder, EngineConfig(is_calibrated=False))
    special = next(iter(engine.tokenizer.special_tokens.values()))
    config = GenerationConfig(max_tokens=24)
    usual = engine.encode_prompt([{"role": "user", "content": f"hello {special}"}])
    model = str(chat_package.folder)
    assert _run(runner, model, "-p", f"hello {special}") == engine.generate(usual, config).text
    literal = Engine.load(chat_package.folder, EngineConfig(is_calibrated=False, is_text_literal=True))
    spelled = literal.encode_prompt([{"role": "user", "content": f"hello {special}"}])
    assert set(spelled).isdisjoint(engine.tokenizer.special_tokens)
    assert not set(usual).isdisjoint(engine.tokenizer.special_tokens)
    assert _run(runner, model, "-p", f"hello {special}", "--text-is-text") == engine.generate(spelled, config).text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["-s", "Be brief."],
            "Error: This model has no chat template, so a system message has no place: leave -s out.\n",
        ),
        (
            ["--text-is-text"],
            "Error: This model has no chat template, so control tokens in a text are read as such: leave "
            "--text-is-text out.\n",
        ),
        (
            ["--text-is-text", "--raw"],
            "Error: --raw takes the prompt as it is, so control tokens in a text are read as such: leave "
            "--text-is-text out.\n",
        ),
    ],
)
def test_a_bad_option_is_one_sentence(runner: CliRunner, arguments: list[str], sentence: str) -> None:
    result = runner.invoke(main, ["run", "-p", PROMPT, *arguments])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == sentence


@pytest.fixture
def drawing(package: PackageCopy) -> PackageCopy:
    """A package whose maker recommends to draw tokens."""
    package.change_manifest(sampling={"temperature": 0.9, "top_k": 40, "top_p": 0.95})
    return package


def test_tokens_are_drawn_as_recommended_and_the_seed_is_shown(runner: CliRunner, drawing: PackageCopy) -> None:
    result = runner.invoke(main, ["run", str(drawing.folder), "-p", PROMPT, "-n", "24"])
    shown = re.search(r"Sampled with temperature 0\.9, top-k 40, top-p 0\.95, seed (\d+): --seed gives", result.stderr)
    assert shown is not None
    again = ["run", str(drawing.folder), "-p", PROMPT, "-n", "24", "--seed", shown[1]]
    assert runner.invoke(main, again).stdout == result.stdout
    assert runner.invoke(main, [*again, "--no-draft"]).stdout == result.stdout
    assert "Sampled" not in runner.invoke(main, again).stderr


def test_what_is_given_stands_beside_what_the_model_recommends(runner: CliRunner, drawing: PackageCopy) -> None:
    fields = json.loads(_run(runner, str(drawing.folder), "-p", PROMPT, "--json", "-t", "0.5", "--seed", "3"))
    sampling = fields["stats"]["sampling"]
    assert (sampling["temperature"], sampling["top_k"], sampling["top_p"], sampling["seed"]) == (0.5, 40, 0.95, 3)
    stats = runner.invoke(main, ["run", str(drawing.folder), "-p", PROMPT, "-n", "4", "--seed", "3", "--stats"]).stderr
    assert "temperature 0.9, top-k 40, top-p 0.95, seed 3" in stats


def test_greedy_leaves_what_the_model_recommends(runner: CliRunner, drawing: PackageCopy) -> None:
    model = str(drawing.folder)
    assert _run(runner, model, "-p", PROMPT, "--greedy") == _run(runner, "-p", PROMPT)
    result = runner.invoke(main, ["run", model, "-p", PROMPT, "--greedy", "--top-k", "3"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "leave --top-k out, or --greedy" in result.stderr


def test_a_comparison_draws_both_answers_by_one_seed(runner: CliRunner, drawing: PackageCopy) -> None:
    result = runner.invoke(main, ["run", str(drawing.folder), "-p", PROMPT, "-n", "8", "--compare"])
    assert result.exit_code == 0, result.stderr
    assert "temperature 0.9, top-k 40, top-p 0.95, seed" in result.stderr


def test_no_history_is_refused_before_measuring(
    runner: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reader_edge_runtime.assembly.load_or_measure", pytest.fail)
    letter = tmp_path / "letter"
    letter.write_text("dear " * 20)
    result = runner.invoke(main, ["run", "-p", PROMPT, "--history", str(letter)])
    assert result.exit_code == 1
    assert str(letter) in result.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["letter"]


def test_an_empty_prompt_is_one_sentence(runner: CliRunner) -> None:
    for result in (runner.invoke(main, ["run", "-p", ""]), runner.invoke(main, ["run"], input="")):
        assert result.exit_code == 2
        assert result.stderr == "Error: The prompt is empty: give some text with -p or on standard input.\n"


def test_a_prompt_longer_than_the_context_is_one_sentence(runner: CliRunner) -> None:
    result = runner.invoke(main, ["run", "-p", "1 2 3 4 5 6 7 8 9 " * 1000])
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: The prompt has ")
    assert result.stderr.endswith(": shorten the prompt.\n")


@pytest.mark.parametrize("arguments", [["--compare", "--no-draft", "-p", "x"], ["package", "prompt"]])
def test_options_that_exclude_each_other_exit_2(runner: CliRunner, arguments: list[str]) -> None:
    assert runner.invoke(main, ["run", *arguments]).exit_code == 2


@pytest.mark.parametrize("option", ["--json", "--compare"])
def test_one_prompt_s_options_refuse_a_chat(runner: CliRunner, monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    monkeypatch.setattr(PromptInput, "read", lambda question: None)  # as on a terminal
    assert runner.invoke(main, ["run", option]).exit_code == 2


def test_standard_input_that_is_no_text_exits_2(runner: CliRunner) -> None:
    result = runner.invoke(main, ["run"], input=b"\xff\xfe")
    assert result.exit_code == 2
    assert "not UTF-8 text (byte 0): convert it" in result.stderr


def test_compare_tells_both_speeds_and_that_the_text_is_the_same(runner: CliRunner) -> None:
    result = runner.invoke(main, ["run", "-p", PROMPT, "-n", "24", "--compare"])
    assert result.exit_code == 0
    assert result.stdout == _run(runner, "-p", PROMPT)
    assert "identical" in result.stderr
    assert "plain" in result.stderr


@pytest.mark.parametrize("options", [["--compare"], ["--stats"]])
def test_a_table_never_follows_the_last_word_of_the_text_on_its_line(runner: CliRunner, options: list[str]) -> None:
    result = runner.invoke(main, ["run", "-p", PROMPT, "-n", "23", *options])
    text = _run(runner, "-p", PROMPT, "-n", "23")
    assert not text.endswith("\n")
    assert result.stdout == text  # a pipe gets the text alone
    assert result.stderr.startswith("\n")
    assert result.output.startswith(text + "\n")  # both as they come: `2>&1`


@pytest.mark.parametrize("options", [["--compare"], ["--stats"]])
def test_a_terminal_s_line_is_ended(runner: CliRunner, monkeypatch: pytest.MonkeyPatch, options: list[str]) -> None:
    text = _run(runner, "-p", PROMPT, "-n", "23")
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda stream: stream.name == "<stdout>")
    result = runner.invoke(main, ["run", "-p", PROMPT, "-n", "23", *options])
    assert result.stdout == text + "\n"
    assert not result.stderr.startswith("\n")


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("is_terminal", [False, True])
def test_warnings_come_last(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_terminal: bool
) -> None:
    def refuse(history: HistoryFile, token_ids: object) -> None:
        raise HistoryError("The disk is full.")

    text = _run(runner, "-p", PROMPT, "-n", "23")
    monkeypatch.setattr(HistoryFile, "append", refuse)
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda stream: is_terminal)
    result = runner.invoke(main, ["run", "-p", PROMPT, "-n", "23", "--history", str(tmp_path / "history")])
    sentence = "Warning: The disk is full. Answers are no longer added to it.\n"
    assert result.output.endswith(f"{text}\n{sentence}")


def test_compare_as_json(runner: CliRunner) -> None:
    fields = json.loads(_run(runner, "-p", PROMPT, "--compare", "--json"))
    assert fields["identical"] is True
    assert fields["text"] == _run(runner, "-p", PROMPT)
    assert fields["speedup"] == pytest.approx(fields["drafted_tokens_per_s"] / fields["plain_tokens_per_s"])
    assert fields["acceptance_length"] >= 1


@pytest.mark.long
def test_measurements_and_proofs_name_the_sampling(runner: CliRunner, drawing: PackageCopy, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("# tar\n")
    model, sent = str(drawing.folder), ["--prompts", str(prompts), "-n", "6"]
    bench = runner.invoke(main, ["bench", "decode", model, *sent, "--rounds", "1"])
    assert "threads; greedy; width probe" in bench.stdout
    proof = runner.invoke(main, ["verify", model, *sent, "--minutes", "0.02"])
    assert "drawn with temperature 0.9, top-k 40, top-p 0.95 (as the model recommends)" in proof.stdout
    usual = runner.invoke(main, ["verify", *sent, "--minutes", "0.02"])
    assert "drawn with temperature 0.8, top-p 0.95 (the model recommends nothing)" in usual.stdout


def test_a_prefix_cache_without_a_name_is_refused_and_fills_no_folder(
    runner: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = runner.invoke(main, ["run", "--prefix-cache", "", "-p", "hi"])
    assert (refused.exit_code, os.listdir()) == (2, [])
    assert "'--prefix-cache': It is empty: name a folder." in refused.stderr


def test_images_come_before_the_prompt_in_the_order_of_their_options(
    runner: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeing, _ = seeing_engine(tmp_path)
    monkeypatch.setattr("reader_edge.models.model_source.load_engine", lambda *given, **options: seeing)
    images = [picture(1), picture(2, 8, 16)]
    paths = [tmp_path / f"{number}.png" for number in range(2)]
    for image, path in zip(images, paths, strict=True):
        image.save(path)
    given = ["-p", "What?", "--greedy", "--image", str(paths[0]), "--image", str(paths[1])]
    result = seeing.generate("What?", GenerationConfig(max_tokens=24), images=images)
    for flag in ([], ["--json"], ["--compare"]):
        assert _run(runner, *given, *flag)
    assert _run(runner, *given) == result.text
    assert tuple(json.loads(_run(runner, *given, "--json"))["token_ids"]) == result.token_ids


def test_a_session_keeps_the_images_of_its_conversation(
    runner: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = []
    (path := tmp_path / "cat.png").write_bytes(png(picture(1)))
    arguments = ["--greedy", "--session", str(tmp_path / "kept"), "-n", "8", "-p"]
    for number, given in enumerate((["What?", "--image", str(path)], ["And now?"], ["Now?", "--image", str(path)])):
        (folder := tmp_path / str(number)).mkdir()
        seeing, tower = seeing_engine(folder)
        monkeypatch.setattr("reader_edge.models.model_source.load_engine", lambda *_, seeing=seeing, **__: seeing)
        _run(runner, *arguments, *given)
        passes.append(tower.num_passes)
    assert passes == [1, 0, 1]  # rows of the first are in the file
    messages = seeing.load_session(tmp_path / "kept")
    image = {"type": "image", "image": path.read_bytes()}
    assert messages[0] == {"role": "user", "content": [image, {"type": "text", "text": "What?"}]}
    assert messages[4] == {"role": "user", "content": [image, {"type": "text", "text": "Now?"}]}
    for length in (1, 3):
        answer = seeing.generate(messages[:length], GenerationConfig(max_tokens=8)).text
        assert messages[length]["content"] == answer


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["-p", "What?"], 1, "reads texts alone"),
        (["-p", "What?", "--raw"], 2, "leave --raw out"),
    ],
)
def test_images_where_none_have_a_place_are_refused(
    arguments: list[str], code: int, words: str, runner: CliRunner, tmp_path: Path
) -> None:
    picture(1).save(tmp_path / "cat.png")
    result = runner.invoke(main, ["run", *arguments, "--image", str(tmp_path / "cat.png")])
    assert result.exit_code == code
    assert words in result.stderr
