"""`reader-edge verify`: what it tells, and its exit code."""

import json
import re
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from reader_edge.cli import main
from reader_edge.prompts import VERIFY_PROMPTS, read_prompts
from reader_edge.verify import variants
from reader_edge.verify.variants import ARRIVAL_VARIANTS, BATCH_SIZES, DRAFTERS, RESTORED, RESTORED_DRAFTERS, VARIANTS
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.draft_tree import DraftTree
from tests.reader_edge.package_copy import PackageCopy
from tests.reader_edge.verify.conftest import FEW_DRAFTERS

WHOLE = ("--minutes", "0")  # the same work on every machine


def test_the_demo_package_passes(runner: CliRunner, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(VERIFY_PROMPTS.read_text().splitlines(keepends=True)[:3]))
    result = runner.invoke(main, ["verify", "-n", "3", *WHOLE, "--prompts", str(prompts)])
    assert result.exit_code == 0
    num_tokens = 3 * 3 * len(VARIANTS) * len(DRAFTERS) * len(BATCH_SIZES)
    shown = re.search(r"^(\d+) tokens compared, 0 divergences", result.stdout, re.MULTILINE)
    assert shown is not None
    assert num_tokens < int(shown[1]) < 1.5 * num_tokens  # and those of random arrivals
    for variant in (*VARIANTS, *ARRIVAL_VARIANTS, RESTORED):
        assert f"- {variant.name}: " in result.stdout
    for drafter in DRAFTERS:
        assert drafter in result.stderr
    assert re.search(r"^The longest text has \d+ tokens of the context's 2048\.$", result.stdout, re.MULTILINE)
    assert "as a broken one might, was stopped, as it should be.\n" in result.stdout
    assert result.stdout.splitlines()[-1] == (
        "Drafting changes nothing here: every token, and every bit it was chosen from, is the same."
    )
    assert "not covered" not in result.stderr
    assert "; all there are." in result.stdout
    assert "The whole proof takes about" in result.stderr


