"""`reader-edge run --rule`: it answers, and says how far that deviates from the model's own choices."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from reader_edge.chat.prompt_input import PromptInput
from reader_edge.cli import main
from reader_edge.entry_points import added_commands
from reader_edge.terminal.model_text import deviation_sentence


def lossy_run(*arguments: str, rule: str = "relaxed", text: str | None = None) -> Result:
    return CliRunner().invoke(main, ["run", "--rule", rule, *arguments, "--no-calibrate"], text, catch_exceptions=False)


def test_an_answer_ends_with_what_it_gave_up() -> None:
    result = lossy_run("-p", "# tar", "-n", "30", rule="relaxed:2:1")
    assert result.exit_code == 0
    assert "Lossy (relaxed: gap 2.0, budget 1.0): " in result.stderr
    assert " of 30 tokens are not the model's choice" in result.stderr
    assert "Lossy" not in result.stdout


def test_json_has_the_meter() -> None:
    result = lossy_run("-p", "# tar", "-n", "10", "--json", "--stats")
    printed = json.loads(result.stdout)
    deviation = printed["deviation"]
    assert printed["stats"]["perplexity"] > 1
    assert deviation["figures"] == {"gap": 0.69, "budget": 0.02}
    assert deviation["num_tokens"] == 10


def test_a_chat_goes_on_in_its_session(tmp_path: Path) -> None:
    session = str(tmp_path / "session")
    first = lossy_run("-p", "# tar", "-n", "4", "--session", session)
    assert first.exit_code == 0
    refused = CliRunner().invoke(main, ["run", "-p", "# tar", "--session", session, "--no-calibrate"])
    assert refused.exit_code == 1
    assert "is a lossy session, which `run --rule` goes on with" in refused.stderr
    assert lossy_run("-p", "# tar", "-n", "4", "--session", session).exit_code == 0


def test_lines_of_standard_input_are_prompts_to_answer() -> None:
    assert "Lossy (" in lossy_run("-p", "-", "-n", "4", text="# tar\n").stderr
    refused = lossy_run("--json", "-p", "")
    assert refused.exit_code == 2
    assert "The prompt is empty" in refused.stderr


def test_views_say_how_far_they_are_from_the_whole_prompt() -> None:
    prompt = ("-p", "tar and zip, " * 40 + "# tar", "-n", "12", "--json")
    mixed = json.loads(lossy_run(*prompt, rule="views:64:0.7").stdout)
    assert mixed["deviation"]["rule"] == "views"
    assert mixed["deviation"]["figures"] == {"context": 64, "weight": 0.7}
    exact = CliRunner().invoke(main, ["run", *prompt, "--no-calibrate"], catch_exceptions=False)
    assert json.loads(lossy_run(*prompt, rule="views:64:0").stdout)["text"] == json.loads(exact.stdout)["text"]


def test_views_are_sampled_and_relaxed_answers_are_not() -> None:
    sampled = ("-p", "# tar", "-n", "12", "-t", "0.9", "--seed", "4")
    exact = CliRunner().invoke(main, ["run", *sampled, "--no-calibrate"], catch_exceptions=False)
    assert lossy_run(*sampled, rule="views:256:0").stdout == exact.stdout
    assert exact.stdout != CliRunner().invoke(main, ["run", *sampled[:4], "--no-calibrate"]).stdout
    refused = lossy_run(*sampled)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "Lossy answers are greedy" in refused.stderr


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        ("exact", "'exact' is no rule that is installed: take "),
        ("relaxed:much", "'relaxed:much' has what is no number: give relaxed:GAP:BUDGET."),
        ("big-little:2:3", "'big-little:2:3' has too many figures: give big-little:DISTANCE."),
        ("relaxed:-1", "gap is -1.0, but must be from 0 to 100"),
        ("views:99.5", "context is 99.5, but must be a whole number"),
    ],
)
def test_wrong_rules_are_refused_in_a_sentence(rule: str, sentence: str) -> None:
    refused = lossy_run("-p", "# tar", rule=rule)
    assert (refused.exit_code, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert sentence in refused.stderr


def test_a_server_of_exact_answers_and_a_comparison_take_no_rule() -> None:
    for others in (("--compare",), ("--server", "http://localhost:1")):
        refused = CliRunner().invoke(main, ["run", "--rule", "relaxed", "-p", "# tar", *others])
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert "--rule" in refused.stderr


def test_rules_whose_folder_is_gone_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reader_edge_runtime.plug_ins.find_spec", lambda name: None)
    refused = lossy_run("-p", "# tar")
    assert refused.exit_code == 2
    assert "'relaxed' is no rule that is installed: take none." in refused.stderr
    assert added_commands() == []


def test_what_a_model_usually_repeats_is_shown_where_it_is_known() -> None:
    fields = {"rule": "relaxed", "figures": {"gap": 1.0}, "num_changed": 2, "num_tokens": 8, "nats_per_token": 0.01}
    fields |= {"repeated_4grams": 0.25, "usual_repeated_4grams": 0.125}
    assert deviation_sentence(fields) == (
        "Lossy (relaxed: gap 1.0): 2 of 8 tokens are not the model's choice, 0.0100 nats a token given up; 25.0% of "
        "4-grams repeated (usually 12.5%)."
    )
    assert "(usually not known: `reader-edge warm` finds out)" in deviation_sentence(
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
    assert "--json and --compare need a prompt" in refused.stderr
