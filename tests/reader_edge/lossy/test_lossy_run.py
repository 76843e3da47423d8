"""`reader-edge lossy run`: it answers, and tells what was given up."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from reader_edge.chat.prompt_input import PromptInput
from reader_edge.cli import main
from reader_edge.terminal.given_up import given_up_sentence


def lossy_run(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(main, ["lossy", "run", *arguments, "--no-calibrate"], text, catch_exceptions=False)


def test_an_answer_ends_with_what_it_gave_up() -> None:
    result = lossy_run("-p", "# tar", "-n", "30", "--gap", "2", "--budget", "1")
    assert result.exit_code == 0
    assert "Lossy (relaxed: gap 2.0, budget 1.0): " in result.stderr
    assert " of 30 tokens are not the model's choice" in result.stderr
    assert "Lossy" not in result.stdout


def test_json_has_the_meter() -> None:
    result = lossy_run("-p", "# tar", "-n", "10", "--json", "--stats")
    printed = json.loads(result.stdout)
    given_up = printed["given_up"]
    assert printed["stats"]["perplexity"] > 1
    assert given_up["strength"] == {"gap": 0.69, "budget": 0.02}
    assert given_up["num_tokens"] == 10


def test_a_chat_goes_on_in_its_session(tmp_path: Path) -> None:
    session = str(tmp_path / "session")
    first = lossy_run("-p", "# tar", "-n", "4", "--session", session)
    assert first.exit_code == 0
    refused = CliRunner().invoke(main, ["run", "-p", "# tar", "--session", session, "--no-calibrate"])
    assert refused.exit_code == 1
    assert "is a lossy session, which `lossy run` goes on with" in refused.stderr
    assert lossy_run("-p", "# tar", "-n", "4", "--session", session).exit_code == 0


def test_lines_of_standard_input_are_prompts_to_answer(tmp_path: Path) -> None:
    assert "Lossy (" in lossy_run("-p", "-", "-n", "4", text="# tar\n").stderr
    refused = lossy_run("--json", "-p", "")
    assert refused.exit_code == 2
    assert "The prompt is empty" in refused.stderr


def test_views_tell_how_far_they_are_from_the_whole_prompt(tmp_path: Path) -> None:
    asked = ("-p", "tar and zip, " * 40 + "# tar", "-n", "12", "--json", "--rule", "views", "--context", "64")
    mixed = json.loads(lossy_run(*asked, "--weight", "0.7").stdout)
    assert mixed["given_up"]["rule"] == "views"
    assert mixed["given_up"]["strength"] == {"context": 64, "weight": 0.7}
    exact = CliRunner().invoke(main, ["run", *asked[:5], "--no-calibrate"], catch_exceptions=False)
    assert json.loads(lossy_run(*asked, "--weight", "0").stdout)["text"] == json.loads(exact.stdout)["text"]


def test_views_are_sampled_and_relaxed_answers_are_not() -> None:
    asked = ("-p", "# tar", "-n", "12", "-t", "0.9", "--seed", "4")
    exact = CliRunner().invoke(main, ["run", *asked, "--no-calibrate"], catch_exceptions=False)
    assert lossy_run(*asked, "--rule", "views", "--weight", "0").stdout == exact.stdout
    assert exact.stdout != CliRunner().invoke(main, ["run", *asked[:4], "--no-calibrate"]).stdout
    refused = lossy_run(*asked)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "Lossy answers are greedy" in refused.stderr


def test_an_option_of_another_rule_is_wrong_usage() -> None:
    for arguments, sentence in (
        (("--rule", "views", "--gap", "0.5"), "--gap is of --rule relaxed, not of views: leave it out."),
        (("--weight", "0.5"), "--weight is of --rule views, not of relaxed: leave it out."),
    ):
        refused = lossy_run("-p", "# tar", *arguments)
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert sentence in refused.stderr


def test_wrong_strengths_are_refused_in_a_sentence() -> None:
    refused = lossy_run("-p", "# tar", "--gap", "-1")
    assert refused.exit_code == 2
    assert refused.stderr == "Error: Invalid value for '--gap': -1.0 is not in the range 0<=x<=100.\n"


def test_what_a_model_usually_repeats_is_told_where_it_is_known() -> None:
    fields = {"rule": "relaxed", "strength": {"gap": 1.0}, "num_changed": 2, "num_tokens": 8, "nats_per_token": 0.01}
    fields |= {"repeated_4grams": 0.25, "usual_repeated_4grams": 0.125}
    assert given_up_sentence(fields) == (
        "Lossy (relaxed: gap 1.0): 2 of 8 tokens are not the model's choice, 0.0100 nats a token given up; 25.0% of "
        "4-grams repeated (usually 12.5%)."
    )
    assert "(usually not known: `reader-edge warm` finds out)" in given_up_sentence(
        fields | {"usual_repeated_4grams": None}
    )


def test_without_a_prompt_it_chats(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(PromptInput, "read", lambda prompt_input: None)
    session = str(tmp_path / "session")
    result = lossy_run("-n", "4", "--session", session, text="# tar\n/bye\n")
    assert result.exit_code == 0
    assert "Lossy (relaxed" in result.stderr
    assert lossy_run("-n", "4", text="/bye\n").exit_code == 0
    refused = lossy_run("--json")
    assert refused.exit_code == 2
    assert "--json needs a prompt" in refused.stderr