@pytest.mark.long
def test_json_holds_the_totals_and_every_run(runner: CliRunner, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("# tar\n\n# git\n")
    fields = json.loads(runner.invoke(main, ["verify", "-n", "4", *WHOLE, "--prompts", str(prompts), "--json"]).stdout)
    num_tokens = 2 * 4 * len(VARIANTS) * len(DRAFTERS) * len(BATCH_SIZES)
    *at_once, by_ids, by_logits, restored = fields["ways"]
    assert sum(each["tokens_compared"] for each in at_once) == num_tokens
    assert [each["logit_rows"] for each in at_once] == [0, num_tokens // 3, num_tokens // 3]
    assert restored["tokens_compared"] == restored["logit_rows"] == 2 * 4 * len(RESTORED_DRAFTERS)
    assert by_ids["tokens_compared"] > by_ids["logit_rows"] == 0
    assert by_logits["tokens_compared"] == by_logits["logit_rows"] > 0
    assert fields["logit_rows"] == fields["logit_rows_equal"] == sum(each["logit_rows"] for each in fields["ways"])
    assert fields["divergences"] == 0
    assert fields["logit_rows_bit_equal"] is True
    assert fields["first_divergences"] == []
    assert {"provider", "attention", "precision"} <= set(fields)
    assert sum(run["tokens_compared"] for run in fields["runs"]) == fields["tokens_compared"]
    assert "'hostile'" in fields["refusal"]


@pytest.mark.long
@pytest.mark.usefixtures("few_drafters")
def test_conversations_are_counted_by_category(runner: CliRunner, chat_package: PackageCopy, tmp_path: Path) -> None:
    prompts = tmp_path / "chats.jsonl"
    lines = [{"turns": ["# tar", "More."], "category": "pages"}, {"prompt": "1 2 3", "category": "numbers"}]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    arguments = ["verify", str(chat_package.folder), "-n", "3", *WHOLE, "--prompts", str(prompts)]
    fields = json.loads(runner.invoke(main, [*arguments, "--json"]).stdout)
    num_runs = len(VARIANTS) * len(FEW_DRAFTERS) * len(BATCH_SIZES)
    pages, numbers = fields["categories"]["pages"], fields["categories"]["numbers"]
    assert pages["tokens_compared"] > 2 * 3 * num_runs
    assert numbers["tokens_compared"] > 3 * num_runs
    assert pages["logit_rows_equal"] == pages["logit_rows"] > 2 * 3 * num_runs * 2 // 3
    for name in ("tokens_compared", "divergences", "logit_rows", "logit_rows_equal"):
        assert pages[name] + numbers[name] == fields[name]
    assert f"- pages: {pages['tokens_compared']} tokens, 0 divergences" in runner.invoke(main, arguments).stdout


def test_the_default_compares_20_000_tokens() -> None:
    option = next(each for each in main.commands["verify"].params if each.name == "max_tokens")
    num_answers = len(read_prompts(VERIFY_PROMPTS)) * len(VARIANTS) * len(DRAFTERS) * len(BATCH_SIZES)
    assert isinstance(option.default, int)
    assert num_answers * option.default >= 20_000


@pytest.mark.long
def test_a_wrong_tree_mask_exits_1(runner: CliRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    right = DraftTree.ancestors_and_depths
    monkeypatch.setattr(
        DraftTree, "ancestors_and_depths", lambda tree: (np.tri(len(tree), dtype=np.bool_), right(tree)[1])
    )
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "# tar\\n\\n"}\n')
    arguments = ["verify", "-n", "12", *WHOLE, "--prompts", str(prompts)]
    result = runner.invoke(main, arguments)
    assert result.exit_code == 1
    assert "Prompt 1 (# tar)" in result.stdout
    assert "logit gap" in result.stdout
    assert "Drafting changes this model's output here." in result.stdout
    monkeypatch.setattr(variants, "DRAFTERS", FEW_DRAFTERS)
    result = runner.invoke(main, [*arguments, "--json"])
    assert result.exit_code == 1
    first = json.loads(result.stdout)["first_divergences"][0]
    assert {"position", "plain_token_id", "drafted_token_id", "plain_text", "drafted_text", "logit_gap"} <= set(first)


@pytest.mark.usefixtures("few_drafters")
@pytest.mark.parametrize(
    ("exact_attentions", "exit_code", "sentence"),
    [((), 0, "Every token is the same, but not every bit"), (("exact",), 1, "promises the same bits")],
)
def test_other_bits_with_the_same_tokens_break_the_promise_of_exact_packages_only(
    runner: CliRunner,
    package: PackageCopy,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    exact_attentions: tuple[str, ...],
    exit_code: int,
    sentence: str,
) -> None:
    for module in ("report", "result"):
        monkeypatch.setattr(f"reader_edge.verify.{module}.EXACT_ATTENTIONS", exact_attentions)
    numbers = count()
    # as if all bits differed
    monkeypatch.setattr("reader_edge.verify.logit_comparer.digest", lambda row: b"%d" % next(numbers))
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("# tar\n")
    result = runner.invoke(main, ["verify", str(package.folder), "-n", "4", *WHOLE, "--prompts", str(prompts)])
    assert result.exit_code == exit_code
    assert "0 divergences" in result.stdout
    assert sentence in result.stdout


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("empty.txt", "\n \n", "holds no prompt"),
        ("bad.jsonl", '{"prompt": "# tar"}\n{"text": "# git"}\n', "Line 2 of "),
        ("broken.jsonl", "{", "Line 1 of "),
    ],
)
def test_a_bad_prompt_file_is_refused(runner: CliRunner, tmp_path: Path, name: str, text: str, sentence: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    result = runner.invoke(main, ["verify", "--prompts", str(path)])
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")
    assert sentence in result.stderr


def test_a_prompt_file_that_is_no_text_is_one_sentence(runner: CliRunner, tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes(b"\xff")
    assert "is not UTF-8 text" in runner.invoke(main, ["verify", "--prompts", str(path)]).stderr


def test_a_missing_prompt_file_exits_2(runner: CliRunner) -> None:
    assert runner.invoke(main, ["verify", "--prompts", "missing.txt"]).exit_code == 2


def _stop_after(num_steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the user press Ctrl-C during a step."""
    numbers, step = count(1), Decoder.step

    def interrupted_step(decoder: Decoder) -> object:
        if next(numbers) == num_steps:
            raise KeyboardInterrupt
        return step(decoder)

    monkeypatch.setattr(Decoder, "step", interrupted_step)


@pytest.mark.long
def test_ctrl_c_tells_what_was_covered_so_far(runner: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    _stop_after(300, monkeypatch)
    result = runner.invoke(main, ["verify", "-n", "8", *WHOLE])
    assert result.exit_code == 130
    assert re.search(r"Interrupted after .* combinations compared on every prompt, .* not at all", result.stdout)
    assert "Drafting changed nothing of what was compared" in result.stdout
    assert re.search(r"^\d+ further ways were not covered: --minutes 0 compares everything\.$", result.stderr, re.M)
    assert result.stderr.count("not covered") == 1


def test_ctrl_c_before_anything_was_compared_proves_nothing(runner: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    _stop_after(20, monkeypatch)
    result = runner.invoke(main, ["verify", "-n", "8", *WHOLE])
    assert result.exit_code == 130
    assert result.stdout == ""
    assert "Interrupted." in result.stderr


@pytest.mark.usefixtures("few_drafters")
def test_a_proof_without_drafts_is_no_proof(runner: CliRunner, tmp_path: Path) -> None:
    """The first token of an answer comes from its prompt, and nothing is drafted behind the last."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("# tar\n")
    result = runner.invoke(main, ["verify", "-n", "1", *WHOLE, "--prompts", str(prompts)])
    assert result.exit_code == 1
    assert "No draft was verified in" in result.stderr
    assert "-n" in result.stderr


@pytest.mark.usefixtures("few_drafters")
def test_no_time_at_all_compares_one_pair_to_its_end(runner: CliRunner) -> None:
    fields = json.loads(runner.invoke(main, ["verify", "-n", "12", "--minutes", "1e-9", "--json"]).stdout)
    first, *others = fields["runs"]
    assert (first["way"], first["batch_size"], first["prompts_compared"]) == ("greedy by top ids", 1, 1)
    assert first["tokens_compared"] == 12
    assert not any(run["tokens_compared"] for run in others)
    assert fields["settings_not_covered"] == len(others)
    assert fields["is_promise_kept"] is True


@pytest.mark.parametrize("minutes", ["-1", "nan", "soon"])
def test_a_time_that_is_none_is_wrong_usage(runner: CliRunner, minutes: str) -> None:
    result = runner.invoke(main, ["verify", "--minutes", minutes])
    assert result.exit_code == 2
    assert "--minutes" in result.stderr


def test_turns_beyond_the_time_are_named(runner: CliRunner, chat_package: PackageCopy, tmp_path: Path) -> None:
    prompts = tmp_path / "chats.jsonl"
    prompts.write_text(json.dumps({"turns": ["# tar", "More.", "And more."]}))
    arguments = ["verify", str(chat_package.folder), "-n", "4", "--prompts", str(prompts), "--minutes", "1e-9"]
    assert "2 later turns of conversations are left out" in runner.invoke(main, arguments).stderr
